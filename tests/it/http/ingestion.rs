//! `POST`, `PUT` and batch: what is answered when, and what is on the stream then.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use drone_delivery::domain::time::now;
use drone_delivery::domain::{OperationKind, Workflow};
use drone_delivery::store::workflows::{Stored, Workflows};
use futures_util::future::join_all;
use serde_json::json;

use super::support::{TestApi, answer, eventually, example, example_of};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[actix_web::test]
async fn an_accepted_request_is_on_its_stream_with_its_trace() {
    let api = TestApi::start().await;
    let request = api.request("POST", "/api/deliveryrequests").insert_header(("traceparent", TRACE));
    let accepted = answer(request.insert_header(("x-request-id", "mine")).send_json(&example())).await;
    assert_eq!(accepted.status, 202, "{}", accepted.body);
    assert_eq!(accepted.body, json!({"deliveryId": accepted.id(), "status": "Accepted"}));
    assert_eq!(accepted.header("location"), Some(format!("/api/deliveryrequests/{}", accepted.id()).as_str()));
    assert_eq!(accepted.header("x-request-id"), Some("mine"));
    let [operation] = &api.streams.operations()[..] else { panic!() };
    assert_eq!((operation.id.as_str(), operation.trace.as_deref()), (accepted.id(), Some(TRACE)));
    let OperationKind::Schedule(request) = &operation.op else { panic!() };
    assert_eq!((request.owner_id.as_str(), request.package_info.package_id.as_str()), ("contoso", accepted.id()));
    api.stop().await;
}

#[actix_web::test]
async fn the_answer_waits_for_the_stream() {
    let api = TestApi::start().await;
    api.streams.hold_up();
    let waiting = actix_web::rt::spawn(answer(api.request("POST", "/api/deliveryrequests").send_json(&example())));
    api.streams.begun(1).await;
    assert!(!waiting.is_finished() && api.streams.entries() == 0);
    api.streams.go_on();
    assert_eq!(waiting.await.unwrap().status, 202);
    assert_eq!(api.streams.entries(), 1);
    api.stop().await;
}

#[actix_web::test]
async fn what_waits_is_bounded() {
    let api = TestApi::with(|settings| {
        settings.partitions.count = 1;
        settings.ingestion.max_waiting = 1;
    })
    .await;
    api.streams.hold_up();
    let post = || actix_web::rt::spawn(answer(api.request("POST", "/api/deliveryrequests").send_json(&example())));
    let first = post();
    api.streams.begun(1).await;
    let others = [post(), post(), post()];
    eventually("two do not fit", || others.iter().filter(|other| other.is_finished()).count() == 2).await;
    api.streams.go_on();
    let mut statuses = vec![first.await.unwrap().status];
    for other in others {
        let other = other.await.unwrap();
        if other.status != 202 {
            other.assert_problem(429);
            assert!(other.header("retry-after").is_some());
        }
        statuses.push(other.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 202, 429, 429]);
    assert_eq!(api.streams.operations().len(), 2);
    api.stop().await;
}

/// The moment that few requests are given to become more is longer here than the test: without the sixteenth nobody
/// would be answered.
#[actix_web::test]
async fn few_requests_may_become_more_and_a_lone_client_never_waits() {
    let api = TestApi::with(|settings| {
        settings.partitions.count = 1;
        settings.ingestion.linger = Duration::from_secs(600);
    })
    .await;
    for _ in 0..3 {
        assert_eq!(api.post(&example()).await.status, 202);
    }
    let post = || actix_web::rt::spawn(answer(api.request("POST", "/api/deliveryrequests").send_json(&example())));
    api.streams.hold_up();
    let pair = json!([example(), example()]).to_string();
    let pair = async { api.batch("application/json", pair).await.status };
    let others = async {
        api.streams.begun(4).await;
        let mut others: Vec<_> = (0..15).map(|_| post()).collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        api.streams.go_on();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(others.iter().all(|other| !other.is_finished()), "fifteen are few");
        others.push(post());
        join_all(others).await
    };
    let (pair, others) = tokio::join!(pair, others);
    assert_eq!(pair, 202);
    assert!(others.into_iter().all(|other| other.unwrap().status == 202));
    assert_eq!((api.streams.entries(), api.streams.operations().len()), (5, 3 + 2 + 16));
    api.stop().await;
}

