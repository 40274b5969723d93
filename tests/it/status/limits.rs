//! What a client may not do, and what becomes of one that does.

use std::time::Duration;

use actix_web::http::StatusCode;
use drone_delivery::config::StatusFeed;
use futures_util::SinkExt as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, client_async};

use super::client::{Heard, Source, Watcher, id, number, numbers};
use super::rig::{PATIENCE, Rig, settings, until};

/// A connection that holds little.
async fn narrow_socket(rig: &Rig) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 * 1024).unwrap();
    socket.connect(rig.address).await.unwrap()
}

async fn narrow(rig: &Rig) -> Watcher {
    let stream = MaybeTlsStream::Plain(narrow_socket(rig).await);
    let (socket, _) = client_async(rig.url("ws", "/api/status"), stream).await.unwrap();
    Watcher { socket }
}

#[actix::test]
async fn who_stops_reading_slows_nobody_and_is_told_where_to_resume() {
    let rig = Rig::start(&StatusFeed { buffer: 32, ..settings() });
    let (mut lazy, mut keen) = (narrow(&rig).await, Watcher::open(&rig, "").await);
    rig.until_live(2).await;
    let padding = "x".repeat(16 * 1024);
    while rig.observe().await.unwrap().lagged == 0 {
        assert!(rig.made() < 5_000, "nobody was told that it lags");
        let next = rig.made();
        rig.append_with(8, &padding).await;
        assert_eq!(numbers(&keen.events(8).await), (next..next + 8).collect::<Vec<_>>());
    }
    rig.until_live(1).await;

    // It reads again: first what had been sent, without a hole, then that it lags.
    let (mut next, mut last) = (0, String::new());
    let lagged = loop {
        let event = lazy.event().await;
        if event["type"] == "Lagged" {
            break event;
        }
        assert_eq!(number(&event), next);
        (next, last) = (next + 1, id(&event).to_owned());
    };
    assert_eq!(lagged, serde_json::json!({"type": "Lagged", "resumeFrom": last}));
    assert_eq!(lazy.closed().await, Some(CloseCode::Again));
    let mut back = Watcher::open(&rig, &format!("?since={last}")).await;
    let rest: Vec<u64> = (next..rig.made()).collect();
    assert!(!rest.is_empty());
    assert_eq!(numbers(&back.events(rest.len() as u64).await), rest);
}

/// Only one is let in, so another gets in only when the first was let go.
fn one_place(ping: Duration) -> StatusFeed {
    StatusFeed { buffer: 1_000_000, ping, max_subscribers: 1 }
}

#[actix::test]
async fn who_takes_nothing_at_all_is_cut_off() {
    let rig = Rig::start(&one_place(Duration::from_millis(500)));
    rig.append(1).await;
    let mut lazy = narrow_socket(&rig).await;
    lazy.write_all(b"GET /api/status/events?since=0-0 HTTP/1.1\r\nhost: feed\r\n\r\n").await.unwrap();
    let mut first = [0];
    tokio::time::timeout(PATIENCE, lazy.read_exact(&mut first)).await.unwrap().unwrap();
    let padding = "x".repeat(64 * 1024);
    until("it is cut off", async || {
        if rig.made() < 500 {
            rig.append_with(10, &padding).await;
        }
        Watcher::try_open(&rig, "").await.is_ok()
    })
    .await;
    drop(lazy);
}

#[actix::test]
async fn pings_that_are_not_answered_end_the_feed() {
    let rig = Rig::start(&one_place(Duration::from_millis(200)));
    let mut deaf = Watcher::open(&rig, "").await;
    // Answers are sent when it reads, and it does not read.
    until("it is let go", async || Watcher::try_open(&rig, "").await.is_ok()).await;
    while !matches!(deaf.hear().await, Heard::Closed(_)) {}
}

