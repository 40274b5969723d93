//! The document and the routes agree: what it describes is there and answers as it says, and nothing else is.

use std::collections::BTreeSet;

use drone_delivery::http::openapi::DOCUMENT;
use serde_json::Value;

use crate::faults::program::Program;

const METHODS: [&str; 5] = ["get", "put", "post", "patch", "delete"];

/// The paths that clients were promised.
const PROMISED: [&str; 36] = [
    "/api/accounts/{id}",
    "/api/deliveries",
    "/api/deliveries/{id}",
    "/api/deliveries/{id}/confirmations",
    "/api/deliveries/{id}/events",
    "/api/deliveries/{id}/notifymerequests",
    "/api/deliveries/{id}/status",
    "/api/deliveryrequests",
    "/api/deliveryrequests/batch",
    "/api/deliveryrequests/{deliveryId}",
    "/api/dronedeliveries/{deliveryId}",
    "/api/drones",
    "/api/drones/{id}",
    "/api/drones/{id}/reservations",
    "/api/drones/{id}/telemetry",
    "/api/operations/agents",
    "/api/operations/agents/{service}/pause",
    "/api/operations/agents/{service}/resume",
    "/api/operations/alerts",
    "/api/operations/deadletters",
    "/api/operations/deadletters/{id}/redrive",
    "/api/operations/partitions",
    "/api/operations/partitions/{partition}/pause",
    "/api/operations/partitions/{partition}/resume",
    "/api/operations/summary",
    "/api/operations/workflows/{action}",
    "/api/operations/workflows/{deliveryId}/{action}",
    "/api/packages/{id}",
    "/api/status",
    "/api/status/events",
    "/api/thirdpartydeliveries/{deliveryId}",
    "/docs",
    "/livez",
    "/metrics",
    "/openapi.json",
    "/readyz",
];

fn document() -> Value {
    serde_json::from_str(DOCUMENT).unwrap()
}

/// The path with something that is not there in every place.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[test]
fn every_promised_path_is_described() {
    let document = document();
    let described: BTreeSet<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(described, BTreeSet::from(PROMISED));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_there_as_described_and_no_other_is() {
    let mut program = Program::embedded("");
    program.start().await;
    for (path, calls) in document()["paths"].as_object().unwrap() {
        for method in METHODS {
            // A connection for each: a feed does not end.
            let answer = program.client().call(&method.to_uppercase(), &filled(path), &[], None).await.unwrap();
            let (status, body) = (answer.status.to_string(), answer.json());
            let Some(call) = calls.get(method) else {
                assert_eq!(status, "405", "{method} {path} is not described: {body}");
                continue;
            };
            let detail = body["detail"].as_str().unwrap_or_default();
            assert!(!detail.starts_with("there is no route"), "{method} {path}: {body}");
            assert!(call["responses"].get(&status).is_some(), "{method} {path} answers {status}: {body}");
            assert!(answer.header("x-request-id").is_some(), "{method} {path}");
        }
    }
}
