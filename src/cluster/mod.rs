//! The cluster engine: streams and queues in RabbitMQ, state in Redis. It is opened once in a process; what it hands
//! out may be used from any thread and any runtime, because the connections live on a runtime of their own.

pub mod link;
pub mod runtime;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use self::runtime::EngineRuntime;
use crate::config::Settings;
use crate::store::redis::RedisState;
use crate::stream::rabbitmq::RabbitMq;

/// Why the engine cannot be used with these settings. Servers that are away are not an error: they are waited for.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the setting {setting}: {reason}")]
    Setting { setting: &'static str, reason: String },
    /// With another count an operation would go to another stream than the one before it.
    #[error(
        "the broker is laid out with {} partitions: set partitions.count to that, or take another prefix",
        .found.map_or_else(|| "other".to_owned(), |found| found.to_string())
    )]
    OtherPartitionCount { found: Option<u32> },
    #[error("no runtime for the connections: {0}")]
    Runtime(#[from] io::Error),
}

/// RabbitMQ writes that a stream exists two seconds after it was declared. A broker that is killed before that has
/// forgotten the stream, and with it what was confirmed in it; so nothing is taken in until that time has passed.
/// Once in the life of an installation.
const METADATA_DELAY: Duration = Duration::from_secs(3);

/// The parts of the engine.
#[derive(Clone)]
pub struct Cluster {
    pub state: Arc<RedisState>,
    /// Streams and queues both.
    pub broker: Arc<RabbitMq>,
}

/// Whether one part of the engine can be used now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub part: &'static str,
    /// Why not, when it cannot.
    pub trouble: Option<String>,
}

/// Connects to both servers, waiting for them as long as it takes, and prepares the broker.
pub async fn connect(settings: &Settings) -> Result<Cluster, OpenError> {
    let runtime = EngineRuntime::start()?;
    let broker = RabbitMq::open(&settings.rabbitmq, &settings.prefix, settings.partitions.count, &runtime)?;
    let state = RedisState::open(&settings.redis, &settings.prefix, &runtime)
        .map_err(|reason| OpenError::Setting { setting: "redis", reason })?;
    let fresh = broker.prepare().await?;
    state.wait_until_up().await;
    if fresh {
        sleep(METADATA_DELAY).await;
    }
    Ok(Cluster { state: Arc::new(state), broker: Arc::new(broker) })
}

impl Cluster {
    /// What `/readyz` tells.
    pub async fn health(&self) -> [Health; 2] {
        let broker = self.broker.health().await.err();
        let state = self.state.health().err().map(|error| error.reason);
        [Health { part: "rabbitmq", trouble: broker }, Health { part: "redis", trouble: state }]
    }
}
