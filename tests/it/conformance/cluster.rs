//! The suites on the cluster engine.

use std::sync::Arc;
use std::time::Duration;

use drone_delivery::cluster::runtime::EngineRuntime;
use drone_delivery::config::Redis;
use drone_delivery::store::State;
use drone_delivery::store::redis::RedisState;

use super::state::StateFixture;
use crate::support::servers::{fresh_prefix, shared_redis};

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

mod state {
    super::super::state::state_suite!(super::OnRedis::start());
}
