//! A broker that is killed, frozen, late or short of memory.

use std::time::Duration;

use drone_delivery::cluster::connect;
use drone_delivery::stream::{AppendError, From, Queue, Queues as _, ReadError, Streams as _};

use super::broker::{REQUESTS, numbers, take, texts};
use super::{open, settings};
use crate::conformance::{soon, until};
use crate::support::servers::{RabbitMq, shared_redis};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_survives_a_killed_broker() {
    let mut server = RabbitMq::start();
    let mut settings = settings(&server, shared_redis());
    // Long enough for a slow machine, and short enough to be tried several times while the broker comes back.
    settings.rabbitmq.publish_timeout = Duration::from_secs(10);
    let cluster = open(&settings).await;
    server.wait_until_it_remembers(&format!("{}.work", settings.prefix));
    let broker = &cluster.broker;
    let mut reader = soon(broker.read(REQUESTS, From::First)).await.unwrap();
    let mut consumer = soon(broker.consume(Queue::Work, 8)).await.unwrap();
    for number in numbers(0..50) {
        soon(broker.append(REQUESTS, number.into())).await.unwrap();
    }
    soon(broker.publish(Queue::Work, vec!["job".into()])).await.unwrap();
    let job = soon(consumer.messages.next()).await.unwrap();
    take(&mut reader, 50).await;

    server.kill();
    assert!(matches!(soon(reader.next()).await, Err(ReadError::Unavailable { .. })));
    assert!(matches!(soon(consumer.messages.next()).await, Err(ReadError::Unavailable { .. })));
    until("appends fail", || async { broker.append(REQUESTS, "lost".into()).await.is_err() }).await;
    until("the trouble is told", || async { cluster.health().await[0].trouble.is_some() }).await;
    assert!(soon(consumer.settler.settle(&[job.tag], drone_delivery::stream::Settle::Done)).await.is_err());

    server.restart();
    until("appends work again", || async { broker.append(REQUESTS, "50".into()).await.is_ok() }).await;
    until("all is well", || async { cluster.health().await.iter().all(|health| health.trouble.is_none()) }).await;
    let mut reader = soon(broker.read(REQUESTS, From::Offset(40))).await.unwrap();
    let entries = take(&mut reader, 11).await;
    assert_eq!(entries[0].offset, 40);
    assert_eq!(texts(&entries[..10]), numbers(40..50));
    let mut consumer = soon(broker.consume(Queue::Work, 8)).await.unwrap();
    assert_eq!(soon(consumer.messages.next()).await.unwrap().body, "job");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_hangs_while_the_broker_is_away_or_frozen() {
    let mut server = RabbitMq::start();
    let mut settings = settings(&server, shared_redis());
    settings.rabbitmq.publish_timeout = Duration::from_secs(2);
    let broker = open(&settings).await.broker;
    let away = async || {
        assert!(soon(broker.append(REQUESTS, "x".into())).await.is_err());
        assert!(soon(broker.publish(Queue::Work, vec!["x".into(); 300])).await.is_err());
        assert!(soon(broker.read(REQUESTS, From::First)).await.is_err());
        assert!(soon(broker.consume(Queue::Work, 1)).await.is_err());
        assert!(soon(broker.bounds(REQUESTS)).await.is_err());
        assert!(soon(broker.depth(Queue::Work)).await.is_err());
        assert!(soon(broker.ensure(REQUESTS)).await.is_err());
    };
    let back = async || {
        until("it works again", || async { broker.append(REQUESTS, "x".into()).await.is_ok() }).await;
        until("it reads again", || async { broker.bounds(REQUESTS).await.is_ok_and(|bounds| bounds.next > 0) }).await;
    };
    back().await;
    server.signal("STOP");
    assert!(matches!(soon(broker.append(REQUESTS, "x".into())).await, Err(AppendError::TimedOut(_))));
    away().await;
    server.signal("CONT");
    back().await;
    server.wait_until_it_remembers(&format!("{}.work", settings.prefix));
    server.kill();
    away().await;
    server.restart();
    back().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_late_is_waited_for() {
    let mut server = RabbitMq::start();
    let settings = settings(&server, shared_redis());
    server.kill();
    let opening = tokio::spawn(async move { connect(&settings).await });
    server.restart();
    let cluster = soon(opening).await.unwrap().expect("the engine opens");
    soon(cluster.broker.append(REQUESTS, "x".into())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_short_of_memory_takes_nothing_and_says_so() {
    let server = RabbitMq::start_with("vm_memory_high_watermark.absolute = 16MiB");
    let mut settings = settings(&server, shared_redis());
    settings.rabbitmq.publish_timeout = Duration::from_secs(3);
    let cluster = open(&settings).await;
    let refused = soon(cluster.broker.append(REQUESTS, "x".into())).await;
    assert!(
        matches!(&refused, Err(AppendError::Unavailable { reason, .. }) if reason.contains("memory")),
        "{refused:?}"
    );
    let [broker, redis] = cluster.health().await;
    assert!(broker.trouble.is_some_and(|trouble| trouble.contains("memory")));
    assert_eq!((broker.part, redis.part, redis.trouble), ("rabbitmq", "redis", None));
}