#[actix_web::test]
async fn while_the_stream_is_away_nothing_is_accepted() {
    let api = TestApi::with(|settings| settings.ingestion.write_timeout = Duration::from_millis(50)).await;
    api.streams.away.store(true, Ordering::SeqCst);
    let refused = api.post(&example()).await;
    refused.assert_problem(503);
    assert!(refused.header("retry-after").is_some());
    api.streams.away.store(false, Ordering::SeqCst);
    assert_eq!(api.post(&example()).await.status, 202);
    api.stop().await;
}

#[actix_web::test]
async fn a_client_that_goes_away_does_not_take_its_request_along() {
    let api = TestApi::start().await;
    api.streams.hold_up();
    let body = example().to_string();
    let mut socket = std::net::TcpStream::connect(api.address).unwrap();
    write!(
        socket,
        "POST /api/deliveryrequests HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    api.streams.begun(1).await;
    drop(socket);
    api.streams.go_on();
    eventually("the request is written", || api.streams.entries() == 1).await;
    api.stop().await;
}

#[actix_web::test]
async fn a_repeated_key_is_the_same_delivery() {
    let api = TestApi::start().await;
    let first = api.post_with_key("k", &example()).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (202, None));
    let again = api.post_with_key("k", &example()).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (202, Some("true")));
    assert_eq!(again.body, first.body);
    api.post_with_key("k", &example_of("other")).await.assert_problem(422);
    let request = api.request("POST", "/api/deliveryrequests").insert_header(("x-client-id", "another"));
    let other_client = answer(request.insert_header(("idempotency-key", "k")).send_json(&example())).await;
    assert_ne!(other_client.id(), first.id());
    assert_eq!(api.streams.operations().len(), 2);
    api.post_with_key(&"x".repeat(256), &example()).await.assert_problem(400);
    api.stop().await;
}

#[actix_web::test]
async fn a_key_whose_first_request_is_under_way_waits() {
    let api = TestApi::start().await;
    api.streams.hold_up();
    let request = api.request("POST", "/api/deliveryrequests").insert_header(("idempotency-key", "k"));
    let first = actix_web::rt::spawn(answer(request.send_json(&example())));
    api.streams.begun(1).await;
    api.post_with_key("k", &example()).await.assert_problem(409);
    api.post_with_key("k", &example_of("other")).await.assert_problem(422);
    api.streams.go_on();
    assert_eq!(first.await.unwrap().status, 202);
    assert_eq!(api.post_with_key("k", &example()).await.header("idempotent-replayed"), Some("true"));
    api.stop().await;
}

#[actix_web::test]
async fn a_key_whose_write_has_an_unknown_fate_is_tried_again_by_the_same_body_only() {
    let api = TestApi::with(|settings| settings.ingestion.write_timeout = Duration::from_millis(50)).await;
    api.streams.away.store(true, Ordering::SeqCst);
    api.post_with_key("k", &example()).await.assert_problem(503);
    api.streams.away.store(false, Ordering::SeqCst);
    api.post_with_key("k", &example_of("other")).await.assert_problem(422);
    let again = api.post_with_key("k", &example()).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (202, None));
    api.stop().await;
}

#[actix_web::test]
async fn the_callers_id_is_one_delivery() {
    let api = TestApi::start().await;
    let first = api.put("d-1", &example()).await;
    assert_eq!((first.status, first.id()), (202, "d-1"));
    let again = api.put("d-1", &example()).await;
    assert_eq!((again.status, again.body), (202, first.body));
    api.put("d-1", &example_of("other")).await.assert_problem(409);
    api.put("a%20b", &example()).await.assert_problem(400);
    assert_eq!(api.streams.operations().len(), 1);
    api.stop().await;
}

#[actix_web::test]
async fn a_put_knows_the_workflow_when_its_own_record_is_gone() {
    let api = TestApi::start().await;
    let accepted = api.post(&example()).await;
    let [operation] = &api.streams.operations()[..] else { panic!() };
    let OperationKind::Schedule(request) = &operation.op else { panic!() };
    let workflow = Workflow::accepted(operation, Arc::clone(request), now());
    let workflows = Workflows::new(api.state.clone());
    workflows.save(&mut [&mut Stored::new(workflow)]).await.unwrap();
    api.put(accepted.id(), &example_of("other")).await.assert_problem(409);
    assert_eq!(api.put(accepted.id(), &example()).await.header("idempotent-replayed"), Some("true"));
    assert_eq!(api.streams.operations().len(), 1);
    api.stop().await;
}

