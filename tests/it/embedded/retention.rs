//! What is dropped, and what never is.

use std::path::Path;
use std::time::Duration;

use drone_delivery::stream::{From, Stream, Streams};

use super::{P0, P1, all, open, segments};
use crate::conformance::{append, soon};

async fn fill(streams: &dyn Streams, stream: Stream, count: usize) {
    for n in 0..count {
        append(streams, stream, format!("{n:04}-{}", "x".repeat(500))).await;
    }
}

async fn release_all(streams: &dyn Streams, stream: Stream) {
    let next = soon(streams.bounds(stream)).await.expect("bounds").next;
    soon(streams.release(stream, next)).await;
}

fn log_bytes(dir: &Path) -> u64 {
    segments(dir).iter().map(|path| path.metadata().expect("a file").len()).sum()
}

#[tokio::test]
async fn nothing_unreleased_is_dropped() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path()).expect("open");
    fill(&*engine.streams, P0, 50).await;
    let before = all(&*engine.streams, P0).await.expect("read");
    soon(engine.streams.release(P0, 25)).await;
    fill(&*engine.streams, P1, 50).await;
    let first = usize::try_from(engine.streams.bounds(P0).await.expect("bounds").first).expect("an offset");
    assert!(first > 0 && first <= 25, "{first}");
    assert_eq!(all(&*engine.streams, P0).await.expect("read"), before[first..]);
    assert_eq!(all(&*engine.streams, P1).await.expect("read").len(), 50);
    drop(engine);
    let engine = open(dir.path()).expect("open again");
    assert_eq!(all(&*engine.streams, P0).await.expect("read"), before[first..]);
}

#[tokio::test]
async fn a_stream_that_is_held_up_does_not_keep_the_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path()).expect("open");
    append(&*engine.streams, P1, "held up").await;
    for _ in 0..10 {
        fill(&*engine.streams, P0, 20).await;
        release_all(&*engine.streams, P0).await;
    }
    append(&*engine.streams, P0, "now").await;
    assert!(segments(dir.path()).len() <= 3, "{:?}", segments(dir.path()));
    assert_eq!(all(&*engine.streams, P1).await.expect("read"), ["held up"]);
    drop(engine);
    let engine = open(dir.path()).expect("open again");
    assert_eq!(all(&*engine.streams, P1).await.expect("read"), ["held up"]);
}

#[tokio::test]
async fn offsets_go_on_when_all_of_a_stream_was_dropped() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path()).expect("open");
    fill(&*engine.streams, P0, 10).await;
    release_all(&*engine.streams, P0).await;
    for _ in 0..3 {
        fill(&*engine.streams, P1, 20).await;
        release_all(&*engine.streams, P1).await;
    }
    append(&*engine.streams, P1, "last").await;
    let bounds = soon(engine.streams.bounds(P0)).await.expect("bounds");
    assert_eq!((bounds.first, bounds.next), (10, 10), "nothing is left of it");
    drop(engine);
    let engine = open(dir.path()).expect("open again");
    append(&*engine.streams, P0, "eleventh").await;
    let mut reader = soon(engine.streams.read(P0, From::Offset(3))).await.expect("read");
    let entries = soon(reader.next()).await.expect("next");
    assert_eq!((entries[0].offset, &*entries[0].body), (10, &b"eleventh"[..]), "the nearest after the one asked for");
}

#[tokio::test]
async fn what_retention_grants_is_kept_though_released() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut settings = super::settings(dir.path());
    settings.retention_bytes = 40 * 1024;
    let engine = drone_delivery::stream::embedded::open(&settings).expect("open");
    for _ in 0..10 {
        fill(&*engine.streams, P0, 20).await;
        release_all(&*engine.streams, P0).await;
    }
    append(&*engine.streams, P0, "now").await;
    let bytes = log_bytes(dir.path());
    assert!((32 * 1024..=48 * 1024).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn status_goes_with_its_segment_and_dead_letters_stay() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path()).expect("open");
    fill(&*engine.streams, Stream::DeadLetters, 30).await;
    for _ in 0..3 {
        fill(&*engine.streams, Stream::Status, 30).await;
    }
    let status = soon(engine.streams.bounds(Stream::Status)).await.expect("bounds");
    assert!(status.first > 0 && status.next == 90, "{status:?}");
    assert!(log_bytes(dir.path()) <= 3 * 4096);
    assert_eq!(all(&*engine.streams, Stream::DeadLetters).await.expect("read").len(), 30);
}

/// How long the tests below keep what is written.
const SHORT: Duration = Duration::from_millis(400);

/// Writes on and on until something of the stream is dropped; the oldest that is left is no older than it may be.
async fn until_dropped(streams: &dyn Streams, stream: Stream) {
    soon(async {
        while streams.bounds(stream).await.expect("bounds").first == 0 {
            append(streams, stream, "on").await;
            tokio::time::sleep(SHORT / 20).await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_released_goes_by_age_however_little_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut settings = super::settings(dir.path());
    (settings.retention_bytes, settings.max_age) = (u64::MAX, Some(SHORT));
    let engine = drone_delivery::stream::embedded::open(&settings).expect("open");
    append(&*engine.streams, P0, "old").await;
    release_all(&*engine.streams, P0).await;
    until_dropped(&*engine.streams, Stream::Status).await;
    assert_eq!(all(&*engine.streams, P0).await.expect("read"), Vec::<String>::new());
}

#[tokio::test]
async fn dead_letters_go_by_age() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut settings = super::settings(dir.path());
    settings.dead_letters = SHORT;
    let engine = drone_delivery::stream::embedded::open(&settings).expect("open");
    append(&*engine.streams, Stream::DeadLetters, "old").await;
    until_dropped(&*engine.streams, Stream::DeadLetters).await;
}
