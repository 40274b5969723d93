//! What keeps the requests goes missing or is full: nothing is accepted that is not kept, and intake comes back.

use std::time::{Duration, Instant};

use lapin::options::QueueDeleteOptions;
use lapin::{Connection, ConnectionProperties};
use serde_json::Value;

use super::checker::{check, list, wait_until_quiet};
use super::load::{Load, Style};
use super::program::Program;
use super::{rounds, turn};
use crate::support::disk::SmallDisk;
use crate::support::process::PATIENCE;
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

async fn delete_stream(name: &str) {
    let connection = Connection::connect(&shared_rabbitmq().url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
    connection.close(200, "done".into()).await.unwrap();
}

/// Everything in the stream was read, so nothing is lost with it; what comes meanwhile is kept or refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_s_stream_is_deleted() {
    let _turn = turn().await;
    let prefix = fresh_prefix();
    let mut program = Program::cluster(shared_rabbitmq(), shared_redis(), &prefix, "");
    program.start().await;
    program.furnish().await;
    let load = Load::start(&[program.port], Style::default());
    for round in 0..rounds(2) {
        load.wait_for_more(100).await;
        load.hold().await;
        wait_until_quiet(program.port).await;
        delete_stream(&format!("{prefix}.requests-{}", round % 4)).await;
        load.go_on();
        load.wait_for_more(100).await;
    }
    let book = load.finish().await;
    check("stream deleted", program.port, book, 400).await;
    let alerts = list(&mut program.client(), "/api/operations/alerts?").await;
    let missing: Vec<&Value> = alerts.iter().filter(|alert| alert["kind"] == "StreamMissing").collect();
    assert!(!missing.is_empty(), "no alert: {alerts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_disk_is_full() {
    let _turn = turn().await;
    let disk = SmallDisk::mount(192);
    let mut program = Program::embedded_in(&disk.path().join("data"), "");
    program.start().await;
    program.furnish().await;
    let load = Load::start(&[program.port], Style::default());
    for _ in 0..rounds(2) {
        load.wait_for_more(100).await;
        let ballast = disk.fill();
        wait_until_refused(&program).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(ballast);
        load.wait_for_more(100).await;
        program.wait_until_ready().await;
    }
    program.kill();
    program.start().await;
    let book = load.finish().await;
    check("disk full", program.port, book, 400).await;
    assert!(!program.log().contains("torn"), "nothing was damaged");
}

async fn wait_until_refused(program: &Program) {
    let deadline = Instant::now() + PATIENCE;
    while program.is_ready().await {
        assert!(Instant::now() < deadline, "a full disk does not show");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