#[actix_web::test]
async fn without_the_store_only_requests_that_need_it_are_refused() {
    let api = TestApi::start().await;
    api.state.away.store(true, Ordering::SeqCst);
    assert_eq!(api.post(&example()).await.status, 202);
    for refused in [api.post_with_key("k", &example()).await, api.put("d", &example()).await] {
        refused.assert_problem(503);
        assert!(refused.header("retry-after").is_some());
    }
    api.state.away.store(false, Ordering::SeqCst);
    assert_eq!(api.post_with_key("k", &example()).await.status, 202);
    assert_eq!(api.put("d", &example()).await.status, 202);
    api.stop().await;
}

#[actix_web::test]
async fn a_batch_judges_each_item_and_writes_each_partition_once() {
    let api = TestApi::with(|settings| settings.partitions.count = 2).await;
    let mut items = vec![example(); 40];
    items[3] = json!({"ownerId": "x"});
    let taken = api.batch("application/json", json!(items).to_string()).await;
    assert_eq!(taken.status, 202, "{}", taken.body);
    assert_eq!((&taken.body["accepted"], &taken.body["rejected"]), (&json!(39), &json!(1)));
    assert_eq!(taken.body["results"][3]["problem"]["status"], 422);
    assert_eq!(taken.body["results"][4]["index"], 4);
    assert_eq!(api.streams.operations().len(), 39);
    assert_eq!(api.streams.entries(), 2);
    let mut written: Vec<_> = api.streams.operations().iter().map(|op| op.id.to_string()).collect();
    let results = taken.body["results"].as_array().unwrap();
    let mut told: Vec<_> = results.iter().filter_map(|r| Some(r["deliveryId"].as_str()?.to_owned())).collect();
    written.sort();
    told.sort();
    assert_eq!(written, told);
    api.stop().await;
}

#[actix_web::test]
async fn a_batch_may_be_lines() {
    let api = TestApi::start().await;
    let lines = format!("{}\nnot json\n\n{}", example(), example());
    let taken = api.batch("application/x-ndjson", lines).await;
    assert_eq!((taken.status, &taken.body["accepted"]), (202, &json!(2)));
    assert_eq!(taken.body["results"][1]["problem"]["status"], 400);
    api.stop().await;
}

#[actix_web::test]
async fn a_batch_with_a_key_is_the_same_deliveries() {
    let api = TestApi::start().await;
    let send = async |body: String| {
        let request = api.request("POST", "/api/deliveryrequests/batch").insert_header(("idempotency-key", "k"));
        answer(request.content_type("application/json").send_body(body)).await
    };
    let both = json!([example(), example()]).to_string();
    let first = send(both.clone()).await;
    assert_eq!(send(both).await.body, first.body);
    assert_ne!(first.body["results"][0]["deliveryId"], first.body["results"][1]["deliveryId"]);
    send(json!([example()]).to_string()).await.assert_problem(422);
    api.stop().await;
}

#[actix_web::test]
async fn a_batch_that_cannot_be_taken_says_why() {
    let api = TestApi::with(|settings| settings.ingestion.write_timeout = Duration::from_millis(50)).await;
    let none = api.batch("application/json", json!([{"ownerId": 1}, 5]).to_string()).await;
    none.assert_problem(422);
    assert!(none.pointers().contains(&"/0/ownerId") && none.pointers().contains(&"/1"));
    let json = "application/json";
    api.batch(json, "[]".into()).await.assert_problem(422);
    api.batch(json, "{}".into()).await.assert_problem(422);
    api.batch(json, "[".into()).await.assert_problem(400);
    api.batch(json, json!(vec![1; 1001]).to_string()).await.assert_problem(413);
    api.streams.away.store(true, Ordering::SeqCst);
    api.batch(json, json!([example(), {}]).to_string()).await.assert_problem(503);
    assert_eq!(api.streams.entries(), 0);
    api.stop().await;
}

#[actix_web::test]
async fn the_limit_route_keeps_nothing() {
    let api = TestApi::start().await;
    assert_eq!(answer(api.request("POST", "/api/limit").send_json(&example())).await.status, 202);
    answer(api.request("POST", "/api/limit").send_json(&json!({}))).await.assert_problem(422);
    assert_eq!(api.streams.entries(), 0);
    api.stop().await;
}
