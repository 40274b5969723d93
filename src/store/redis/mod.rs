//! The state in Redis. Transactions are carried out by prepared scripts ([`script`]), values are plain keys, sets are
//! sorted sets whose members all have the same score, so that they are ordered by their bytes, each with a log of what
//! is not in its place yet.
//!
//! A read is repeated once when the connection is lost under it. A commit never is: it may have happened, and its
//! checks would then fail; whoever commits can read back. Nothing waits longer than the time-out, and only so many
//! commands are under way at once.

mod address;
mod connection;
mod keys;
mod plain;
mod range;
mod script;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, Script, ServerErrorKind, Value};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use self::address::Address;
use self::connection::RedisConnector;
use self::keys::Keys;
use self::plain::Plain;
use super::{Outcome, Scan, State, StoreError, Txn};
use crate::cluster::link::{Leased, Link};
use crate::cluster::runtime::EngineRuntime;
use crate::config::Redis as Settings;

const PART: &str = "redis";

/// More than this many commands are not under way at once; the others wait for their turn or their time-out.
const AT_ONCE: usize = 256;

/// Redis does one thing at a time: larger calls are cut so that no one waits long for another.
const KEYS_AT_ONCE: usize = 1_024;

pub struct RedisState {
    link: Arc<Link<MultiplexedConnection>>,
    keys: Keys,
    /// See [`script`].
    plain: Script,
    commit: Script,
    settle: Script,
    timeout: Duration,
    turns: Semaphore,
    _runtime: EngineRuntime,
}

impl RedisState {
    /// Starts to connect. An error is one of the settings; a server that is away is waited for.
    pub fn open(settings: &Settings, prefix: &str, runtime: &EngineRuntime) -> Result<Self, String> {
        // Whichever crypto other dependencies bring along, this is the one to use.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let timeout = settings.timeout;
        let connector = RedisConnector { address: Address::parse(settings)?, timeout, last: None };
        Ok(Self {
            link: Link::start(PART, runtime.handle(), connector),
            keys: Keys::new(prefix),
            plain: Script::new(script::PLAIN),
            commit: Script::new(script::COMMIT),
            settle: Script::new(script::SETTLE),
            timeout,
            turns: Semaphore::new(AT_ONCE),
            _runtime: runtime.clone(),
        })
    }

    /// Waits, for ever, until Redis answers.
    pub async fn wait_until_up(&self) {
        self.link.wait_until_up().await;
    }

    /// Whether Redis is there; the error says why not.
    pub fn health(&self) -> Result<(), StoreError> {
        self.link.health().map_err(away)
    }

    async fn read(&self, command: &Cmd) -> Result<Value, StoreError> {
        let deadline = Instant::now() + self.timeout;
        let _turn = self.turn(deadline).await?;
        let leased = self.link.get(self.timeout).await.map_err(away)?;
        match self.send(&leased, command, deadline).await {
            Err(Sent::Lost(_)) => {
                let patience = deadline.saturating_duration_since(Instant::now());
                let leased = self.link.get_after(&leased, patience).await.map_err(away)?;
                self.send(&leased, command, deadline).await.map_err(StoreError::from)
            }
            result => result.map_err(StoreError::from),
        }
    }

    async fn commit_chunk(&self, txns: &[Txn]) -> Result<Vec<Outcome>, StoreError> {
        let deadline = Instant::now() + self.timeout;
        let _turn = self.turn(deadline).await?;
        let leased = self.link.get(self.timeout).await.map_err(away)?;
        if let Some(plain) = Plain::of(txns) {
            let command = plain.call(self.plain.get_hash(), &self.keys);
            if self.run(&leased, script::PLAIN, &command, deadline).await? == Value::Int(1) {
                return Ok(vec![Outcome::Done; txns.len()]);
            }
        }
        let command = script::call(self.commit.get_hash(), &self.keys, txns);
        let conflicts = self.run(&leased, script::COMMIT, &command, deadline).await?;
        let mut outcomes = vec![Outcome::Done; txns.len()];
        for number in redis::from_redis_value::<Vec<usize>>(conflicts).map_err(away)? {
            if let Some(outcome) = number.checked_sub(1).and_then(|at| outcomes.get_mut(at)) {
                *outcome = Outcome::Conflict;
            }
        }
        Ok(outcomes)
    }

