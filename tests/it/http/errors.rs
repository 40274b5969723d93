//! Every error is a problem, and a bad client harms nobody else.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use drone_delivery::cli::health::{self, Health, HealthError};
use serde_json::json;

use super::support::{TestApi, answer, example};

#[actix_web::test]
async fn every_error_is_a_problem_that_names_the_fault() {
    let api = TestApi::start().await;
    api.get("/nowhere").await.assert_problem(404);
    let method = answer(api.request("DELETE", "/api/deliveryrequests").send()).await;
    method.assert_problem(405);
    assert_eq!(method.header("allow"), Some("POST, GET"));
    let post = || api.request("POST", "/api/deliveryrequests");
    answer(post().content_type("text/plain").send_body("x")).await.assert_problem(415);
    answer(post().content_type("application/json").send_body("{\"ownerId\":")).await.assert_problem(400);
    answer(post().content_type("application/json").send_body(vec![0xff, 0xfe, 0])).await.assert_problem(400);
    let invalid = api.post(&json!({"ownerId": "", "wings": 2})).await;
    invalid.assert_problem(422);
    assert_eq!(invalid.pointers(), ["/dropOffLocation", "/ownerId", "/packageInfo", "/pickupLocation", "/wings"]);
    assert_eq!(invalid.body["instance"], "/api/deliveryrequests");
    api.stop().await;
}

#[actix_web::test]
async fn a_panic_is_answered() {
    let api = TestApi::start().await;
    api.get("/panic").await.assert_problem(500);
    assert_eq!(api.post(&example()).await.status, 202);
    api.stop().await;
}

#[actix_web::test]
async fn a_body_that_is_too_large_is_refused_announced_or_not() {
    let api = TestApi::with(|settings| settings.http.max_body_bytes = 2000).await;
    let large = " ".repeat(3000);
    let post = || api.request("POST", "/api/deliveryrequests").content_type("application/json");
    answer(post().send_body(large.clone())).await.assert_problem(413);
    let pieces = futures_util::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from(large))]);
    answer(post().send_stream(pieces)).await.assert_problem(413);
    assert_eq!(api.post(&example()).await.status, 202);
    api.stop().await;
}

#[actix_web::test]
async fn a_body_that_does_not_come_is_given_up() {
    let api = TestApi::with(|settings| settings.http.body_timeout = Duration::from_millis(200)).await;
    let address = api.address;
    let told = tokio::task::spawn_blocking(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let head = "POST /api/deliveryrequests HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
        write!(socket, "{head}content-length: 100\r\n\r\n{{").unwrap();
        let mut told = vec![0; 4096];
        let read = socket.read(&mut told).unwrap();
        String::from_utf8_lossy(&told[..read]).into_owned()
    });
    let told = told.await.unwrap();
    assert!(told.starts_with("HTTP/1.1 408") && told.contains("application/problem+json"), "{told}");
    api.stop().await;
}

#[actix_web::test]
async fn readiness_names_the_part_that_is_away() {
    let api = TestApi::start().await;
    assert_eq!(api.get("/livez").await.status, 200);
    api.health.up("stream");
    api.health.check("store", || async { Ok(()) });
    assert_eq!(api.get("/readyz").await.status, 200);
    api.health.down("stream", "the broker is away");
    api.health.check("store", || async { Err("no answer".to_owned()) });
    let away = api.get("/readyz").await;
    away.assert_problem(503);
    assert_eq!(away.body["detail"], "not available: store, stream");
    assert_eq!(away.body["parts"][1], json!({"name": "stream", "up": false, "reason": "the broker is away"}));
    assert_eq!(api.get("/livez").await.status, 200);
    api.stop().await;
}

/// What `drone-delivery health` says; asked again when a slow machine left it without an answer.
async fn health(api: &TestApi) -> Result<String, HealthError> {
    let whom = Health { url: format!("http://{}/", api.address) };
    for _ in 0..10 {
        match health::ask(&whom).await {
            Err(HealthError::NoAnswer(_)) => {}
            said => return said,
        }
    }
    health::ask(&whom).await
}

#[actix_web::test]
async fn the_health_command_tells_ready_from_not() {
    let api = TestApi::start().await;
    api.health.up("stream");
    let ready = health(&api).await.unwrap();
    assert!(ready.contains("\"ready\""), "{ready}");
    api.health.down("stream", "the broker is away");
    let away = health(&api).await.unwrap_err();
    assert!(matches!(&away, HealthError::NotReady(status, _) if status.as_u16() == 503), "{away}");
    assert!(away.to_string().contains("the broker is away"), "{away}");
    let nobody = Health { url: "http://127.0.0.1:1".to_owned() };
    assert!(matches!(health::ask(&nobody).await, Err(HealthError::NoAnswer(_))));
    api.stop().await;
}

#[actix_web::test]
async fn calls_are_counted() {
    drone_delivery::metrics::start();
    let api = TestApi::start().await;
    assert_eq!(api.post(&example()).await.status, 202);
    let counted = api.get("/metrics").await;
    let text = counted.body.as_str().unwrap();
    assert!(text.contains("drone_requests_accepted_total"), "{text}");
    assert!(text.contains("route=\"/api/deliveryrequests\""), "{text}");
    api.stop().await;
}
