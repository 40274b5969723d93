//! Two processes share the partitions: one is frozen past its lease and thawed, one is killed, one is added. Whoever
//! was taken over is refused, and no checkpoint ever goes back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drone_delivery::cluster::runtime::EngineRuntime;
use drone_delivery::config;
use drone_delivery::store::checkpoints::{Checkpoints, Share};
use drone_delivery::store::redis::RedisState;

use super::checker::check;
use super::load::{Load, Style};
use super::program::{FAULTY_SERVICES, PARTITIONS, Program};
use super::{rounds, turn};
use crate::support::process::{PATIENCE, wait_until};
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

/// Waits until the partitions belong to so many owners, all of them, as this process sees it.
async fn wait_for_owners(program: &Program, owners: usize) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = program.client().get("/api/operations/partitions").await.map(|a| a.json()).unwrap_or_default();
        let names: Vec<_> = seen["items"].as_array().into_iter().flatten().map(|item| &item["owner"]).collect();
        let held = names.len() == PARTITIONS as usize && names.iter().all(|name| name.is_string());
        let different: BTreeSet<_> = names.iter().filter_map(|name| name.as_str()).collect();
        if held && different.len() == owners {
            return;
        }
        assert!(Instant::now() < deadline, "never {owners} owners: {seen}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Looks at the checkpoints all the time and says at the end how often one was smaller than before.
async fn watch_checkpoints(prefix: String, over: Arc<AtomicBool>) -> (u64, usize) {
    let settings =
        config::Redis { url: shared_redis().url(), ca_file: String::new(), timeout: Duration::from_secs(60) };
    let state = RedisState::open(&settings, &prefix, &EngineRuntime::start().unwrap()).unwrap();
    state.wait_until_up().await;
    let checkpoints = Checkpoints::new(Arc::new(state), "watcher", Duration::from_secs(1));
    let mut last = vec![None; PARTITIONS as usize];
    let mut back = 0;
    while !over.load(Ordering::Relaxed) {
        for partition in 0..PARTITIONS {
            let now = checkpoints.load(Share { partition, reader: 0 }).await.unwrap();
            let last = &mut last[partition as usize];
            back += usize::from(now < *last);
            *last = now;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (last.iter().flatten().sum(), back)
}

fn times_taken_over(program: &Program) -> usize {
    let log = program.log();
    ["checkpoint refused: taken over", "partition lost to another owner"]
        .map(|line| log.matches(line).count())
        .iter()
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_frozen_one_killed_one_added() {
    let _turn = turn().await;
    let prefix = fresh_prefix();
    let program = || Program::cluster(shared_rabbitmq(), shared_redis(), &prefix, FAULTY_SERVICES);
    let (mut first, mut second) = (program(), program());
    first.start().await;
    first.furnish().await;
    second.start().await;
    wait_for_owners(&first, 2).await;
    let over = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn(watch_checkpoints(prefix.clone(), over.clone()));
    // It takes a while until leases end, and the load is to last until then.
    let style = Style { pause: Duration::from_millis(100), ..Style::default() };
    let load = Load::start(&[first.port, second.port], style);
    for _ in 0..rounds(2) {
        load.wait_for_more(100).await;
        let before = times_taken_over(&second);
        second.signal("STOP");
        wait_for_owners(&first, 1).await;
        second.signal("CONT");
        wait_until("the thawed one is told", || times_taken_over(&second) > before);
        wait_for_owners(&first, 2).await;
    }
    for _ in 0..rounds(1) {
        load.wait_for_more(50).await;
        second.kill();
        wait_for_owners(&first, 1).await;
        second.start().await;
        wait_for_owners(&first, 2).await;
        let mut third = program();
        third.start().await;
        wait_for_owners(&first, 3).await;
        load.wait_for_more(50).await;
        third.kill();
        wait_for_owners(&first, 2).await;
    }
    let book = load.finish().await;
    check("two owners", first.port, book, 250).await;
    over.store(true, Ordering::Relaxed);
    let (reached, back) = watching.await.unwrap();
    assert!(reached > 0, "checkpoints were seen");
    assert_eq!(back, 0, "a checkpoint went back");
}
