//! Cancellations that race with the scheduling of the same delivery: each ends as cancelled, with nothing left behind,
//! or had failed before. Ten thousand of them over both engines.

use std::time::Duration;

use super::checker::check;
use super::load::{Load, Style};
use super::program::Program;
use super::{rounds, turn};
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

async fn cancel_everything(name: &str, mut program: Program, deliveries: usize) {
    program.start().await;
    program.furnish().await;
    let style = Style { clients: 48, pause: Duration::ZERO, most: deliveries, cancel_every: 1 };
    let load = Load::start(&[program.port], style);
    load.wait_for_all().await;
    let book = load.finish().await;
    let counts = check(name, program.port, book, deliveries).await;
    assert!(counts.cancelled > deliveries / 2, "{counts}");
    assert!(!counts.all_answered() || counts.scheduled == 0, "a cancellation had no effect: {counts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    let _turn = turn().await;
    cancel_everything("cancels, embedded", Program::embedded(""), 7_000 * rounds(1) as usize).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster() {
    let _turn = turn().await;
    let program = Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), "");
    cancel_everything("cancels, cluster", program, 3_000 * rounds(1) as usize).await;
}
