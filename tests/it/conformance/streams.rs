//! What every [`Streams`](drone_delivery::stream::Streams) must do.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use drone_delivery::domain::time;
use drone_delivery::stream::{Bounds, Entry, From, Stream};
use futures_util::FutureExt;

use super::{PARTITIONS, StreamFixture, append, soon, stays_pending, take, until};

/// Makes the suite's tests for one engine, given a future that makes its fixture.
macro_rules! streams_suite {
    ($fixture:expr) => {
        $crate::conformance::suite!(
            streams,
            $fixture,
            [
                an_empty_stream_has_nothing_to_read,
                appends_that_wait_for_each_other_keep_their_order,
                offsets_are_contiguous_from_the_first,
                any_bytes_are_a_body,
                a_large_body_is_kept,
                an_entry_knows_when_it_was_written,
                reading_goes_on_from_an_offset,
                reading_from_the_next_offset_waits_for_it,
                an_offset_past_the_end_gets_what_comes_next,
                new_brings_only_what_comes,
                a_waiting_reader_is_woken,
                a_dropped_next_loses_nothing,
                many_readers_see_the_same,
                streams_are_apart,
                every_stream_of_the_installation_is_there,
                concurrent_appends_all_arrive_once,
                a_dropped_append_is_still_written,
                bounds_follow_the_appends,
                a_long_backlog_is_read_in_order,
                everything_is_there_after_a_restart,
                what_was_released_is_not_in_the_way,
                ensure_is_harmless,
            ]
        );
    };
}
pub(crate) use streams_suite;

type Fixture<'a> = &'a mut dyn StreamFixture;

const P0: Stream = Stream::Requests(0);
const P1: Stream = Stream::Requests(1);

fn bodies(entries: &[Entry]) -> Vec<&str> {
    entries.iter().map(|entry| std::str::from_utf8(&entry.body).expect("text")).collect()
}

pub async fn an_empty_stream_has_nothing_to_read(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    for from in [From::First, From::Offset(0), From::New] {
        let mut reader = soon(streams.read(P0, from)).await.expect("read");
        assert!(stays_pending(reader.next()).await, "{from:?}");
    }
}

pub async fn appends_that_wait_for_each_other_keep_their_order(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    for body in ["a", "b", "c"] {
        append(&*streams, P0, body).await;
    }
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    assert_eq!(bodies(&take(&mut *reader, 3).await), ["a", "b", "c"]);
}

pub async fn offsets_are_contiguous_from_the_first(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    for n in 0..20 {
        append(&*streams, P0, format!("{n}")).await;
        append(&*streams, P1, "another stream").await;
    }
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let entries = take(&mut *reader, 20).await;
    let first = entries[0].offset;
    for (expected, entry) in (first..).zip(&entries) {
        assert_eq!(entry.offset, expected);
        assert_eq!(entry.body, (expected - first).to_string());
    }
}

pub async fn any_bytes_are_a_body(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    let every_byte = Bytes::from_iter(0..=255);
    append(&*streams, P0, every_byte.clone()).await;
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    assert_eq!(take(&mut *reader, 1).await[0].body, every_byte);
}

pub async fn a_large_body_is_kept(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    let large = Bytes::from_iter((0..1024 * 1024_u32).map(|n| n.to_le_bytes()[1]));
    append(&*streams, P0, "before").await;
    append(&*streams, P0, large.clone()).await;
    append(&*streams, P0, "after").await;
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let entries = take(&mut *reader, 3).await;
    assert_eq!(entries[0].body, "before");
    assert_eq!(entries[1].body, large);
    assert_eq!(entries[2].body, "after");
}

pub async fn an_entry_knows_when_it_was_written(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    let second = Duration::from_secs(1);
    let before = time::now();
    append(&*streams, P0, "x").await;
    let after = time::now();
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let at = take(&mut *reader, 1).await[0].at;
    assert!(time::later(at, second) >= before && at <= time::later(after, second), "{before} {at} {after}");
}

