//! What only the cluster engine can go through: servers that are killed, frozen, restarted or laid out otherwise.

mod broker;
mod broker_faults;
mod redis;
mod tls;

use std::time::Duration;

use drone_delivery::cluster::{Cluster, connect};
use drone_delivery::config::Settings;

use crate::conformance::soon;
use crate::support::servers::{RabbitMq, Redis, fresh_prefix};

/// Settings for these servers, with a prefix of their own and time-outs that a slow machine does not reach.
pub fn settings(rabbitmq: &RabbitMq, redis: &Redis) -> Settings {
    let mut settings = Settings::builtin().unwrap();
    settings.prefix = fresh_prefix();
    settings.partitions.count = 2;
    settings.rabbitmq.url = rabbitmq.url();
    settings.rabbitmq.publish_timeout = Duration::from_secs(30);
    settings.redis.url = redis.url();
    settings.redis.timeout = Duration::from_secs(30);
    settings
}

pub async fn open(settings: &Settings) -> Cluster {
    soon(connect(settings)).await.expect("the engine opens")
}