#[actix::test]
async fn pings_that_are_answered_keep_the_feed() {
    let rig = Rig::start(&StatusFeed { ping: Duration::from_millis(500), ..settings() });
    // On a machine that stops for a while an answer may be late: what counts is that one connection lives.
    for _ in 0..20 {
        let mut watcher = Watcher::open(&rig, "").await;
        let mut pings = 0;
        while let Heard::Ping = watcher.hear().await {
            pings += 1;
            if pings == 6 {
                return;
            }
        }
    }
    panic!("nobody heard six pings");
}

#[actix::test]
async fn there_are_no_more_subscribers_than_allowed() {
    let rig = Rig::start(&StatusFeed { max_subscribers: 2, ..settings() });
    let (one, _two) = (Watcher::open(&rig, "").await, Source::open(&rig, "", "").await);
    let Err(Error::Http(refused)) = Watcher::try_open(&rig, "").await else { panic!("a third was let in") };
    assert_eq!(refused.status().as_u16(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let mut refused = awc::Client::new().get(rig.url("http", "/api/status/events")).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.json::<Value>().await.unwrap()["status"], 503);
    drop(one);
    until("there is a place again", async || Watcher::try_open(&rig, "").await.is_ok()).await;
}

#[actix::test]
async fn who_sends_too_much_is_closed() {
    let rig = Rig::start(&settings());
    let mut large = Watcher::open(&rig, "").await;
    large.socket.send(Message::text("x".repeat(100_000))).await.unwrap();
    assert_eq!(large.closed().await, Some(CloseCode::Size));

    let mut many = Watcher::open(&rig, "").await;
    for _ in 0..100 {
        many.socket.send(Message::text("of no interest")).await.unwrap();
    }
    rig.until_live(1).await;
    rig.append(1).await;
    assert_eq!(numbers(&many.events(1).await), [0]);
    // It may be closed before it has sent them all.
    for _ in 0..1_000 {
        let _ = many.socket.send(Message::text("of no interest")).await;
    }
    assert_eq!(many.closed().await, Some(CloseCode::Policy));
}

#[actix::test]
async fn bad_requests_are_told_what_is_wrong() {
    let rig = Rig::start(&settings());
    let get = async |path: &str| {
        let mut response = awc::Client::new().get(rig.url("http", path)).send().await.unwrap();
        assert_eq!(response.headers().get("content-type").unwrap(), "application/problem+json", "{path}");
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    for path in ["/api/status", "/api/status/events"] {
        let (status, problem) = get(&format!("{path}?since=yesterday&ownerId=&deliveryId=a%2Fb&from=1")).await;
        assert_eq!(status, 422);
        let pointers: Vec<_> = problem["errors"].as_array().unwrap().iter().map(|e| e["pointer"].clone()).collect();
        assert_eq!(pointers, ["/since", "/ownerId", "/deliveryId", "/from"]);
        assert_eq!(problem["instance"], path);
    }
}

#[actix::test]
async fn a_websocket_has_to_be_asked_for() {
    let rig = Rig::start(&settings());
    let mut socket = TcpStream::connect(rig.address).await.unwrap();
    socket.write_all(b"GET /api/status HTTP/1.1\r\nhost: feed\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await.unwrap().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 426 ") && head.contains("upgrade: websocket"), "{head}");
    assert!(head.contains("content-type: application/problem+json"), "{head}");
    assert_eq!(serde_json::from_str::<Value>(body).unwrap()["status"], 426);
}

#[actix::test]
async fn all_feeds_end_when_the_instance_does() {
    let rig = Rig::start(&settings());
    let (mut watcher, mut source) = (Watcher::open(&rig, "").await, Source::open(&rig, "", "").await);
    rig.until_live(2).await;
    rig.feed.close();
    assert_eq!(watcher.closed().await, Some(CloseCode::Away));
    assert!(source.event().await.is_none());
    assert!(matches!(Watcher::try_open(&rig, "").await, Err(Error::Http(refused)) if refused.status().as_u16() == 503));
}
