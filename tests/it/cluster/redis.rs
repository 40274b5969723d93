//! Redis's part of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drone_delivery::cluster::runtime::EngineRuntime;
use drone_delivery::config;
use drone_delivery::store::redis::RedisState;
use drone_delivery::store::{Expect, Outcome, State as _, Txn};

use crate::conformance::{soon, until};
use crate::support::process::free_port;
use crate::support::servers::{Redis, fresh_prefix, shared_redis};

const LONG: Duration = Duration::from_secs(30);

async fn open(url: String, timeout: Duration) -> Arc<RedisState> {
    let settings = config::Redis { url, ca_file: String::new(), timeout };
    let state = RedisState::open(&settings, &fresh_prefix(), &EngineRuntime::start().unwrap()).unwrap();
    soon(state.wait_until_up()).await;
    Arc::new(state)
}

async fn put(state: &RedisState, value: &'static str) -> bool {
    soon(state.commit(vec![Txn::new().put("k", value)])).await.is_ok()
}

/// A machine that is busy with everything else may be late once; the time-outs here are short.
async fn get(state: &RedisState) -> Option<Bytes> {
    let answer = async {
        loop {
            if let Ok(mut values) = state.get(&["k".into()]).await {
                return values.remove(0);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(answer).await
}

/// Sends one command straight to a server.
async fn tell(server: &Redis, words: &[&str]) {
    let client = redis::Client::open(server.url()).unwrap();
    let patient = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&patient).await.unwrap();
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    let _: redis::Value = command.query_async(&mut connection).await.unwrap();
}

#[tokio::test]
async fn a_frozen_redis_is_an_error_in_time_and_comes_back() {
    let server = Redis::start();
    let state = open(server.url(), Duration::from_secs(2)).await;
    until("it takes a value", || async { put(&state, "before").await }).await;
    server.signal("STOP");
    assert!(!put(&state, "frozen").await);
    let waiting = (0..1_000).map(|_| state.ping());
    assert!(soon(futures_util::future::join_all(waiting)).await.iter().all(Result::is_err));
    until("the trouble is told", || async { state.health().is_err() }).await;
    server.signal("CONT");
    until("it works again", || async { put(&state, "after").await }).await;
    assert_eq!(get(&state).await, Some("after".into()));
    until("all is well", || async { state.health().is_ok() }).await;
}

#[tokio::test]
async fn what_timed_out_is_not_carried_out_behind_what_came_later() {
    let server = Redis::start();
    let state = open(server.url(), Duration::from_secs(1)).await;
    for _ in 0..3 {
        server.signal("STOP");
        let stale = (0..20).map(|_| put(&state, "stale"));
        assert!(futures_util::future::join_all(stale).await.iter().all(|done| !done));
        server.signal("CONT");
        until("it works again", || async { put(&state, "new").await }).await;
        tell(&server, &["PING"]).await;
        assert_eq!(get(&state).await, Some("new".into()));
    }
}

#[tokio::test]
async fn what_was_committed_survives_a_killed_redis() {
    let mut server = Redis::start();
    let state = open(server.url(), LONG).await;
    let txns = (0..500).map(|n| Txn::new().put(format!("k{n}"), "v").add("s", n.to_string())).collect();
    soon(state.commit(txns)).await.unwrap();
    assert!(put(&state, "kept").await);
    server.kill();
    until("it is missed", || async { state.ping().await.is_err() }).await;
    server.restart();
    until("it works again", || async { state.ping().await.is_ok() }).await;
    assert_eq!(get(&state).await, Some("kept".into()));
    assert_eq!(soon(state.count("s")).await.unwrap(), 500);
    assert!(put(&state, "goes on").await);
}

#[tokio::test]
async fn a_forgotten_script_is_loaded_again() {
    let server = Redis::start();
    let state = open(server.url(), LONG).await;
    for value in ["one", "two"] {
        tell(&server, &["SCRIPT", "FLUSH"]).await;
        assert!(put(&state, value).await);
        assert_eq!(get(&state).await, Some(value.into()));
    }
}

#[tokio::test]
async fn reads_do_not_notice_a_dropped_connection() {
    let server = Redis::start();
    let state = open(server.url(), LONG).await;
    assert!(put(&state, "v").await);
    for _ in 0..4 {
        tell(&server, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        assert_eq!(soon(state.get(&["k".into()])).await.expect("a read"), [Some("v".into())]);
    }
}

#[tokio::test]
async fn a_large_commit_is_cut_and_keeps_its_order() {
    let state = open(shared_redis().url(), LONG).await;
    let large = Bytes::from(vec![b'x'; 300_000]);
    let txns: Vec<_> = (0..1_000_u32)
        .map(|n| {
            let txn = if n == 0 { Txn::new().check("last", Expect::Absent) } else { is("last", n - 1) };
            let value = if n % 100 == 0 { large.clone() } else { Bytes::new() };
            txn.put("last", n.to_string()).put(format!("value-{n}"), value)
        })
        .chain([Txn::new().check("last", Expect::Absent).put("last", "never")])
        .collect();
    let outcomes = soon(state.commit(txns)).await.unwrap();
    assert_eq!(outcomes.len(), 1_001);
    assert!(outcomes[..1_000].iter().all(|outcome| *outcome == Outcome::Done));
    assert_eq!(outcomes[1_000], Outcome::Conflict);
    let keys: Vec<String> = (0..3_000).map(|n| format!("value-{n}")).collect();
    let values = soon(state.get(&keys)).await.unwrap();
    assert_eq!(values.iter().filter(|value| value.is_some()).count(), 1_000);
    assert_eq!(values[900], Some(large));
}

fn is(key: &str, number: u32) -> Txn {
    Txn::new().check(key, Expect::Is(number.to_string().into()))
}

#[tokio::test]
async fn prefixes_keep_installations_apart() {
    let (one, two) = (open(shared_redis().url(), LONG).await, open(shared_redis().url(), LONG).await);
    assert!(put(&one, "one").await);
    assert_eq!(get(&two).await, None);
    assert!(put(&two, "two").await);
    assert_eq!(get(&one).await, Some("one".into()));
}

#[tokio::test]
async fn sentinels_name_the_master() {
    let master = Redis::start();
    let port = free_port();
    let sentinel = Redis::sentinel_of("main", &master);
    let url = format!("redis+sentinel://127.0.0.1:{port},127.0.0.1:{}/main/2", sentinel.port);
    let state = open(url, LONG).await;
    assert!(put(&state, "v").await);
    assert_eq!(get(&state).await, Some("v".into()));
}
