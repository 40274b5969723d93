//! The program is killed at random points under load, with services that fail, lose their replies and are slow, and
//! started again each time: while it serves, while it replays, while it starts.

use std::time::Duration;

use super::checker::check;
use super::load::{Load, Style};
use super::program::{FAULTY_SERVICES, Program};
use super::{rounds, turn};
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

async fn kill_again_and_again(name: &str, mut program: Program, kills: u32) {
    program.start().await;
    program.furnish().await;
    let load = Load::start(&[program.port], Style::default());
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
    kill_again_and_again("kills, embedded", Program::embedded(FAULTY_SERVICES), rounds(25)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster() {
    let _turn = turn().await;
    let program = Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), FAULTY_SERVICES);
    kill_again_and_again("kills, cluster", program, rounds(25)).await;
}
