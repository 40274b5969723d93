//! The suites on the embedded engine.

use std::sync::Arc;

use drone_delivery::store::State;
use drone_delivery::store::embedded::EmbeddedState;
use tempfile::TempDir;

use super::state::StateFixture;

pub struct Embedded {
    dir: TempDir,
    state: Option<EmbeddedState>,
}

impl Embedded {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let state = Some(EmbeddedState::open(&dir.path().join("state")).expect("open"));
        Self { dir, state }
    }
}

#[async_trait::async_trait]
impl StateFixture for Embedded {
    fn state(&self) -> Arc<dyn State> {
        Arc::new(self.state.clone().expect("it is open"))
    }

    async fn reopen(&mut self) {
        self.state = None;
        self.state = Some(EmbeddedState::open(&self.dir.path().join("state")).expect("open again"));
    }
}

mod state {
    super::super::state::state_suite!(async { super::Embedded::start() });
}
