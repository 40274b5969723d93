//! The suites on the embedded engine.

use std::path::Path;
use std::sync::Arc;

use drone_delivery::store::State;
use drone_delivery::stream::embedded::{self, Settings};
use drone_delivery::stream::{Queues, Streams};
use tempfile::TempDir;

use super::state::StateFixture;
use super::{PARTITIONS, StreamFixture};

pub struct Embedded {
    dir: TempDir,
    engine: Option<embedded::Embedded>,
}

fn open(dir: &Path) -> embedded::Embedded {
    let data_dir = dir.join("data");
    // Small segments, so that every test that writes much goes over several.
    embedded::open(&Settings {
        data_dir,
        partitions: PARTITIONS,
        segment_bytes: 64 * 1024,
        retention_bytes: 0,
        max_age: None,
        dead_letters: std::time::Duration::from_secs(3600),
    })
    .expect("open")
}

impl Embedded {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Some(open(dir.path()));
        Self { dir, engine }
    }

    fn engine(&self) -> &embedded::Embedded {
        self.engine.as_ref().expect("it is open")
    }

    fn restart(&mut self) {
        self.engine = None;
        self.engine = Some(open(self.dir.path()));
    }
}

#[async_trait::async_trait]
impl StateFixture for Embedded {
    fn state(&self) -> Arc<dyn State> {
        self.engine().state.clone()
    }

    async fn reopen(&mut self) {
        self.restart();
    }
}

#[async_trait::async_trait]
impl StreamFixture for Embedded {
    fn streams(&self) -> Arc<dyn Streams> {
        self.engine().streams.clone()
    }

    fn queues(&self) -> Arc<dyn Queues> {
        self.engine().queues.clone()
    }

    async fn reopen(&mut self) {
        self.restart();
    }
}

mod state {
    super::super::state::state_suite!(async { super::Embedded::start() });
}

mod streams {
    super::super::streams::streams_suite!(async { super::Embedded::start() });
}

mod queues {
    super::super::queues::queues_suite!(async { super::Embedded::start() });
}
