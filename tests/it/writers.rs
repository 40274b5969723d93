//! The writers of several partitions on a log that is on the disk.

use std::time::Duration;

use actix::Actor as _;
use drone_delivery::actors::lifeline::Lifeline;
use drone_delivery::actors::writer::{Limits, Writer, WriterHandle};
use drone_delivery::stream::Stream;

use crate::conformance::embedded::Embedded;
use crate::conformance::{StreamFixture, soon};

/// Nobody waits for so long.
const LONG: Duration = Duration::from_secs(3600);

#[actix::test]
async fn what_lingers_is_written_when_there_are_many_in_all() {
    let engine = Embedded::start();
    let limits = Limits {
        waiting: 100,
        batch_lines: 100,
        batch_bytes: 1_000,
        in_flight: 1,
        timeout: LONG,
        few: 3,
        linger: LONG,
        recent_bytes: 0,
    };
    let handles = WriterHandle::group(&limits, 2);
    for (partition, handle) in (0..).zip(&handles) {
        let stream = Stream::Requests(partition);
        handle.slot().set(Writer::new(stream, engine.streams(), limits, handle, Lifeline::unwatched()).start());
    }
    // Several at once: from now on few linger.
    for handle in &handles {
        soon(handle.append(b"x\nx\n", 2)).await.unwrap();
    }
    let (few, many) = (handles[0].append(b"x\n", 1), handles[1].append(b"x\nx\nx\nx\nx\n", 5));
    let (few, many) = soon(async { tokio::join!(few, many) }).await;
    few.unwrap();
    many.unwrap();
}
