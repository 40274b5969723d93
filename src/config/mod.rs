//! The settings: typed, complete and checked. `config/default.toml` documents every key and is the schema; [`load`]
//! lays the file, the environment and the flags over it. A new key is a line there and a field here; [`rules`] says
//! what is allowed where a type alone does not.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::crashes::Point;
use crate::domain::PackageSize;

mod load;
mod mask;
mod per_step;
mod rules;

pub use load::{Fault, Faults, Layers};
pub use per_step::PerStep;

/// Everything that can be set, as it is in force.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub engine: Engine,
    pub data_dir: PathBuf,
    pub prefix: String,
    pub roles: Vec<Role>,
    #[serde(rename = "drain_ms", with = "millis")]
    pub drain: Duration,
    pub log: Log,
    pub http: Http,
    pub rabbitmq: RabbitMq,
    pub redis: Redis,
    pub embedded: Embedded,
    pub partitions: Partitions,
    pub ingestion: Ingestion,
    pub scheduler: Scheduler,
    pub checkpoint: Checkpoint,
    pub agents: PerStep<Agent>,
    pub compensation: Compensation,
    pub supervisor: Supervisor,
    pub retention: Retention,
    pub notifications: Notifications,
    pub services: Services,
    pub status: StatusFeed,
    pub demo: Demo,
    pub faults: PerStep<Faulty>,
    pub panics: Panics,
    pub crashes: Crashes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    Embedded,
    Cluster,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Ingestion,
    Scheduler,
    Supervisor,
    Services,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Log {
    pub format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Http {
    pub listen: String,
    /// 0: one per core.
    pub workers: usize,
    pub max_body_bytes: usize,
    pub max_batch_bytes: usize,
    #[serde(rename = "body_timeout_ms", with = "millis")]
    pub body_timeout: Duration,
    #[serde(rename = "head_timeout_ms", with = "millis")]
    pub head_timeout: Duration,
    pub max_connections: usize,
    pub client_header: String,
    pub limit_route: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RabbitMq {
    pub url: String,
    /// Empty: the system's authorities.
    pub ca_file: String,
    pub retention_bytes: u64,
    /// 0: no limit by time.
    pub retention_hours: u32,
    pub segment_bytes: u64,
    #[serde(rename = "publish_timeout_ms", with = "millis")]
    pub publish_timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Redis {
    pub url: String,
    /// Empty: the system's authorities.
    pub ca_file: String,
    #[serde(rename = "timeout_ms", with = "millis")]
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Embedded {
    pub retention_bytes: u64,
    /// 0: no limit by time.
    pub retention_hours: u32,
    pub segment_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Partitions {
    pub count: u32,
    pub assignment: Assignment,
    /// Empty: `$HOSTNAME`.
    pub pod_name: String,
    pub readers: u32,
    #[serde(rename = "lease_ms", with = "millis")]
    pub lease: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Assignment {
    Dynamic,
    Static,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ingestion {
    pub max_waiting: usize,
    pub batch_requests: usize,
    pub batch_bytes: usize,
    pub writes_in_flight: usize,
    #[serde(rename = "linger_ms", with = "millis")]
    pub linger: Duration,
    #[serde(rename = "write_timeout_ms", with = "millis")]
    pub write_timeout: Duration,
    #[serde(rename = "deadline_s", with = "secs")]
    pub deadline: Duration,
    #[serde(rename = "idempotency_ttl_s", with = "secs")]
    pub idempotency_ttl: Duration,
    #[serde(rename = "claim_ttl_ms", with = "millis")]
    pub claim_ttl: Duration,
    pub recent_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scheduler {
    pub mode: Mode,
    pub batch: usize,
    pub max_in_flight: usize,
    #[serde(rename = "complete_by_ms", with = "millis")]
    pub complete_by: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Stream,
    Batch,
    Queue,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub every_requests: u64,
    #[serde(rename = "every_ms", with = "millis")]
    pub every: Duration,
}

/// How one service is called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    /// Empty: the service in this process.
    pub url: String,
    #[serde(rename = "timeout_ms", with = "millis")]
    pub timeout: Duration,
    pub attempts: u32,
    #[serde(rename = "backoff_ms", with = "millis")]
    pub backoff: Duration,
    #[serde(rename = "max_backoff_ms", with = "millis")]
    pub max_backoff: Duration,
    pub batch: usize,
    pub concurrency: usize,
    pub breaker_failures: u32,
    #[serde(rename = "breaker_open_ms", with = "millis")]
    pub breaker_open: Duration,
}

/// How what failed is undone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compensation {
    pub in_flight: u16,
    #[serde(rename = "try_for_ms", with = "millis")]
    pub try_for: Duration,
    pub attempts: u32,
    #[serde(rename = "backoff_ms", with = "millis")]
    pub backoff: Duration,
    #[serde(rename = "max_backoff_ms", with = "millis")]
    pub max_backoff: Duration,
}

/// How owners are told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notifications {
    /// Empty: webhooks are not signed.
    pub webhook_secret: String,
    /// Empty: no mail is sent.
    pub smtp_url: String,
    pub mail_from: String,
    #[serde(rename = "timeout_ms", with = "millis")]
    pub timeout: Duration,
    pub attempts: u32,
    #[serde(rename = "backoff_ms", with = "millis")]
    pub backoff: Duration,
    #[serde(rename = "max_backoff_ms", with = "millis")]
    pub max_backoff: Duration,
}

/// How what nobody holds is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Supervisor {
    #[serde(rename = "sweep_every_ms", with = "millis")]
    pub sweep_every: Duration,
    #[serde(rename = "grace_ms", with = "millis")]
    pub grace: Duration,
}

/// How long what is over is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retention {
    #[serde(rename = "every_ms", with = "millis")]
    pub every: Duration,
    pub batch: usize,
    #[serde(rename = "finished_s", with = "secs")]
    pub finished: Duration,
    #[serde(rename = "scheduled_s", with = "secs")]
    pub scheduled: Duration,
    #[serde(rename = "calendars_s", with = "secs")]
    pub calendars: Duration,
    #[serde(rename = "tombstones_s", with = "secs")]
    pub tombstones: Duration,
    #[serde(rename = "dead_letters_s", with = "secs")]
    pub dead_letters: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Services {
    pub max_weight_kg: f64,
    pub max_size: PackageSize,
    /// Empty: the built-in one.
    pub areas: String,
    /// Empty: the built-in one.
    pub carriers: String,
    pub max_flight_km: f64,
    #[serde(rename = "turnaround_s", with = "secs")]
    pub turnaround: Duration,
    pub zone_resolution: u8,
    pub calendar_cache_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusFeed {
    pub buffer: usize,
    #[serde(rename = "ping_ms", with = "millis")]
    pub ping: Duration,
    pub max_subscribers: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Demo {
    pub enabled: bool,
    pub accounts: u32,
    pub drones: u32,
    pub seed: u64,
    pub time_factor: f64,
}

/// What goes wrong on purpose in one service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Faulty {
    #[serde(rename = "latency_ms", with = "millis")]
    pub latency: Duration,
    #[serde(rename = "latency")]
    pub latency_kind: LatencyKind,
    pub error_rate: f64,
    pub lost_reply_rate: f64,
    pub panic_rate: f64,
}

/// Which actors die on purpose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Panics {
    /// Kinds of actors, by the names of their types.
    pub actors: Vec<String>,
    #[serde(rename = "after_ms", with = "millis")]
    pub after: Duration,
    pub starts: u64,
}

/// Where the process dies on purpose.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crashes {
    pub point: Point,
    pub after: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LatencyKind {
    Fixed,
    Heavy,
}

impl Settings {
    /// Reads the layers over the built-in defaults.
    ///
    /// # Errors
    /// Every fault of every layer at once.
    pub fn load(layers: &Layers) -> Result<Self, Faults> {
        load::load(layers)
    }

    /// The built-in defaults, whatever the environment says.
    ///
    /// # Errors
    /// When the built-in file is broken, which a test rules out.
    pub fn builtin() -> Result<Self, Faults> {
        load::load(&Layers { environment: Some(config::Map::default()), ..Layers::default() })
    }

    /// How long the engine's streams keep a request that can be replayed, as far as time limits it.
    #[must_use]
    pub fn replayable(&self) -> Duration {
        let hours = match self.engine {
            Engine::Embedded => self.embedded.retention_hours,
            Engine::Cluster => self.rabbitmq.retention_hours,
        };
        Duration::from_secs(u64::from(hours) * 3600)
    }

    /// What is in force, as TOML, with the secrets masked.
    #[must_use]
    pub fn to_toml(&self) -> String {
        mask::to_toml(self)
    }

    /// The number at the end of the pod's name (`scheduler-3`), which static assignment goes by.
    #[must_use]
    pub fn ordinal(&self) -> Option<u32> {
        let host = std::env::var("HOSTNAME").unwrap_or_default();
        let name = if self.partitions.pod_name.is_empty() { &host } else { &self.partitions.pod_name };
        name.rsplit('-').next()?.parse().ok()
    }

    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

/// Whole milliseconds in a file, a [`Duration`] in the program.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// The same in seconds.
mod secs {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(value.as_secs())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_secs)
    }
}
