//! One connection that is kept up: whoever needs it asks for it, and a task of its own connects again, for ever, with
//! back-off and jitter. Callers are never made to wait longer than they say, and are told at once when the last try
//! failed.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use rand::RngExt as _;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tracing::{info, warn};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// After this a try is called failed, though it is waited for a while longer: abandoned tries pile up at a server
/// that accepts connections and says nothing.
const TRY_TIMEOUT: Duration = Duration::from_secs(5);
const GIVE_UP_TRY: Duration = Duration::from_secs(60);

/// A connection that lasted this long was a good one: the next pause is a short one again.
const STEADY: Duration = Duration::from_secs(5);

/// A new connection, and what comes to an end with a reason when it is lost.
pub type Connected<C> = (C, BoxFuture<'static, String>);

/// How to connect.
pub trait Connector: Send + 'static {
    type Connection: Clone + Send + Sync + 'static;

    fn connect(&mut self) -> impl Future<Output = Result<Connected<Self::Connection>, String>> + Send;
}

#[derive(Clone)]
enum State<C> {
    /// Not tried yet, or lost a moment ago.
    Connecting,
    Up {
        connection: C,
        number: u64,
    },
    Down(String),
}

/// A connection that was up when it was asked for; its number tells it from those before and after.
pub struct Leased<C> {
    pub connection: C,
    number: u64,
}

/// The handle; the task behind it ends with the last of them.
pub struct Link<C> {
    state: watch::Receiver<State<C>>,
    doubts: mpsc::Sender<(u64, String)>,
    name: &'static str,
}

impl<C: Clone + Send + Sync + 'static> Link<C> {
    /// Starts to connect, on `runtime`, whatever runtimes the callers come from.
    pub fn start(name: &'static str, runtime: &Handle, connector: impl Connector<Connection = C>) -> Arc<Self> {
        let (states, state) = watch::channel(State::Connecting);
        let (doubts, doubted) = mpsc::channel(16);
        runtime.spawn(Keeper { name, states, doubted, number: 0, pause: FIRST_PAUSE }.run(connector));
        Arc::new(Self { state, doubts, name })
    }

    /// The connection, waiting for it at most so long. Says why there is none.
    pub async fn get(&self, patience: Duration) -> Result<Leased<C>, String> {
        self.newer_than(0, patience).await
    }

    /// A connection made after this one was, which is known to be lost.
    pub async fn get_after(&self, lost: &Leased<C>, patience: Duration) -> Result<Leased<C>, String> {
        self.newer_than(lost.number, patience).await
    }

    async fn newer_than(&self, old: u64, patience: Duration) -> Result<Leased<C>, String> {
        let mut state = self.state.clone();
        let settled = timeout(
            patience,
            state.wait_for(|state| match state {
                State::Connecting => false,
                State::Up { number, .. } => *number > old,
                State::Down(_) => true,
            }),
        )
        .await;
        match settled {
            Ok(Ok(state)) => match &*state {
                State::Up { connection, number } => Ok(Leased { connection: connection.clone(), number: *number }),
                State::Down(reason) => Err(reason.clone()),
                State::Connecting => Err("still connecting".into()),
            },
            Ok(Err(_)) => Err(format!("the link to {} has ended", self.name)),
            Err(_) => Err(format!("not connected within {patience:?}")),
        }
    }

    /// Waits until the connection is up, for ever.
    pub async fn wait_until_up(&self) {
        let _ = self.state.clone().wait_for(|state| matches!(state, State::Up { .. })).await;
    }

    /// Says that a connection is of no use: it is given up and another made. Late news of an older one is ignored.
    pub fn doubt(&self, leased: &Leased<C>, reason: impl Into<String>) {
        // A full channel holds doubts enough.
        let _ = self.doubts.try_send((leased.number, reason.into()));
    }

    /// Whether it is up; the error says why not.
    pub fn health(&self) -> Result<(), String> {
        match &*self.state.borrow() {
            State::Up { .. } => Ok(()),
            State::Connecting => Err("connecting".into()),
            State::Down(reason) => Err(reason.clone()),
        }
    }
}

struct Keeper<C> {
    name: &'static str,
    states: watch::Sender<State<C>>,
    doubted: mpsc::Receiver<(u64, String)>,
    number: u64,
    pause: Duration,
}