pub async fn reading_goes_on_from_an_offset(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    for n in 0..10 {
        append(&*streams, P0, format!("{n}")).await;
    }
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let all = take(&mut *reader, 10).await;
    for (n, entry) in all.iter().enumerate() {
        let mut reader = soon(streams.read(P0, From::Offset(entry.offset))).await.expect("read");
        let rest = take(&mut *reader, 10 - n).await;
        assert_eq!(rest[0].offset, entry.offset);
        assert_eq!(bodies(&rest), bodies(&all[n..]));
    }
}

pub async fn reading_from_the_next_offset_waits_for_it(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    append(&*streams, P0, "old").await;
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let next = take(&mut *reader, 1).await[0].offset + 1;
    let mut reader = soon(streams.read(P0, From::Offset(next))).await.expect("read");
    assert!(stays_pending(reader.next()).await);
    append(&*streams, P0, "new").await;
    let entries = take(&mut *reader, 1).await;
    assert_eq!((entries[0].offset, bodies(&entries)), (next, vec!["new"]));
}

pub async fn an_offset_past_the_end_gets_what_comes_next(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    append(&*streams, P0, "old").await;
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let next = take(&mut *reader, 1).await[0].offset + 1;
    let mut reader = soon(streams.read(P0, From::Offset(next + 1000))).await.expect("read");
    assert!(stays_pending(reader.next()).await, "nothing old comes");
    append(&*streams, P0, "new").await;
    assert_eq!(take(&mut *reader, 1).await[0].offset, next, "so whoever asked can see the difference");
}

pub async fn new_brings_only_what_comes(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    append(&*streams, P0, "old").await;
    let mut reader = soon(streams.read(P0, From::New)).await.expect("read");
    assert!(stays_pending(reader.next()).await);
    append(&*streams, P0, "new").await;
    assert_eq!(bodies(&take(&mut *reader, 1).await), ["new"]);
}

pub async fn a_waiting_reader_is_woken(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    let mut reader = soon(streams.read(P0, From::New)).await.expect("read");
    assert!(stays_pending(reader.next()).await);
    let waiting = tokio::spawn(async move { take(&mut *reader, 2).await });
    append(&*streams, P0, "one").await;
    append(&*streams, P0, "two").await;
    assert_eq!(bodies(&soon(waiting).await.expect("task")), ["one", "two"]);
}

pub async fn a_dropped_next_loses_nothing(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    for round in 0..5 {
        let dropped = reader.next().now_or_never();
        assert!(dropped.is_none(), "everything before was taken");
        append(&*streams, P0, format!("{round}")).await;
        assert_eq!(bodies(&take(&mut *reader, 1).await), [round.to_string()]);
    }
}

pub async fn many_readers_see_the_same(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
        tasks.push(tokio::spawn(async move { take(&mut *reader, 50).await }));
    }
    for n in 0..50 {
        append(&*streams, P0, format!("{n}")).await;
    }
    let expected: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    for task in tasks {
        assert_eq!(bodies(&soon(task).await.expect("task")), expected);
    }
}

pub async fn streams_are_apart(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    let all = [P0, P1, Stream::Status, Stream::DeadLetters];
    for stream in all {
        append(&*streams, stream, format!("{stream:?}")).await;
    }
    for stream in all {
        let mut reader = soon(streams.read(stream, From::First)).await.expect("read");
        assert_eq!(bodies(&take(&mut *reader, 1).await), [format!("{stream:?}")]);
        assert!(stays_pending(reader.next()).await, "{stream:?}");
    }
}

pub async fn every_stream_of_the_installation_is_there(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    let all = (0..PARTITIONS).map(Stream::Requests).chain([Stream::Status, Stream::DeadLetters]);
    for stream in all {
        append(&*streams, stream, "x").await;
        soon(streams.bounds(stream)).await.expect("bounds");
    }
}

