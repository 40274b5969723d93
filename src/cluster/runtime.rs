//! The runtime that the engine's connections live on. Those who call come from runtimes that come and go (an actix
//! arbiter is one), and a connection must outlive them.

use std::io;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};

/// Ends with its last holder, without waiting: holders may be dropped inside another runtime.
#[derive(Clone)]
pub struct EngineRuntime(Arc<Owned>);

struct Owned(Option<Runtime>, Handle);

impl EngineRuntime {
    /// One worker: it only moves bytes between sockets and those who wait for them.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("engine").enable_all().build()?;
        let handle = runtime.handle().clone();
        Ok(Self(Arc::new(Owned(Some(runtime), handle))))
    }

    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.0.1
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
