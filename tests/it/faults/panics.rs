//! A panic in every kind of actor, under load: a fresh one follows, and nothing that was in its hands is lost. The
//! process is not started again in between, so that nothing is put right by a restart.

use super::checker::check;
use super::load::{Load, Style};
use super::program::{FAULTY_SERVICES, Program};
use super::{rounds, turn};
use crate::support::process::wait_until;
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

/// Those that can die side by side, and the settings it takes for them to be there. Reader, scheduler and checkpointer of
/// a share die together, so each has a run of its own in which it is the first.
const RUNS: [(&[&str], &str); 6] = [
    (
        &[
            "Agent",
            "Writer",
            "Compensator",
            "Teller",
            "Sweeper",
            "Purger",
            "Switches",
            "Partitions",
            "Notifier",
            "StatusHub",
        ],
        "",
    ),
    (&["Reader"], ""),
    (&["Scheduler"], ""),
    (&["Checkpointer"], ""),
    (&["Worker", "Forwarder"], "[scheduler]\nmode = \"queue\"\n"),
    // An hour of a delivery's takes a second, so that drones are in the air.
    (&["Flights"], "[demo]\nenabled = true\naccounts = 0\ndrones = 0\ntime_factor = 3600.0\n"),
];

async fn every_actor_panics(name: &str, program: impl Fn(&str) -> Program) {
    for (kinds, more) in RUNS.repeat(rounds(1) as usize) {
        let panics = format!("[panics]\nactors = {kinds:?}\nafter_ms = 700\nstarts = 3\n{more}{FAULTY_SERVICES}");
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

/// Nobody could start it again from inside: the process says so, drains and ends, to be started again from outside.
async fn the_supervisor_panics(name: &str, mut program: Program) {
    program.start().await;
    program.furnish().await;
    let load = Load::start(&[program.port], Style::default());
    assert_eq!(program.exit_code(), Some(1));
    let log = program.log();
    for line in ["a panic on purpose in a Supervisor", "the supervisor has ended", "drained"] {
        assert!(log.contains(line), "nothing of {line:?}");
    }
    program.configure(FAULTY_SERVICES);
    program.start().await;
    load.wait_for_more(100).await;
    let book = load.finish().await;
    check(&format!("a panic in the Supervisor, {name}"), program.port, book, 100).await;
}

fn supervisor() -> String {
    format!("[panics]\nactors = [\"Supervisor\"]\nafter_ms = 2000\n{FAULTY_SERVICES}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_supervisor() {
    let _turn = turn().await;
    the_supervisor_panics("embedded", Program::embedded(&supervisor())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_supervisor() {
    let _turn = turn().await;
    let program = Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), &supervisor());
    the_supervisor_panics("cluster", program).await;
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
