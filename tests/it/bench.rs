//! The load generator on a small load: what it writes has the promised shape, and the work was really done.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::process::{Process, free_port};
use crate::support::servers::Redis;

/// Runs a scenario on a server of its own.
fn bench(scenario: &str, more: &[&str]) -> Value {
    let found = run(scenario, more);
    assert_eq!(found["engine"], "embedded");
    found
}

/// Runs a scenario and reads its JSON.
fn run(scenario: &str, more: &[&str]) -> Value {
    let dir = TempDir::new().unwrap();
    let (json, page) = (dir.path().join("found.json"), dir.path().join("found.html"));
    let output = Command::new(env!("CARGO_BIN_EXE_drone-delivery"))
        .args(["bench", scenario, "--quick", "--connections", "8"])
        .args(more)
        .arg("--json")
        .arg(&json)
        .arg("--report")
        .arg(&page)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scenario}: {told}");
    assert!(!output.stdout.is_empty(), "{scenario} printed no table");
    assert!(fs::read_to_string(&page).unwrap().contains("<polyline"), "{scenario} drew no curve");
    let found: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(found["scenario"], scenario);
    found
}

fn rows(found: &Value, table: usize) -> &Vec<Value> {
    found["tables"][table]["rows"].as_array().unwrap()
}

#[test]
fn ingest_measures_all_kinds_of_posts_beside_the_limit() {
    let found = bench("ingest", &["--turns", "1", "--rates", "100"]);
    assert_eq!(rows(&found, 0).len(), 3);
    for row in rows(&found, 0).iter().chain(rows(&found, 1)) {
        assert!(row["accepted"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(row["dropped"], 0, "{row}");
        assert!(row["p99_ms"].as_f64().unwrap() >= row["p50_ms"].as_f64().unwrap(), "{row}");
    }
    assert!(rows(&found, 0)[1]["of_the_limit"].as_f64().unwrap() > 0.0);
}

/// A server of an operator has no such handler unless it was given one.
#[test]
fn ingest_says_so_when_there_is_no_limit_to_compare_with() {
    let (dir, port) = (TempDir::new().unwrap(), free_port());
    let url = format!("http://127.0.0.1:{port}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_drone-delivery"));
    command.args(["serve", "--listen", &format!("127.0.0.1:{port}"), "--data-dir"]).arg(dir.path().join("data"));
    let _server = Process::start(command, dir.path(), "server");
    let found = run("ingest", &["--turns", "1", "--rates", "100", "--url", &url]);
    let calls: Vec<_> = rows(&found, 0).iter().map(|row| row["calls"].as_str().unwrap()).collect();
    assert_eq!(calls, ["single posts", "batch posts"]);
    assert!(rows(&found, 0).iter().all(|row| row["of_the_limit"].is_null() && row["dropped"] == 0), "{found}");
    assert!(found["engine"].is_null());
    let notes = found["notes"].to_string();
    assert!(notes.contains("http.limit_route") && !notes.contains("roles"), "{notes}");
}

#[test]
fn workflow_sees_every_request_scheduled() {
    let found = bench("workflow", &["--requests", "300", "--batch", "50", "--part", "0.2"]);
    let run = &rows(&found, 0)[0];
    assert!(run["accepted"].as_u64().unwrap() >= 300, "{found}");
    assert_eq!(run["accepted"], run["scheduled"], "{found}");
    assert!(run["workflows_per_s"].as_f64().unwrap() > 0.0, "{found}");
    assert!(run["peak_mb"].as_u64().unwrap() > 0, "{found}");
}

#[test]
fn a_steady_rate_and_a_spike_are_taken_whole() {
    for scenario in ["sustained", "spike"] {
        let found = bench(scenario, &["--rate", "500"]);
        let row = &rows(&found, 0)[0];
        assert!(row["accepted"].as_u64().unwrap() > 0, "{row}");
        assert_eq!((&row["dropped"], &row["timed_out"]), (&0.into(), &0.into()), "{row}");
        assert_eq!(row["accepted"], row["scheduled"], "{row}");
    }
}

#[test]
fn all_modes_are_compared_under_both_latencies() {
    let found = bench("modes", &[]);
    let seen: Vec<_> = rows(&found, 0).iter().map(|row| format!("{} {}", row["latency"], row["mode"])).collect();
    assert_eq!(seen.len(), 6, "{seen:?}");
    assert!(rows(&found, 0).iter().all(|row| row["accepted"] == row["scheduled"]), "{found}");
}

#[test]
fn after_a_kill_nothing_is_missing() {
    let found = bench("recovery", &[]);
    let row = &rows(&found, 0)[0];
    assert_eq!(row["missing"], 0, "{row}");
    assert!(row["first_work_s"].as_f64().unwrap() <= row["all_done_s"].as_f64().unwrap(), "{row}");
}

#[test]
fn partitions_and_backlogs_have_their_cost() {
    let found = bench("scale", &["--partitions", "1,2", "--backlogs", "50000"]);
    assert_eq!((rows(&found, 0).len(), rows(&found, 1).len()), (2, 1));
    for row in rows(&found, 0).iter().chain(rows(&found, 1)) {
        assert!(row["scheduled"].as_u64().unwrap() > 0, "{row}");
        assert!(row["cpu_us_each"].as_f64().unwrap() > 0.0, "{row}");
    }
}

/// What the command does with options that make no sense: nothing, and it says which one.
#[test]
fn bad_options_are_named_before_anything_is_started() {
    let folder = TempDir::new().unwrap();
    let nowhere = folder.path().join("missing").join("found.json").display().to_string();
    for (arguments, named) in [
        (["ingest", "--batch", "0"], "--batch"),
        (["ingest", "--batch", "1001"], "1000"),
        (["ingest", "--rates", "100,0"], "--rates"),
        (["ingest", "--seconds", "0"], "--seconds"),
        (["sustained", "--rate", "NaN"], "--rate"),
        (["spike", "--peak", "inf"], "--peak"),
        (["workflow", "--part", "0"], "--part"),
        (["workflow", "--requests", "0"], "--requests"),
        (["modes", "--modes", "strem"], "stream"),
        (["modes", "--concurrency", "0"], "--concurrency"),
        (["scale", "--backlogs", "0"], "--backlogs"),
        (["recovery", "--runs", "0"], "--runs"),
        (["sustained", "--json", &nowhere], "found.json"),
        (["sustained", "--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_drone-delivery")).arg("bench").args(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(named), "{arguments:?}: {told}");
        assert!(!told.contains("panicked"), "{told}");
    }
}

#[test]
fn another_machine_is_not_put_under_load() {
    let output = Command::new(env!("CARGO_BIN_EXE_drone-delivery"))
        .args(["bench", "sustained", "--quick", "--url", "http://192.0.2.1:80"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--allow-remote"));
}

/// To empty a large one takes it a second or two.
#[tokio::test]
async fn a_redis_may_take_its_time_to_become_empty() {
    let redis = Redis::start();
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let () = redis::cmd("SET").arg("key").arg("value").query_async(&mut connection).await.unwrap();
    let () = redis::cmd("CLIENT").arg("PAUSE").arg(3_000).arg("ALL").query_async(&mut connection).await.unwrap();
    drone_delivery::bench::private::empty(&redis.url()).await.unwrap();
    let left: u64 = redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap();
    assert_eq!(left, 0);
}