impl<C: Clone + Send + Sync + 'static> Keeper<C> {
    async fn run(mut self, mut connector: impl Connector<Connection = C>) {
        while !self.states.is_closed() {
            match self.try_once(&mut connector).await {
                Ok(connected) => self.keep(connected).await,
                Err(reason) => {
                    self.down(reason);
                    self.rest().await;
                }
            }
        }
    }

    async fn try_once(&self, connector: &mut impl Connector<Connection = C>) -> Result<Connected<C>, String> {
        let mut attempt = std::pin::pin!(connector.connect());
        if let Ok(result) = timeout(TRY_TIMEOUT, attempt.as_mut()).await {
            return result;
        }
        self.down(format!("no answer within {TRY_TIMEOUT:?}"));
        tokio::select! {
            result = timeout(GIVE_UP_TRY, attempt) => result.unwrap_or_else(|_| Err("no answer".into())),
            () = self.states.closed() => Err("not needed any more".into()),
        }
    }

    /// Hands the connection out until it is lost or doubted.
    async fn keep(&mut self, (connection, lost): Connected<C>) {
        let since = Instant::now();
        self.number += 1;
        let number = self.number;
        self.states.send_replace(State::Up { connection, number });
        info!(part = self.name, "connected");
        let mut lost = lost;
        let reason = loop {
            tokio::select! {
                reason = &mut lost => break reason,
                Some((doubted, reason)) = self.doubted.recv() => if doubted == number { break reason },
                () = self.states.closed() => return,
            }
        };
        self.states.send_replace(State::Connecting);
        warn!(part = self.name, reason, "connection lost");
        if since.elapsed() >= STEADY {
            self.pause = FIRST_PAUSE;
        } else if self.pause > FIRST_PAUSE {
            self.rest().await;
        } else {
            self.pause *= 2;
        }
    }

    fn down(&self, reason: String) {
        self.states.send_if_modified(|state| {
            let news = !matches!(state, State::Down(known) if *known == reason);
            if news {
                warn!(part = self.name, reason, "not available");
                *state = State::Down(reason);
            }
            news
        });
    }

    /// Pauses for half to all of the current pause, which doubles up to the longest.
    async fn rest(&mut self) {
        let pause = self.pause.mul_f64(rand::rng().random_range(0.5..1.0));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.states.closed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Connects as told: refused, or up until the other end is dropped.
    struct Told(VecDeque<Option<oneshot::Receiver<()>>>);

    impl Connector for Told {
        type Connection = usize;

        async fn connect(&mut self) -> Result<Connected<usize>, String> {
            let number = self.0.len();
            match self.0.pop_front() {
                Some(Some(lost)) => Ok((number, lost.map(|_| "hung up".to_owned()).boxed())),
                Some(None) => Err("refused".into()),
                None => std::future::pending().await,
            }
        }
    }

    #[tokio::test]
    async fn a_lost_or_doubted_connection_is_replaced() {
        let (hang_up, first) = oneshot::channel();
        let (_second_end, second) = oneshot::channel();
        let (_third_end, third) = oneshot::channel();
        let told = Told([Some(first), Some(second), Some(third)].into());
        let link = Link::start("test", &Handle::current(), told);
        let one = link.get(LONG).await.unwrap();
        assert!(link.health().is_ok());
        drop(hang_up);
        let two = link.get_after(&one, LONG).await.unwrap();
        assert_ne!(one.connection, two.connection);
        link.doubt(&one, "late news");
        link.doubt(&two, "no answer");
        let three = link.get_after(&two, LONG).await.unwrap();
        assert_ne!(two.connection, three.connection);
        assert_eq!(link.get(LONG).await.unwrap().connection, three.connection);
    }

    #[tokio::test]
    async fn a_refusal_is_told_and_tried_again() {
        let (_end, up) = oneshot::channel();
        let link = Link::start("test", &Handle::current(), Told([None, None, Some(up)].into()));
        assert_eq!(link.get(LONG).await.err(), Some("refused".into()));
        timeout(LONG, link.wait_until_up()).await.unwrap();
        assert!(link.get(LONG).await.is_ok());
    }

    #[tokio::test]
    async fn nobody_waits_longer_than_they_say() {
        let link = Link::start("test", &Handle::current(), Told(VecDeque::new()));
        assert!(link.get(Duration::from_millis(1)).await.is_err());
        assert!(link.health().is_err());
    }
}
