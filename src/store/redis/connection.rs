//! Connects to Redis and notices when the connection is lost, also when nobody uses it.
//!
//! A command that was sent and not answered may still wait in the old connection, to be carried out after what is
//! sent over the next one. So the first thing a new connection does is to have the server close the old one: what
//! was not carried out by then never is.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisResult};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::address::Address;
use super::script::{COMMIT, PLAIN, SETTLE};
use crate::cluster::link::{Connected, Connector};

/// How often a connection is tried out.
const CHECK_EVERY: Duration = Duration::from_secs(1);

pub struct RedisConnector {
    pub address: Address,
    pub timeout: Duration,
    /// Whom to close: the server's run and the connection's number there.
    pub last: Option<(String, u64)>,
}

impl Connector for RedisConnector {
    type Connection = MultiplexedConnection;

    async fn connect(&mut self) -> Result<Connected<MultiplexedConnection>, String> {
        let lost = Arc::new(Notify::new());
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // Callers have a deadline of their own.
            .set_response_timeout(None)
            .set_push_sender({
                let lost = lost.clone();
                move |push: PushInfo| {
                    if push.kind == PushKind::Disconnection {
                        lost.notify_one();
                    }
                    Ok::<(), redis::aio::SendError>(())
                }
            });
        let mut connection = self.address.connect(&config).await.map_err(|error| error.to_string())?;
        self.prepare(&mut connection).await.map_err(|error| error.to_string())?;
        let (probe, deadline) = (connection.clone(), self.timeout);
        let end = async move {
            tokio::select! {
                () = lost.notified() => "closed by the server".to_owned(),
                reason = until_it_fails(probe, deadline) => reason,
            }
        };
        Ok((connection, Box::pin(end)))
    }
}

impl RedisConnector {
    async fn prepare(&mut self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let number: u64 = redis::cmd("CLIENT").arg("ID").query_async(connection).await?;
        let about: String = redis::cmd("INFO").arg("server").query_async(connection).await?;
        let run = about.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default().to_owned();
        if let Some((_, old)) = self.last.take().filter(|(last_run, _)| *last_run == run) {
            // It is mostly gone already, and a user without the right to do this has to go without.
            let _ = redis::cmd("CLIENT").arg("KILL").arg("ID").arg(old).exec_async(connection).await;
        }
        self.last = Some((run, number));
        for script in [PLAIN, COMMIT, SETTLE] {
            redis::cmd("SCRIPT").arg("LOAD").arg(script).exec_async(connection).await?;
        }
        Ok(())
    }
}

async fn until_it_fails(mut connection: MultiplexedConnection, deadline: Duration) -> String {
    loop {
        sleep(CHECK_EVERY).await;
        match timeout(deadline, redis::cmd("PING").exec_async(&mut connection)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(_) => return format!("no answer within {deadline:?}"),
        }
    }
}