    /// Has everything of a set in its place that was in its log when this was called.
    async fn settle(&self, set: &str) -> Result<(), StoreError> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.settle.get_hash()).arg(0).arg(self.keys.log(set)).arg(self.keys.set(set));
        let mut left = usize::MAX;
        while left > 0 {
            let deadline = Instant::now() + self.timeout;
            let _turn = self.turn(deadline).await?;
            let leased = self.link.get(self.timeout).await.map_err(away)?;
            let now = self.run(&leased, script::SETTLE, &command, deadline).await?;
            // What others add meanwhile is not waited for.
            left =
                redis::from_redis_value::<usize>(now).map_err(away)?.min(left.saturating_sub(script::SETTLED_AT_ONCE));
        }
        Ok(())
    }

    /// Calls a script, which a server that was started again has to be told once more.
    async fn run(
        &self,
        leased: &Leased<MultiplexedConnection>,
        script: &str,
        call: &Cmd,
        deadline: Instant,
    ) -> Result<Value, Sent> {
        match self.send(leased, call, deadline).await {
            Err(Sent::ScriptForgotten) => {
                let mut load = redis::cmd("SCRIPT");
                self.send(leased, load.arg("LOAD").arg(script), deadline).await?;
                self.send(leased, call, deadline).await
            }
            result => result,
        }
    }

    async fn turn(&self, deadline: Instant) -> Result<tokio::sync::SemaphorePermit<'_>, StoreError> {
        match timeout_at(deadline, self.turns.acquire()).await {
            Ok(turn) => turn.map_err(away),
            Err(_) => Err(away(format!("{AT_ONCE} commands are under way"))),
        }
    }

    /// Sends one command; a connection that fails it, or a server that may not write, is given up.
    async fn send(
        &self,
        leased: &Leased<MultiplexedConnection>,
        command: &Cmd,
        deadline: Instant,
    ) -> Result<Value, Sent> {
        let mut connection = leased.connection.clone();
        let answer = timeout_at(deadline, connection.send_packed_command(command)).await;
        let sent = match answer.map(|value| value.and_then(Value::extract_error)) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => Sent::from(error),
            Err(_) => Sent::TimedOut(self.timeout),
        };
        if sent.discredits_the_connection() {
            self.link.doubt(leased, sent.to_string());
        }
        Err(sent)
    }
}

/// What may go wrong with a command.
#[derive(Debug, thiserror::Error)]
enum Sent {
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("connection lost: {0}")]
    Lost(RedisError),
    #[error("the script is not known")]
    ScriptForgotten,
    #[error("this server takes no writes now")]
    ReadOnly,
    #[error("{0}")]
    Refused(RedisError),
}

impl Sent {
    fn discredits_the_connection(&self) -> bool {
        matches!(self, Self::TimedOut(_) | Self::Lost(_) | Self::ReadOnly)
    }
}

impl From<RedisError> for Sent {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::NoScript) => Self::ScriptForgotten,
            ErrorKind::Server(ServerErrorKind::ReadOnly) => Self::ReadOnly,
            _ if error.is_io_error() || error.is_unrecoverable_error() => Self::Lost(error),
            _ => Self::Refused(error),
        }
    }
}

impl From<Sent> for StoreError {
    fn from(sent: Sent) -> Self {
        away(sent)
    }
}

#[allow(clippy::needless_pass_by_value, reason = "so that it can stand in map_err")]
fn away(reason: impl ToString) -> StoreError {
    StoreError { part: PART, reason: reason.to_string() }
}

#[async_trait]
impl State for RedisState {
    async fn get(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let mut values = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(KEYS_AT_ONCE) {
            let mut command = redis::cmd("MGET");
            for key in chunk {
                command.arg(self.keys.value(key));
            }
            let found: Vec<Option<Vec<u8>>> = redis::from_redis_value(self.read(&command).await?).map_err(away)?;
            values.extend(found.into_iter().map(|value| value.map(Bytes::from)));
        }
        Ok(values)
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Outcome>, StoreError> {
        let mut outcomes = Vec::with_capacity(txns.len());
        let mut rest = &txns[..];
        while !rest.is_empty() {
            let (chunk, others) = rest.split_at(script::chunk_length(rest));
            outcomes.extend(self.commit_chunk(chunk).await?);
            rest = others;
        }
        Ok(outcomes)
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<Bytes>, StoreError> {
        self.settle(&scan.set).await?;
        let mut members = Vec::new();
        let mut place = scan.clone();
        while members.len() < scan.limit {
            let wanted = (scan.limit - members.len()).min(KEYS_AT_ONCE);
            let (from, to) = range::ends(&place);
            let mut command = redis::cmd("ZRANGE");
            command.arg(self.keys.set(&place.set)).arg(from).arg(to).arg("BYLEX");
            if place.backwards {
                command.arg("REV");
            }
            command.arg("LIMIT").arg(0).arg(wanted);
            let found: Vec<Vec<u8>> = redis::from_redis_value(self.read(&command).await?).map_err(away)?;
            let complete = found.len() < wanted;
            members.extend(found.into_iter().map(Bytes::from));
            if complete {
                break;
            }
            place.after = members.last().cloned();
        }
        Ok(members)
    }

    async fn count(&self, set: &str) -> Result<u64, StoreError> {
        self.settle(set).await?;
        let value = self.read(redis::cmd("ZCARD").arg(self.keys.set(set))).await?;
        redis::from_redis_value(value).map_err(away)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.read(&redis::cmd("PING")).await.map(|_| ())
    }
}
