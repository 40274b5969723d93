//! A message among the failed operations that nobody can read is tried more than twenty times, ends up among the dead
//! letters, and holds up nothing behind it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use drone_delivery::config::Settings;
use drone_delivery::stream::{DELIVERY_LIMIT, Queue, Queues, embedded};

use super::checker::{check, list};
use super::load::{Load, Style};
use super::program::{PARTITIONS, Program};
use super::turn;
use crate::support::process::PATIENCE;
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

const POISON: &[u8] = b"no delivery has such an id";

async fn put_in(queues: &dyn Queues) {
    queues.publish(Queue::FailedOperations, vec![Bytes::from_static(POISON)]).await.unwrap();
}

async fn it_is_set_aside(name: &str, mut program: Program) {
    program.start().await;
    program.furnish().await;
    let load = Load::start(&[program.port], Style { cancel_every: 2, ..Style::default() });
    load.wait_for_more(100).await;
    let deadline = Instant::now() + PATIENCE;
    let letter = loop {
        let letters = list(&mut program.client(), "/api/operations/deadletters?limit=100").await;
        if let Some(letter) =
            letters.into_iter().find(|letter| letter["body"].as_str().is_some_and(|b| b.as_bytes() == POISON))
        {
            break letter;
        }
        assert!(Instant::now() < deadline, "it never came");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(letter["source"], "failed-operations", "{letter}");
    let tries = program.log().matches("without a delivery id was put back").count();
    assert!(tries >= DELIVERY_LIMIT as usize, "only {tries} tries");
    let book = load.finish().await;
    check(name, program.port, book, 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_engine() {
    let _turn = turn().await;
    let program = Program::embedded("");
    let settings = embedded::Settings {
        data_dir: program.data.clone(),
        partitions: PARTITIONS,
        segment_bytes: 67_108_864,
        retention_bytes: 1_073_741_824,
        max_age: None,
        dead_letters: Duration::from_secs(3_600),
    };
    let engine = embedded::open(&settings).unwrap();
    put_in(&*engine.queues).await;
    drop(engine);
    it_is_set_aside("poison, embedded", program).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_engine() {
    let _turn = turn().await;
    let prefix = fresh_prefix();
    let program = Program::cluster(shared_rabbitmq(), shared_redis(), &prefix, "");
    let mut settings = Settings::builtin().unwrap();
    settings.rabbitmq.url = shared_rabbitmq().url();
    settings.redis.url = shared_redis().url();
    settings.partitions.count = PARTITIONS;
    settings.prefix = prefix;
    let engine = drone_delivery::cluster::connect(&settings).await.unwrap();
    put_in(&*engine.broker).await;
    it_is_set_aside("poison, cluster", program).await;
}
