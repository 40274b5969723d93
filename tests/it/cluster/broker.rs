//! RabbitMQ's ways that the other engine does not have.

use std::time::Duration;

use bytes::Bytes;
use drone_delivery::cluster::{OpenError, connect};
use drone_delivery::stream::{
    AppendError, Bounds, DELIVERY_LIMIT, DeadLetter, Entry, From, Queue, Queues as _, ReadError, Settle, Stream,
    StreamReader, Streams as _,
};
use lapin::options::QueueDeleteOptions;
use lapin::{Connection, ConnectionProperties};

use super::{open, settings};
use crate::conformance::soon;
use crate::support::process::wait_until;
use crate::support::servers::{RabbitMq, shared_rabbitmq, shared_redis};

pub const REQUESTS: Stream = Stream::Requests(0);

/// Reads this many entries.
pub async fn take(reader: &mut Box<dyn StreamReader>, count: usize) -> Vec<Entry> {
    let mut entries = Vec::new();
    while entries.len() < count {
        entries.extend(soon(reader.next()).await.expect("entries"));
    }
    entries
}

pub fn texts(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| String::from_utf8(entry.body.to_vec()).unwrap()).collect()
}

pub fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn bounds_follow_the_appends() {
    let broker = open(&settings(shared_rabbitmq(), shared_redis())).await.broker;
    assert_eq!(soon(broker.bounds(REQUESTS)).await.unwrap(), Bounds { first: 0, next: 0 });
    for next in 1..20 {
        soon(broker.append(REQUESTS, "x".into())).await.unwrap();
        assert_eq!(soon(broker.bounds(REQUESTS)).await.unwrap(), Bounds { first: 0, next });
    }
    let appends = (0..200).map(|_| broker.append(REQUESTS, "x".into()));
    soon(futures_util::future::try_join_all(appends)).await.unwrap();
    assert_eq!(soon(broker.bounds(REQUESTS)).await.unwrap().next, 219);
}

#[tokio::test]
async fn a_message_delivered_too_often_reads_like_any_dead_letter() {
    let broker = open(&settings(shared_rabbitmq(), shared_redis())).await.broker;
    let ours = DeadLetter {
        at: drone_delivery::domain::time::now(),
        source: "requests-0@1:2".into(),
        reason: "not a request".into(),
        body: "{".into(),
    };
    soon(broker.append(Stream::DeadLetters, serde_json::to_vec(&ours).unwrap().into())).await.unwrap();
    soon(broker.publish(Queue::FailedOperations, vec![Bytes::from_static(b"poison")])).await.unwrap();
    let mut consumer = soon(broker.consume(Queue::FailedOperations, 4)).await.unwrap();
    for before in 0..=DELIVERY_LIMIT {
        let message = soon(consumer.messages.next()).await.unwrap();
        assert_eq!(message.redelivered, before);
        soon(consumer.settler.settle(&[message.tag], Settle::Again)).await.unwrap();
    }
    let mut reader = soon(broker.read(Stream::DeadLetters, From::First)).await.unwrap();
    let letters: Vec<DeadLetter> =
        texts(&take(&mut reader, 2).await).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(letters[0], ours);
    assert_eq!((letters[1].source.as_str(), letters[1].body.as_str()), ("failed-operations", "poison"));
    assert!(letters[1].reason.contains("20 times"), "{}", letters[1].reason);
}

/// A broker closes a channel that keeps something unacknowledged for half an hour.
#[tokio::test]
async fn a_reader_of_a_quiet_stream_keeps_nothing_unacknowledged() {
    let rabbitmq = RabbitMq::start();
    let broker = open(&settings(&rabbitmq, shared_redis())).await.broker;
    for number in numbers(0..3) {
        soon(broker.append(REQUESTS, number.into())).await.unwrap();
    }
    let mut reader = soon(broker.read(REQUESTS, From::First)).await.unwrap();
    take(&mut reader, 3).await;
    assert_eq!(rabbitmq.unacknowledged(), 3, "an acknowledgement for a few costs too much");
    tokio::time::pause();
    let nothing = tokio::time::timeout(Duration::from_secs(120), reader.next()).await;
    tokio::time::resume();
    assert!(nothing.is_err(), "nothing came");
    wait_until("the acknowledgement", || rabbitmq.unacknowledged() == 0);
    soon(broker.append(REQUESTS, "3".into())).await.unwrap();
    assert_eq!(texts(&take(&mut reader, 1).await), ["3"]);
}

