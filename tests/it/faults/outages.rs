//! The broker and Redis go away under load: killed apart and together, frozen, away for a while. Intake says so, comes
//! back by itself, and nothing that was accepted is lost.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::checker::check;
use super::load::{Load, Style};
use super::program::{FAULTY_SERVICES, OWNERS, Program};
use super::{rounds, turn};
use crate::support::http::Response;
use crate::support::process::PATIENCE;
use crate::support::servers::{RabbitMq, Redis, fresh_prefix, shared_rabbitmq};

/// A request that needs no key: it is taken in without Redis.
async fn post(program: &Program) -> Response {
    let body = serde_json::json!({
        "ownerId": OWNERS[0],
        "pickupLocation": "47.6101,-122.2015",
        "dropOffLocation": "47.6205,-122.3493",
        "packageInfo": {"size": "Small", "weight": 1, "tag": format!("post-{}", rand::random::<u64>())},
    });
    program.client().call("POST", "/api/deliveryrequests", &[], Some(&body.to_string())).await.unwrap()
}

async fn wait_until_away(program: &Program, part: &str) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = program.client().get("/readyz").await.unwrap();
        if answer.status == 503 && answer.json()["detail"].as_str().is_some_and(|detail| detail.contains(part)) {
            return answer.json();
        }
        assert!(Instant::now() < deadline, "/readyz never named {part}: {}", answer.json());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_killed_apart_and_together() {
    let _turn = turn().await;
    let (mut rabbitmq, mut redis) = (RabbitMq::start(), Redis::start());
    let mut program = Program::cluster(&rabbitmq, &redis, &fresh_prefix(), FAULTY_SERVICES);
    program.start().await;
    program.furnish().await;
    let load = Load::start(&[program.port], Style::default());
    for round in 0..rounds(7) {
        load.wait_for_more(50).await;
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..300))).await;
        let (broker, state) = match round % 7 {
            5 => (false, true),
            6 => (true, true),
            _ => (true, false),
        };
        if broker {
            rabbitmq.kill();
        }
        if state {
            redis.kill();
            redis.restart();
        }
        if broker {
            rabbitmq.restart();
        }
    }
    load.wait_for_more(100).await;
    let book = load.finish().await;
    check("servers killed", program.port, book, 400).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_for_a_while() {
    let _turn = turn().await;
    let (mut rabbitmq, redis) = (RabbitMq::start(), Redis::start());
    let mut program = Program::cluster(&rabbitmq, &redis, &fresh_prefix(), "");
    program.start().await;
    program.furnish().await;
    let load = Load::start(&[program.port], Style::default());
    load.wait_for_more(100).await;
    rabbitmq.kill();
    let away = Instant::now();
    wait_until_away(&program, "rabbitmq").await;
    while away.elapsed() < Duration::from_secs(if rounds(1) > 1 { 60 } else { 20 }) {
        let answer = post(&program).await;
        assert_eq!(answer.status, 503, "{}", answer.json());
        assert!(answer.header("retry-after").is_some());
        assert_eq!(program.client().get("/livez").await.unwrap().status, 200);
    }
    rabbitmq.restart();
    load.wait_for_more(100).await;
    program.wait_until_ready().await;
    let book = load.finish().await;
    check("broker away", program.port, book, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_frozen() {
    let _turn = turn().await;
    let redis = Redis::start();
    let mut program = Program::cluster(shared_rabbitmq(), &redis, &fresh_prefix(), FAULTY_SERVICES);
    program.start().await;
    program.furnish().await;
    let load = Load::start(&[program.port], Style::default());
    load.wait_for_more(100).await;
    redis.signal("STOP");
    let frozen = Instant::now();
    wait_until_away(&program, "redis").await;
    let mut taken = 0;
    while frozen.elapsed() < Duration::from_secs(30) {
        let answer = post(&program).await;
        assert_eq!(answer.status, 202, "{}", answer.json());
        taken += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    redis.signal("CONT");
    assert!(taken > 0);
    load.wait_for_more(100).await;
    let book = load.finish().await;
    let counts = check("Redis frozen", program.port, book, 200).await;
    assert!(counts.scheduled > taken);
}
