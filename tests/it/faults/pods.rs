//! Static assignment: the number at the end of a pod's name decides what it reads, and with more pods than partitions
//! two of them split one. Every request is carried out once, also while a pod is away and when it comes back under its
//! name.

use std::time::{Duration, Instant};

use super::checker::check;
use super::load::{Load, Style};
use super::program::{FAULTY_SERVICES, Program};
use super::{rounds, turn};
use crate::support::process::PATIENCE;
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

/// A pod for each of the partitions.
const ONE_EACH: [&str; 4] = ["scheduler-0", "scheduler-1", "scheduler-2", "scheduler-3"];

/// How many workflows a process has brought to the end of their scheduling.
async fn workflows(program: &Program) -> f64 {
    let metrics = String::from_utf8(program.client().get("/metrics").await.unwrap().body).unwrap();
    let lines = metrics.lines().filter(|line| line.starts_with("drone_workflows_total"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Under a load that goes on, each pod gets its part; one that came back has to wait for its old lease to end.
async fn wait_for_work(program: &Program) {
    let deadline = Instant::now() + PATIENCE;
    while workflows(program).await == 0.0 {
        assert!(Instant::now() < deadline, "a pod has nothing to do");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn each_reads_its_share(name: &str, partitions: &'static str, readers: &'static str) {
    let prefix = fresh_prefix();
    let process = |roles, pod| {
        Program::cluster(shared_rabbitmq(), shared_redis(), &prefix, FAULTY_SERVICES)
            .with("DRONE__PARTITIONS__COUNT", partitions)
            .with("DRONE__PARTITIONS__READERS", readers)
            .with("DRONE__PARTITIONS__ASSIGNMENT", "static")
            .with("DRONE__PARTITIONS__POD_NAME", pod)
            .with("DRONE__ROLES", roles)
    };
    let mut front = process("ingestion,services,supervisor", "front");
    front.start().await;
    front.furnish().await;
    let mut pods: Vec<Program> = ONE_EACH.map(|pod| process("scheduler", pod)).into();
    for pod in &mut pods {
        pod.start().await;
    }
    let load = Load::start(&[front.port], Style { cancel_every: 3, ..Style::default() });
    for round in 0..rounds(2) as usize {
        load.wait_for_more(150).await;
        for pod in &pods {
            wait_for_work(pod).await;
        }
        let away = &mut pods[round % ONE_EACH.len()];
        away.kill();
        load.wait_for_more(50).await;
        away.start().await;
    }
    let book = load.finish().await;
    check(name, front.port, book, 400).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_pod_for_each_partition() {
    let _turn = turn().await;
    each_reads_its_share("pods, one for each partition", "4", "1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_pods_than_partitions() {
    let _turn = turn().await;
    each_reads_its_share("pods, two for each partition", "2", "2").await;
}
