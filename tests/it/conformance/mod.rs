//! The contracts of the engines as tests that know no engine. Each suite is written once, as functions of a fixture,
//! and a macro makes one test of every function for every engine. A fixture makes a fresh engine that shares nothing
//! with any other, and opens it again with what was confirmed still there.

pub mod cluster;
pub mod embedded;
pub mod state;

use std::future::Future;
use std::time::Duration;

/// How long a test waits for what must come: long, as the machine may be slow.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a future that must come.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it did not come in time")
}

/// Waits until something holds.
pub async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let poll = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, poll).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

/// Makes one test of every named function of a suite, in the module it is called in.
macro_rules! suite {
    ($suite:ident, $fixture:expr, [$($test:ident),* $(,)?]) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                $crate::conformance::$suite::$test(&mut $fixture.await).await;
            }
        )*
    };
}
pub(crate) use suite;
