//! Which parts this process needs, and whether each is there. `/readyz` reads it.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use serde::Serialize;

/// A check that has not answered by then counts as failed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// The parts of one process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Health(Arc<Mutex<BTreeMap<&'static str, Part>>>);

#[derive(Clone)]
enum Part {
    Up,
    Down(String),
    Asked(Check),
}

/// How one part is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    pub name: &'static str,
    pub up: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Health {
    /// The part is there.
    pub fn up(&self, name: &'static str) {
        self.parts().insert(name, Part::Up);
    }

    /// The part is away, and why.
    pub fn down(&self, name: &'static str, reason: impl Into<String>) {
        self.parts().insert(name, Part::Down(reason.into()));
    }

    /// The part is asked whenever somebody wants to know; an error says why it is away.
    pub fn check<F>(&self, name: &'static str, check: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.parts().insert(name, Part::Asked(Arc::new(move || check().boxed())));
    }

    /// How every part is, by name.
    pub async fn report(&self) -> Vec<Report> {
        let parts: Vec<_> = self.parts().iter().map(|(name, part)| (*name, part.clone())).collect();
        join_all(parts.into_iter().map(|(name, part)| async move {
            let reason = match part {
                Part::Up => None,
                Part::Down(reason) => Some(reason),
                Part::Asked(check) => match tokio::time::timeout(CHECK_TIMEOUT, check()).await {
                    Ok(answer) => answer.err(),
                    Err(_) => Some(format!("no answer within {} s", CHECK_TIMEOUT.as_secs())),
                },
            };
            Report { name, up: reason.is_none(), reason }
        }))
        .await
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<&'static str, Part>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
