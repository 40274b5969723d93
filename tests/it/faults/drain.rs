//! `SIGTERM` under load: what is in flight is finished and checkpointed, the process ends by itself with 0, and the
//! next one goes on.

use std::time::{Duration, Instant};

use drone_delivery::domain::{Operation, OperationKind, Status};
use drone_delivery::store::checkpoints::{Checkpoints, Share};
use drone_delivery::store::workflows::Workflows;
use drone_delivery::stream::embedded::{self, Settings};
use drone_delivery::stream::{From, Stream, Streams as _};

use super::checker::check;
use super::load::{Load, Style};
use super::program::{PARTITIONS, Program};
use super::{rounds, turn};
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

/// What the program promises.
const LONGEST: Duration = Duration::from_secs(30);

async fn drain_again_and_again(name: &str, mut program: Program, ended: impl AsyncFn(&Program)) {
    program.start().await;
    program.furnish().await;
    let load = Load::start(&[program.port], Style::default());
    for _ in 0..rounds(3) {
        load.wait_for_more(150).await;
        program.signal("TERM");
        let told = Instant::now();
        assert_eq!(program.exit_code(), Some(0));
        assert!(told.elapsed() < LONGEST, "drained in {:?}", told.elapsed());
        ended(&program).await;
        program.start().await;
    }
    load.wait_for_more(100).await;
    let book = load.finish().await;
    check(name, program.port, book, 400).await;
}

/// Nothing that was finished comes again: whatever is behind the checkpoint has not been looked at.
async fn nothing_is_repeated(program: &Program) {
    let settings = Settings {
        data_dir: program.data.clone(),
        partitions: PARTITIONS,
        segment_bytes: 67_108_864,
        retention_bytes: 1_073_741_824,
        max_age: None,
        dead_letters: Duration::from_secs(3_600),
    };
    let engine = embedded::open(&settings).unwrap();
    let checkpoints = Checkpoints::new(engine.state.clone(), "test", Duration::from_secs(1));
    let workflows = Workflows::new(engine.state.clone());
    for partition in 0..PARTITIONS {
        let checkpoint = checkpoints.load(Share { partition, reader: 0 }).await.unwrap();
        let mut next = checkpoint.expect("a checkpoint was saved") + 1;
        let end = engine.streams.bounds(Stream::Requests(partition)).await.unwrap().next;
        let mut reader = engine.streams.read(Stream::Requests(partition), From::Offset(next)).await.unwrap();
        while next < end {
            for entry in reader.next().await.unwrap() {
                next = entry.offset + 1;
                for line in entry.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                    let operation: Operation = serde_json::from_slice(line).unwrap();
                    if matches!(operation.op, OperationKind::Schedule(_)) {
                        let record = workflows.get(&operation.id).await.unwrap();
                        let status = record.map(|record| record.workflow.status);
                        assert!(
                            !matches!(status, Some(Status::Scheduled | Status::Failed)),
                            "{} is repeated",
                            operation.id
                        );
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_engine() {
    let _turn = turn().await;
    drain_again_and_again("drained, embedded", Program::embedded(""), nothing_is_repeated).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_engine() {
    let _turn = turn().await;
    let program = Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), "");
    drain_again_and_again("drained, cluster", program, async |_| {}).await;
}