#[tokio::test]
async fn what_no_stream_takes_is_never_confirmed() {
    let settings = settings(shared_rabbitmq(), shared_redis());
    let broker = open(&settings).await.broker;
    soon(broker.append(REQUESTS, "0".into())).await.unwrap();
    let mut reader = soon(broker.read(REQUESTS, From::First)).await.unwrap();
    take(&mut reader, 1).await;
    delete(&format!("{}.requests-0", settings.prefix)).await;
    delete(&format!("{}.work", settings.prefix)).await;
    assert!(matches!(soon(reader.next()).await, Err(ReadError::Missing(_))));
    // More than once, and both alone and in numbers: the channel is used again.
    for _ in 0..3 {
        assert!(matches!(soon(broker.append(REQUESTS, "x".into())).await, Err(AppendError::Unroutable(_))));
        let bodies = vec![Bytes::from_static(b"x"); 20];
        assert!(matches!(soon(broker.publish(Queue::Work, bodies)).await, Err(AppendError::Unroutable(_))));
    }
    assert!(matches!(soon(broker.read(REQUESTS, From::First)).await, Err(ReadError::Missing(_))));
    assert!(matches!(soon(broker.bounds(REQUESTS)).await, Err(ReadError::Missing(_))));
    assert!(matches!(soon(broker.depth(Queue::Work)).await, Err(ReadError::Missing(_))));
    soon(broker.append(Stream::Requests(1), "others go on".into())).await.unwrap();
    soon(broker.ensure(REQUESTS)).await.unwrap();
    soon(broker.ensure(REQUESTS)).await.unwrap();
    soon(broker.append(REQUESTS, "again".into())).await.unwrap();
    let mut reader = soon(broker.read(REQUESTS, From::First)).await.unwrap();
    assert_eq!(texts(&take(&mut reader, 1).await), ["again"]);
}

async fn delete(queue: &str) {
    let connection = Connection::connect(&shared_rabbitmq().url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
}

#[tokio::test]
async fn another_partition_count_is_refused() {
    let mut settings = settings(shared_rabbitmq(), shared_redis());
    open(&settings).await;
    settings.partitions.count = 3;
    let refused = soon(connect(&settings)).await;
    assert!(matches!(refused, Err(OpenError::OtherPartitionCount { found: Some(2) })), "{:?}", refused.err());
    settings.partitions.count = 2;
    settings.rabbitmq.retention_hours += 1;
    // A stream that is there keeps its retention; that is no reason to refuse it.
    let broker = open(&settings).await.broker;
    soon(broker.append(REQUESTS, "x".into())).await.unwrap();
}

#[tokio::test]
async fn prefixes_keep_installations_apart() {
    let (one, two) = (settings(shared_rabbitmq(), shared_redis()), settings(shared_rabbitmq(), shared_redis()));
    let (one, two) = (open(&one).await.broker, open(&two).await.broker);
    soon(one.append(REQUESTS, "one".into())).await.unwrap();
    soon(two.append(REQUESTS, "two".into())).await.unwrap();
    for (broker, expected) in [(&one, "one"), (&two, "two")] {
        assert_eq!(soon(broker.bounds(REQUESTS)).await.unwrap(), Bounds { first: 0, next: 1 });
        let mut reader = soon(broker.read(REQUESTS, From::First)).await.unwrap();
        assert_eq!(texts(&take(&mut reader, 1).await), [expected]);
    }
}

#[test]
fn runtimes_come_and_go() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cluster = runtime().block_on(open(&settings(shared_rabbitmq(), shared_redis())));
    let broker = cluster.broker;
    let mut reader = runtime().block_on(broker.read(REQUESTS, From::First)).unwrap();
    for round in 0..3_u64 {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let broker = broker.clone();
                std::thread::spawn(move || runtime().block_on(broker.append(REQUESTS, "x".into())).unwrap())
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let entries = runtime().block_on(take(&mut reader, 4));
        assert_eq!(entries.last().unwrap().offset, round * 4 + 3);
    }
}
