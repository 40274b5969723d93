//! The process dies at one point after the other of the way of a request and of its undoing, between what was done and
//! what says so, and is started again. Random kills fall beside these points; here each of them is hit, in the middle of
//! other deliveries that are anywhere on their way.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use drone_delivery::crashes::NAMES;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::checker::{check, list};
use super::load::{Load, Style};
use super::program::{OWNERS, Program};
use super::{rounds, turn};
use crate::support::process::PATIENCE;
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};
use crate::support::webhooks::{Letters, webhook_server};

/// Half of the deliveries are cancelled, and some fail by themselves.
const STYLE: Style = Style { clients: 8, pause: Duration::from_millis(2), most: 2_000, cancel_every: 2 };
const AT_ONCE: usize = 4;
/// `abort` ends the process with this one.
const SIGABRT: i32 = 6;

/// The how-manieth time a point is reached: late enough that much is under way, soon enough to be reached. Steps come
/// one by one, the rest many together.
fn after(point: &str) -> u32 {
    let step = point.ends_with("done") && point != "work-done";
    if step { 25 } else { 6 }
}

/// What the settings must say for a point to be reached.
fn mode(point: &str) -> &'static str {
    if matches!(point, "copied" | "work-done") { "[scheduler]\nmode = \"queue\"\n" } else { "" }
}

async fn dies_and_comes_back(name: &str, point: &str, program: impl Fn(&str) -> Program) {
    let (after, mode) = (after(point), mode(point));
    let mut program = program(&format!("{mode}[crashes]\npoint = \"{point}\"\nafter = {after}\n"));
    let (hook, told) = webhook_server().await;
    program.start().await;
    program.furnish().await;
    ask_for_notices(&program, hook).await;
    let load = Load::start(&[program.port], STYLE);
    assert_eq!(program.ending_signal().await, Some(SIGABRT), "it did not die at {point}");
    let died = |line: &str| line.contains("a crash on purpose") && line.contains(point);
    assert!(program.log().lines().any(died), "it died of something else");
    program.configure(mode);
    program.start().await;
    load.wait_for_more(50).await;
    let book = load.finish().await;
    check(&format!("crash at {point}, {name}"), program.port, book, 50).await;
    everybody_is_told(&program, &told).await;
    let swept = program.log().contains("workflows that nobody held were taken up");
    assert!(!swept, "it was the sweeper that put it right, much later, and not the order of the writes");
}

async fn ask_for_notices(program: &Program, hook: u16) {
    for (owner, status) in OWNERS.into_iter().zip(["Active", "Suspended"]) {
        let account = json!({"status": status, "webhook": format!("http://127.0.0.1:{hook}/")}).to_string();
        let answer = program.client().call("PUT", &format!("/api/accounts/{owner}"), &[], Some(&account)).await;
        assert_eq!(answer.unwrap().status, 204);
    }
}

/// Whatever failed or was cancelled, its owner has heard of it, whoever died over it.
async fn everybody_is_told(program: &Program, told: &Letters) {
    let ended: BTreeSet<String> = list(&mut program.client(), "/api/deliveryrequests?limit=500")
        .await
        .iter()
        .filter(|workflow| workflow["status"] == "Failed" || workflow["status"] == "Cancelled")
        .map(|workflow| notice(&workflow["deliveryId"], &workflow["status"]))
        .collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let heard: BTreeSet<String> = told.lock().unwrap().iter().map(|(_, body)| heard(body)).collect();
        let missing: Vec<_> = ended.difference(&heard).collect();
        if missing.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "not told of {missing:?}, out of {}", ended.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn heard(body: &str) -> String {
    let body: Value = serde_json::from_str(body).unwrap();
    notice(&body["deliveryId"], &body["status"])
}

fn notice(id: &Value, status: &Value) -> String {
    format!("{} is {}", id.as_str().unwrap(), status.as_str().unwrap())
}

/// Some at a time: most of it is waiting for a process to come up or for a dead one's leases to end.
async fn at_every_point(name: &str, program: impl Fn(&str) -> Program) {
    let points: Vec<&str> = NAMES.iter().copied().filter(|point| !point.is_empty()).collect();
    for some in points.repeat(rounds(1) as usize).chunks(AT_ONCE) {
        join_all(some.iter().map(|point| dies_and_comes_back(name, point, &program))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    let _turn = turn().await;
    at_every_point("embedded", Program::embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster() {
    let _turn = turn().await;
    let program = |more: &str| Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), more);
    at_every_point("cluster", program).await;
}
