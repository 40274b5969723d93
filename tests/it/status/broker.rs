//! The feed on RabbitMQ: several processes, and a broker that is killed.

use std::sync::Arc;
use std::time::Duration;

use drone_delivery::cluster::runtime::EngineRuntime;
use drone_delivery::config::Settings;
use drone_delivery::stream::Streams;
use drone_delivery::stream::rabbitmq::RabbitMq;

use super::client::{Heard, Watcher, id, number, numbers};
use super::rig::{Rig, settings};
use crate::support::servers::{self, fresh_prefix, shared_rabbitmq};

async fn streams(url: String, prefix: &str) -> Arc<dyn Streams> {
    let mut settings = Settings::builtin().unwrap().rabbitmq;
    settings.url = url;
    settings.publish_timeout = Duration::from_secs(10);
    let broker = RabbitMq::open(&settings, prefix, 1, &EngineRuntime::start().unwrap()).unwrap();
    broker.prepare().await.unwrap();
    Arc::new(broker)
}

#[actix::test]
async fn who_changes_the_process_misses_nothing() {
    let prefix = fresh_prefix();
    let url = tokio::task::spawn_blocking(|| shared_rabbitmq().url()).await.unwrap();
    let one = Rig::on(streams(url.clone(), &prefix).await, &settings());
    let two = Rig::on(streams(url, &prefix).await, &settings());
    one.append(3).await;
    let mut watcher = Watcher::open(&one, "?since=0-0").await;
    assert_eq!(numbers(&watcher.events(2).await), [1, 2]);
    for _ in 0..30 {
        one.append(4).await;
    }
    let last = watcher.events(10).await.pop().unwrap();
    drop(watcher);
    let mut back = Watcher::open(&two, &format!("?since={}", id(&last))).await;
    assert_eq!(numbers(&back.events(110).await), (13..123).collect::<Vec<_>>());
    one.append(2).await;
    assert_eq!(numbers(&back.events(2).await), [123, 124]);
}

/// What was not confirmed is written again and may then be there twice, so a number may come again right after itself;
/// none is ever left out.
#[actix::test]
async fn a_broker_that_is_killed_costs_no_event() {
    let mut broker = tokio::task::spawn_blocking(servers::RabbitMq::start).await.unwrap();
    let rig = Rig::on(streams(broker.url(), "feed").await, &settings());
    let mut watcher = Watcher::open(&rig, "").await;
    rig.until_live(1).await;
    rig.append(10).await;
    let mut last = id(&watcher.events(10).await[9]).to_owned();

    let (broker, ()) = futures_util::future::join(
        async {
            tokio::task::spawn_blocking(move || {
                broker.restart();
                broker
            })
            .await
            .unwrap()
        },
        async {
            for _ in 0..20 {
                rig.append(10).await;
            }
        },
    )
    .await;

    let mut next = 10;
    while next < rig.made() {
        match watcher.hear().await {
            Heard::Ping => {}
            Heard::Event(event) if event["type"] == "Lagged" => {}
            Heard::Event(event) => {
                assert!(number(&event) <= next, "{next} was left out: {event}");
                next = next.max(number(&event) + 1);
                last = id(&event).to_owned();
            }
            Heard::Closed(_) => watcher = Watcher::open(&rig, &format!("?since={last}")).await,
        }
    }
    drop(broker);
}