pub async fn concurrent_appends_all_arrive_once(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    let tasks: Vec<_> = (0..16)
        .map(|task| {
            let streams = streams.clone();
            tokio::spawn(async move {
                for n in 0..25 {
                    append(&*streams, P0, format!("{task:02}-{n:02}")).await;
                }
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.expect("task");
    }
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let entries = take(&mut *reader, 400).await;
    assert!(entries.windows(2).all(|pair| pair[0].offset + 1 == pair[1].offset));
    let mut by_task = vec![Vec::new(); 16];
    for body in bodies(&entries) {
        let (task, n) = body.split_once('-').expect("two numbers");
        by_task[task.parse::<usize>().expect("a number")].push(n.parse::<u32>().expect("a number"));
    }
    for numbers in by_task {
        assert_eq!(numbers, Vec::from_iter(0..25), "one task's appends keep their order");
    }
}

pub async fn a_dropped_append_is_still_written(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    append(&*streams, P0, "the engine is up").await;
    for n in 0..10 {
        let _ = streams.append(P0, format!("{n}").into()).now_or_never();
    }
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let entries = take(&mut *reader, 11).await;
    let found: BTreeSet<&str> = bodies(&entries).into_iter().collect();
    assert_eq!(found.len(), 11, "{found:?}");
}

pub async fn bounds_follow_the_appends(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    for n in 0..5 {
        append(&*streams, P0, format!("{n}")).await;
    }
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let first = take(&mut *reader, 5).await[0].offset;
    let expected = Bounds { first, next: first + 5 };
    until("the bounds are known", || async { streams.bounds(P0).await.expect("bounds") == expected }).await;
    append(&*streams, P0, "one more").await;
    let expected = Bounds { first, next: first + 6 };
    until("the bounds follow", || async { streams.bounds(P0).await.expect("bounds") == expected }).await;
}

pub async fn a_long_backlog_is_read_in_order(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    let count = 2000;
    let mut writes = Vec::new();
    for n in 0..count {
        // A write that waits for its turn is not yet an append, so let some be confirmed now and then.
        writes.push(streams.append(P0, Bytes::from(vec![b'x'; 10 + n % 700])));
        if writes.len() == 100 {
            for written in soon(futures_util::future::join_all(writes.drain(..))).await {
                written.expect("append");
            }
        }
    }
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let entries = take(&mut *reader, count).await;
    assert!(entries.windows(2).all(|pair| pair[0].offset + 1 == pair[1].offset));
    let lengths = |lengths: &mut dyn Iterator<Item = usize>| {
        let mut lengths = Vec::from_iter(lengths);
        lengths.sort_unstable();
        lengths
    };
    let expected = lengths(&mut (0..count).map(|n| 10 + n % 700));
    assert_eq!(lengths(&mut entries.iter().map(|entry| entry.body.len())), expected);
}

pub async fn everything_is_there_after_a_restart(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    for n in 0..30 {
        append(&*streams, P0, format!("{n}")).await;
    }
    append(&*streams, Stream::DeadLetters, "a dead letter").await;
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let before = take(&mut *reader, 30).await;
    drop((reader, streams));
    fixture.reopen().await;
    let streams = fixture.streams();
    append(&*streams, P0, "30").await;
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let after = take(&mut *reader, 31).await;
    assert_eq!(bodies(&after[..30]), bodies(&before));
    assert_eq!(after[0].offset, before[0].offset);
    assert_eq!(after[30].offset, before[29].offset + 1, "offsets go on");
    let mut reader = soon(streams.read(Stream::DeadLetters, From::First)).await.expect("read");
    assert_eq!(bodies(&take(&mut *reader, 1).await), ["a dead letter"]);
}

pub async fn what_was_released_is_not_in_the_way(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    append(&*streams, P0, "a").await;
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    let next = take(&mut *reader, 1).await[0].offset + 1;
    soon(streams.release(P0, next)).await;
    append(&*streams, P0, "b").await;
    let entries = take(&mut *reader, 1).await;
    assert_eq!((entries[0].offset, bodies(&entries)), (next, vec!["b"]));
}

pub async fn ensure_is_harmless(fixture: Fixture<'_>) {
    let streams = fixture.streams();
    append(&*streams, P0, "a").await;
    soon(streams.ensure(P0)).await.expect("ensure");
    let mut reader = soon(streams.read(P0, From::First)).await.expect("read");
    assert_eq!(bodies(&take(&mut *reader, 1).await), ["a"]);
}
