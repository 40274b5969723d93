//! The contracts of the engines as tests that know no engine. Each suite is written once, as functions of a fixture,
//! and a macro makes one test of every function for every engine. A fixture makes a fresh engine that shares nothing
//! with any other, and opens it again with what was confirmed still there.

pub mod cluster;
pub mod embedded;
pub mod queues;
pub mod state;
pub mod streams;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drone_delivery::stream::{Entry, Queues, Stream, StreamReader, Streams};

/// How many partitions a fixture's engine has.
pub const PARTITIONS: u32 = 4;

/// Makes one engine's streams and queues for one test.
#[async_trait::async_trait]
pub trait StreamFixture: Send {
    fn streams(&self) -> Arc<dyn Streams>;

    fn queues(&self) -> Arc<dyn Queues>;

    /// Ends the engine's client, or the engine, in an orderly way and starts it again on the same data. The test has
    /// dropped what it got from the fixture.
    async fn reopen(&mut self);
}

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

pub async fn append(streams: &dyn Streams, stream: Stream, body: impl Into<Bytes>) {
    soon(streams.append(stream, body.into())).await.expect("append");
}

/// The next entries of a reader, this many.
pub async fn take(reader: &mut dyn StreamReader, count: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    while entries.len() < count {
        let more = soon(reader.next()).await.expect("next");
        assert!(!more.is_empty(), "there is at least one");
        entries.extend(more);
    }
    assert_eq!(entries.len(), count, "no more than were appended");
    entries
}

/// Whether nothing comes for a while. Nothing is concluded from something being slow.
pub async fn stays_pending<T>(future: impl Future<Output = T>) -> bool {
    tokio::time::timeout(Duration::from_millis(200), future).await.is_err()
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
