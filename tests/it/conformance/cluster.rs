//! The suites on the cluster engine.

use std::sync::Arc;
use std::time::Duration;

use drone_delivery::cluster::runtime::EngineRuntime;
use drone_delivery::config::{Redis, Settings};
use drone_delivery::store::State;
use drone_delivery::store::redis::RedisState;
use drone_delivery::stream::rabbitmq::RabbitMq;
use drone_delivery::stream::{Queues, Streams};

use super::state::StateFixture;
use super::{PARTITIONS, StreamFixture};
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

pub struct OnRedis {
    prefix: String,
    state: Arc<RedisState>,
}

impl OnRedis {
    pub async fn start() -> Self {
        let prefix = fresh_prefix();
        let state = open(&prefix).await;
        Self { prefix, state }
    }
}

async fn open(prefix: &str) -> Arc<RedisState> {
    // As long as everything else waits: the machine may be slow.
    let settings = Redis { url: shared_redis().url(), ca_file: String::new(), timeout: Duration::from_secs(60) };
    let state = RedisState::open(&settings, prefix, &EngineRuntime::start().unwrap()).unwrap();
    state.wait_until_up().await;
    Arc::new(state)
}

#[async_trait::async_trait]
impl StateFixture for OnRedis {
    fn state(&self) -> Arc<dyn State> {
        self.state.clone()
    }

    async fn reopen(&mut self) {
        self.state = open(&self.prefix).await;
    }
}

pub struct OnRabbitMq {
    prefix: String,
    broker: Arc<RabbitMq>,
}

impl OnRabbitMq {
    pub async fn start() -> Self {
        let prefix = fresh_prefix();
        let broker = open_broker(&prefix).await;
        Self { prefix, broker }
    }
}

async fn open_broker(prefix: &str) -> Arc<RabbitMq> {
    let mut settings = Settings::builtin().unwrap().rabbitmq;
    settings.url = shared_rabbitmq().url();
    settings.publish_timeout = Duration::from_secs(60);
    let broker = RabbitMq::open(&settings, prefix, PARTITIONS, &EngineRuntime::start().unwrap()).unwrap();
    broker.prepare().await.unwrap();
    Arc::new(broker)
}

#[async_trait::async_trait]
impl StreamFixture for OnRabbitMq {
    fn streams(&self) -> Arc<dyn Streams> {
        self.broker.clone()
    }

    fn queues(&self) -> Arc<dyn Queues> {
        self.broker.clone()
    }

    async fn reopen(&mut self) {
        self.broker = open_broker(&self.prefix).await;
    }
}

mod streams {
    super::super::streams::streams_suite!(super::OnRabbitMq::start());
}

mod queues {
    super::super::queues::queues_suite!(super::OnRabbitMq::start());
}

mod state {
    super::super::state::state_suite!(super::OnRedis::start());
}
