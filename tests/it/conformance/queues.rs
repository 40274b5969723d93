//! What every [`Queues`] must do.

use std::collections::BTreeMap;

use bytes::Bytes;
use drone_delivery::stream::{DELIVERY_LIMIT, DeadLetter, From, Message, Queue, QueueConsumer, Queues, Settle, Stream};

use super::{StreamFixture, soon, stays_pending, take, until};

/// Makes the suite's tests for one engine, given a future that makes its fixture.
macro_rules! queues_suite {
    ($fixture:expr) => {
        $crate::conformance::suite!(
            queues,
            $fixture,
            [
                messages_come_in_order,
                any_bytes_are_a_body,
                a_large_body_is_kept,
                publishing_nothing_is_fine,
                a_settled_message_is_gone,
                a_settled_message_stays_gone_after_a_restart,
                a_queue_emptied_after_a_restart_is_used_again,
                what_a_dropped_consumer_had_comes_back,
                what_was_unsettled_comes_back_after_a_restart,
                again_brings_a_message_back_and_counts,
                a_message_delivered_too_often_is_dead_lettered,
                prefetch_bounds_what_is_unsettled,
                room_is_made_by_settling_from_another_task,
                competing_consumers_share_the_messages,
                a_waiting_consumer_is_woken,
                depth_counts_what_is_not_settled,
                queues_are_apart,
                concurrent_publishers_lose_nothing,
                some_settled_and_some_not,
            ]
        );
    };
}
pub(crate) use queues_suite;

type Fixture<'a> = &'a mut dyn StreamFixture;

const QUEUE: Queue = Queue::FailedOperations;

