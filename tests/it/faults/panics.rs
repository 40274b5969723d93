//! A panic in every kind of actor, under load: a fresh one follows, and nothing that was in its hands is lost. The
//! process is not started again in between, so that nothing is put right by a restart.

use super::checker::check;
use super::load::{Load, Style};
use super::program::{FAULTY_SERVICES, Program};
use super::{rounds, turn};
use crate::support::process::wait_until;
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

/// Those that can die side by side. Reader, scheduler and checkpointer of a share die together, so each has a run of
/// its own in which it is the first.
const RUNS: [&[&str]; 4] = [
    &["Agent", "Writer", "Compensator", "Teller", "Sweeper", "Switches", "Partitions", "Notifier", "StatusHub"],
    &["Reader"],
    &["Scheduler"],
    &["Checkpointer"],
];

async fn every_actor_panics(name: &str, program: impl Fn(&str) -> Program) {
    for kinds in RUNS.repeat(rounds(1) as usize) {
        let panics = format!("[panics]\nactors = {kinds:?}\nafter_ms = 700\nstarts = 3\n{FAULTY_SERVICES}");
        let mut program = program(&panics);
        program.start().await;
        program.furnish().await;
        let load = Load::start(&[program.port], Style::default());
        wait_until("a panic in each kind", || {
            let log = program.log();
            kinds.iter().all(|kind| log.contains(&format!("a panic on purpose in a {kind}")))
        });
        load.wait_for_more(150).await;
        let book = load.finish().await;
        check(&format!("panics in {kinds:?}, {name}"), program.port, book, 150).await;
        let restarts = program.client().get("/api/operations/agents").await.unwrap().json();
        let restarts = restarts["restarts"].as_object().unwrap().values();
        assert!(restarts.map(|count| count.as_u64().unwrap()).sum::<u64>() >= kinds.len() as u64, "they are counted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    let _turn = turn().await;
    every_actor_panics("embedded", Program::embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster() {
    let _turn = turn().await;
    let program = |more: &str| Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), more);
    every_actor_panics("cluster", program).await;
}
