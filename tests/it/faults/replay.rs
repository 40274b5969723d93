//! Everything is read again from the first entry, three times over: the checkpoints are taken away while the program is
//! stopped, and each time it starts it goes through all requests anew. Nothing may come of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use drone_delivery::store::checkpoints::{Checkpoints, Share};
use drone_delivery::store::embedded::EmbeddedState;
use drone_delivery::store::{State, Txn};
use serde_json::Value;

use super::checker::{check, list};
use super::load::{Book, body};
use super::program::{OWNERS, Program};
use super::turn;
use crate::support::http::Client;

const REQUESTS: usize = 10_000;
const BATCH: usize = 500;
const REPLAYS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(300);

async fn submit(client: &mut Client) -> Book {
    let mut book = Book::default();
    for batch in 0..REQUESTS / BATCH {
        let tags: Vec<String> = (0..BATCH).map(|item| format!("{batch}.{item}")).collect();
        let bodies: Vec<Value> = tags.iter().map(|tag| body(OWNERS[0], 1.0, tag)).collect();
        let text = Value::from(bodies).to_string();
        let answer = client.call("POST", "/api/deliveryrequests/batch", &[], Some(&text)).await.unwrap();
        assert_eq!(answer.status, 202, "{}", answer.json());
        let results = answer.json()["results"].as_array().unwrap().clone();
        book.attempted += BATCH as u64;
        for (tag, result) in tags.into_iter().zip(results) {
            book.accepted.insert(result["deliveryId"].as_str().expect("accepted").to_owned(), tag);
        }
    }
    book
}

/// A counter of the program since it was started.
async fn counted(client: &mut Client, name: &str) -> f64 {
    let metrics = client.get("/metrics").await.unwrap().body;
    let text = String::from_utf8(metrics).unwrap();
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

async fn wait_for_count(client: &mut Client, name: &str) {
    let deadline = Instant::now() + PATIENCE;
    while counted(client, name).await < REQUESTS as f64 {
        assert!(Instant::now() < deadline, "{name} is {} only", counted(client, name).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Every record there is, as the API shows it.
async fn records(client: &mut Client) -> BTreeMap<String, Value> {
    let workflows = list(client, "/api/deliveryrequests?limit=500").await;
    workflows.into_iter().map(|workflow| (workflow["deliveryId"].to_string(), workflow)).collect()
}

/// Takes the checkpoints of a stopped program away; there must be some.
async fn forget_checkpoints(data: &Path) {
    let state = std::sync::Arc::new(EmbeddedState::open(&data.join("state")).unwrap());
    let checkpoints = Checkpoints::new(state.clone(), "embedded", Duration::from_secs(1));
    let mut txn = Txn::new();
    let mut found = 0;
    for partition in 0..4 {
        let share = Share { partition, reader: 0 };
        found += usize::from(checkpoints.load(share).await.unwrap().is_some());
        txn = txn.delete(format!("checkpoint/{share}"));
    }
    assert_eq!(found, 4, "every partition was read");
    state.commit(vec![txn]).await.unwrap();
    state.sync().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_comes_of_reading_everything_again() {
    let _turn = turn().await;
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    // What is tried here is the replay; an owner that loses its lease on a busy machine would begin it again and again.
    let mut program = Program::embedded_in(&data, "").with("DRONE__PARTITIONS__LEASE_MS", "60000");
    program.start().await;
    program.furnish().await;
    let mut client = program.client();
    let book = submit(&mut client).await;
    wait_for_count(&mut client, "drone_workflows_total").await;
    let before = records(&mut client).await;
    assert_eq!(before.len(), REQUESTS);
    for _ in 0..REPLAYS {
        program.signal("TERM");
        assert_eq!(program.exit_code(), Some(0));
        forget_checkpoints(&data).await;
        program.start().await;
        wait_for_count(&mut program.client(), "drone_requests_replayed_total").await;
    }
    let after = records(&mut program.client()).await;
    for (id, record) in &before {
        assert_eq!(after.get(id), Some(record));
    }
    let counts = check("replays, embedded", program.port, book, REQUESTS).await;
    assert_eq!(counts.scheduled + counts.failed, REQUESTS);
}