async fn publish(queues: &dyn Queues, bodies: &[&'static str]) {
    let bodies = bodies.iter().map(|body| Bytes::from_static(body.as_bytes())).collect();
    soon(queues.publish(QUEUE, bodies)).await.expect("publish");
}

async fn consume(queues: &dyn Queues, prefetch: u16) -> QueueConsumer {
    soon(queues.consume(QUEUE, prefetch)).await.expect("consume")
}

async fn next(consumer: &mut QueueConsumer) -> Message {
    soon(consumer.messages.next()).await.expect("next")
}

async fn settle(consumer: &QueueConsumer, message: &Message, how: Settle) {
    soon(consumer.settler.settle(&[message.tag], how)).await.expect("settle");
}

async fn bodies(consumer: &mut QueueConsumer, count: usize) -> Vec<Bytes> {
    let mut bodies = Vec::new();
    for _ in 0..count {
        bodies.push(next(consumer).await.body);
    }
    bodies
}

async fn depth_becomes(queues: &dyn Queues, queue: Queue, depth: u64) {
    until("the depth is right", || async { queues.depth(queue).await.expect("depth") == depth }).await;
}

pub async fn messages_come_in_order(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    publish(&*queues, &["a", "b"]).await;
    publish(&*queues, &["c"]).await;
    let mut consumer = consume(&*queues, 10).await;
    for expected in ["a", "b", "c"] {
        let message = next(&mut consumer).await;
        assert_eq!((&*message.body, message.redelivered), (expected.as_bytes(), 0));
    }
}

pub async fn any_bytes_are_a_body(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    let every_byte = Bytes::from_iter(0..=255);
    soon(queues.publish(QUEUE, vec![every_byte.clone()])).await.expect("publish");
    assert_eq!(next(&mut consume(&*queues, 1).await).await.body, every_byte);
}

pub async fn a_large_body_is_kept(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    let large = Bytes::from(vec![7; 1024 * 1024]);
    soon(queues.publish(QUEUE, vec![large.clone()])).await.expect("publish");
    assert_eq!(next(&mut consume(&*queues, 1).await).await.body, large);
}

pub async fn publishing_nothing_is_fine(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    publish(&*queues, &[]).await;
    assert!(stays_pending(consume(&*queues, 1).await.messages.next()).await);
}

pub async fn a_settled_message_is_gone(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    publish(&*queues, &["a", "b"]).await;
    let mut consumer = consume(&*queues, 1).await;
    for expected in ["a", "b"] {
        let message = next(&mut consumer).await;
        assert_eq!(message.body, expected);
        settle(&consumer, &message, Settle::Done).await;
    }
    drop(consumer);
    assert!(stays_pending(consume(&*queues, 10).await.messages.next()).await);
    depth_becomes(&*queues, QUEUE, 0).await;
}

pub async fn a_settled_message_stays_gone_after_a_restart(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    publish(&*queues, &["done", "left"]).await;
    let mut consumer = consume(&*queues, 1).await;
    let message = next(&mut consumer).await;
    settle(&consumer, &message, Settle::Done).await;
    depth_becomes(&*queues, QUEUE, 1).await;
    drop((consumer, queues));
    fixture.reopen().await;
    let queues = fixture.queues();
    let mut consumer = consume(&*queues, 10).await;
    assert_eq!(next(&mut consumer).await.body, "left");
    publish(&*queues, &["new"]).await;
    assert_eq!(next(&mut consumer).await.body, "new");
    assert!(stays_pending(consumer.messages.next()).await);
}

pub async fn a_queue_emptied_after_a_restart_is_used_again(fixture: Fixture<'_>) {
    publish(&*fixture.queues(), &["before"]).await;
    fixture.reopen().await;
    let queues = fixture.queues();
    let mut consumer = consume(&*queues, 10).await;
    let message = next(&mut consumer).await;
    settle(&consumer, &message, Settle::Done).await;
    depth_becomes(&*queues, QUEUE, 0).await;
    publish(&*queues, &["after"]).await;
    assert_eq!(next(&mut consumer).await.body, "after");
}

pub async fn what_a_dropped_consumer_had_comes_back(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    publish(&*queues, &["a", "b", "c"]).await;
    let mut consumer = consume(&*queues, 10).await;
    bodies(&mut consumer, 2).await;
    drop(consumer);
    let mut consumer = consume(&*queues, 10).await;
    let first = next(&mut consumer).await;
    assert_eq!(first.body, "a");
    assert!(first.redelivered > 0);
    assert_eq!(bodies(&mut consumer, 2).await, ["b", "c"]);
}

pub async fn what_was_unsettled_comes_back_after_a_restart(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    publish(&*queues, &["a", "b"]).await;
    let mut consumer = consume(&*queues, 1).await;
    next(&mut consumer).await;
    drop((consumer, queues));
    fixture.reopen().await;
    let mut consumer = consume(&*fixture.queues(), 10).await;
    let mut found = bodies(&mut consumer, 2).await;
    found.sort();
    assert_eq!(found, ["a", "b"]);
}

pub async fn again_brings_a_message_back_and_counts(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    publish(&*queues, &["a"]).await;
    let mut consumer = consume(&*queues, 1).await;
    for times in 0..4 {
        let message = next(&mut consumer).await;
        assert_eq!((&*message.body, message.redelivered), (&b"a"[..], times));
        settle(&consumer, &message, Settle::Again).await;
    }
    let message = next(&mut consumer).await;
    settle(&consumer, &message, Settle::Done).await;
    depth_becomes(&*queues, QUEUE, 0).await;
}

pub async fn a_message_delivered_too_often_is_dead_lettered(fixture: Fixture<'_>) {
    let (queues, streams) = (fixture.queues(), fixture.streams());
    publish(&*queues, &["poison"]).await;
    let mut consumer = consume(&*queues, 1).await;
    for _ in 0..=DELIVERY_LIMIT {
        let message = next(&mut consumer).await;
        assert_eq!(message.body, "poison");
        settle(&consumer, &message, Settle::Again).await;
    }
    publish(&*queues, &["good"]).await;
    assert_eq!(next(&mut consumer).await.body, "good", "it holds up nothing");
    let mut reader = soon(streams.read(Stream::DeadLetters, From::First)).await.expect("read");
    let letters = take(&mut *reader, 1).await;
    let letter: DeadLetter = serde_json::from_slice(&letters[0].body).expect("a dead letter");
    assert_eq!((letter.source.as_str(), letter.body.as_str()), ("failed-operations", "poison"));
    assert!(!letter.reason.is_empty());
    depth_becomes(&*queues, QUEUE, 1).await;
}

pub async fn prefetch_bounds_what_is_unsettled(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    publish(&*queues, &["a", "b", "c", "d"]).await;
    let mut consumer = consume(&*queues, 2).await;
    let first = next(&mut consumer).await;
    next(&mut consumer).await;
    assert!(stays_pending(consumer.messages.next()).await, "two are unsettled");
    settle(&consumer, &first, Settle::Done).await;
    assert_eq!(next(&mut consumer).await.body, "c");
    assert!(stays_pending(consumer.messages.next()).await, "two are unsettled again");
}

pub async fn room_is_made_by_settling_from_another_task(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    publish(&*queues, &["a", "b"]).await;
    let mut consumer = consume(&*queues, 1).await;
    let first = next(&mut consumer).await;
    let settler = consumer.settler.clone();
    let waiting = tokio::spawn(async move { next(&mut consumer).await });
    soon(settler.settle(&[first.tag], Settle::Done)).await.expect("settle");
    assert_eq!(soon(waiting).await.expect("task").body, "b");
}

pub async fn competing_consumers_share_the_messages(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    let published = (0..60).map(|n| Bytes::from(format!("{n:02}"))).collect::<Vec<_>>();
    let mut tasks = Vec::new();
    let (done, mut finished) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..3 {
        let mut consumer = consume(&*queues, 4).await;
        let done = done.clone();
        tasks.push(tokio::spawn(async move {
            while let Ok(message) = consumer.messages.next().await {
                soon(consumer.settler.settle(&[message.tag], Settle::Done)).await.expect("settle");
                done.send(message.body).expect("send");
            }
        }));
    }
    soon(queues.publish(QUEUE, published.clone())).await.expect("publish");
    let mut found = Vec::new();
    for _ in 0..published.len() {
        found.push(soon(finished.recv()).await.expect("a message"));
    }
    found.sort();
    assert_eq!(found, published);
    depth_becomes(&*queues, QUEUE, 0).await;
    assert!(finished.try_recv().is_err(), "none came twice");
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}

pub async fn a_waiting_consumer_is_woken(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    let mut consumer = consume(&*queues, 1).await;
    assert!(stays_pending(consumer.messages.next()).await);
    let waiting = tokio::spawn(async move { next(&mut consumer).await.body });
    publish(&*queues, &["a"]).await;
    assert_eq!(soon(waiting).await.expect("task"), "a");
}

pub async fn depth_counts_what_is_not_settled(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    depth_becomes(&*queues, QUEUE, 0).await;
    publish(&*queues, &["a", "b", "c"]).await;
    depth_becomes(&*queues, QUEUE, 3).await;
    let mut consumer = consume(&*queues, 1).await;
    let message = next(&mut consumer).await;
    settle(&consumer, &message, Settle::Done).await;
    depth_becomes(&*queues, QUEUE, 2).await;
}

pub async fn queues_are_apart(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    for queue in Queue::ALL {
        soon(queues.publish(queue, vec![format!("{queue:?}").into()])).await.expect("publish");
    }
    for queue in Queue::ALL {
        let mut consumer = soon(queues.consume(queue, 10)).await.expect("consume");
        assert_eq!(next(&mut consumer).await.body, format!("{queue:?}"));
        assert!(stays_pending(consumer.messages.next()).await);
    }
}

pub async fn concurrent_publishers_lose_nothing(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let queues = queues.clone();
            tokio::spawn(async move {
                for n in 0..10 {
                    let bodies = vec![format!("{task}-{n}").into(), format!("{task}-{n}").into()];
                    soon(queues.publish(QUEUE, bodies)).await.expect("publish");
                }
            })
        })
        .collect();
    let mut consumer = consume(&*queues, 200).await;
    let mut counts = BTreeMap::<Bytes, u32>::new();
    for _ in 0..160 {
        *counts.entry(next(&mut consumer).await.body).or_default() += 1;
    }
    for task in tasks {
        task.await.expect("task");
    }
    assert_eq!(counts.len(), 80);
    assert!(counts.values().all(|count| *count == 2), "{counts:?}");
}

pub async fn some_settled_and_some_not(fixture: Fixture<'_>) {
    let queues = fixture.queues();
    publish(&*queues, &["a", "b", "c", "d"]).await;
    let mut consumer = consume(&*queues, 10).await;
    let mut tags = Vec::new();
    for _ in 0..4 {
        tags.push(next(&mut consumer).await.tag);
    }
    soon(consumer.settler.settle(&[tags[0], tags[2]], Settle::Done)).await.expect("settle");
    depth_becomes(&*queues, QUEUE, 2).await;
    drop(consumer);
    let mut consumer = consume(&*queues, 10).await;
    let mut left = bodies(&mut consumer, 2).await;
    left.sort();
    assert_eq!(left, ["b", "d"]);
    assert!(stays_pending(consumer.messages.next()).await);
}
