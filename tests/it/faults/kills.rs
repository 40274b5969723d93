//! The program is killed at random points under load, with services that fail, lose their replies and are slow, and
//! started again each time: while it serves, while it replays, while it starts.

use std::time::Duration;

use super::checker::check;
use super::load::{Load, Style};
use super::program::{FAULTY_SERVICES, Program};
use super::{rounds, turn};
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

async fn kill_again_and_again(name: &str, mut program: Program, style: Style, kills: u32) {
    program.start().await;
    program.furnish().await;
    let load = Load::start(&[program.port], style);
    load.wait_for_more(100).await;
    for kill in 0..kills {
        tokio::time::sleep(Duration::from_millis(rand::random_range(20..500))).await;
        program.kill();
        program.spawn();
        // Every third one is killed wherever it is on its way up.
        if kill % 3 != 2 {
            program.wait_until_ready().await;
        }
    }
    program.wait_until_ready().await;
    load.wait_for_more(100).await;
    let book = load.finish().await;
    check(name, program.port, book, 300).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    let _turn = turn().await;
    kill_again_and_again("kills, embedded", Program::embedded(FAULTY_SERVICES), Style::default(), rounds(35)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster() {
    let _turn = turn().await;
    let program = Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), FAULTY_SERVICES);
    kill_again_and_again("kills, cluster", program, Style::default(), rounds(25)).await;
}

/// Everything is cancelled, so that the kills fall between the steps of the undoing and their records.
fn undoing() -> Style {
    Style { cancel_every: 1, ..Style::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_while_undoing() {
    let _turn = turn().await;
    kill_again_and_again("kills while undoing, embedded", Program::embedded(FAULTY_SERVICES), undoing(), rounds(25))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_while_undoing() {
    let _turn = turn().await;
    let program = Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), FAULTY_SERVICES);
    kill_again_and_again("kills while undoing, cluster", program, undoing(), rounds(15)).await;
}

/// The other ways to consume, each killed a few times.
async fn kill_in_mode(mode: &str, engine: &str, program: impl Fn(&str) -> Program) {
    let program = program(&format!("[scheduler]\nmode = \"{mode}\"\n{FAULTY_SERVICES}"));
    let style = Style { cancel_every: 3, ..Style::default() };
    kill_again_and_again(&format!("kills in mode {mode}, {engine}"), program, style, rounds(8)).await;
}

fn on_cluster(more: &str) -> Program {
    Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), more)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_in_batches() {
    let _turn = turn().await;
    kill_in_mode("batch", "embedded", Program::embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_in_batches() {
    let _turn = turn().await;
    kill_in_mode("batch", "cluster", on_cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_from_the_queue() {
    let _turn = turn().await;
    kill_in_mode("queue", "embedded", Program::embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_from_the_queue() {
    let _turn = turn().await;
    kill_in_mode("queue", "cluster", on_cluster).await;
}
