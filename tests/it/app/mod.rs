//! The whole program, as its users meet it: requests over REST, changes over the websocket, on both engines.

mod changes;
mod notices;
mod operators;
mod way;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::http::Client;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// The demo's accounts and fleet, with flights that take a moment.
const DEMO: &str = "[demo]\nenabled = true\ntime_factor = 600.0\n";

fn request(owner: &str) -> Value {
    json!({
        "ownerId": owner,
        "pickupLocation": {"latitude": 47.6101, "longitude": -122.2015},
        "dropOffLocation": "47.6205,-122.3493",
        "packageInfo": {"size": "Small", "weight": 1.5, "tag": "books"}
    })
}

/// Sends a request under an id of the test's.
async fn schedule(client: &mut Client, id: &str, body: &Value) {
    let path = format!("/api/deliveryrequests/{id}");
    let answer = client.call("PUT", &path, &[], Some(&body.to_string())).await.unwrap();
    assert_eq!(answer.status, 202, "{}", answer.json());
}

async fn look(client: &mut Client, path: &str) -> Value {
    let answer = client.get(path).await.unwrap();
    assert_eq!(answer.status, 200, "{path}: {}", answer.json());
    answer.json()
}

async fn status_of(client: &mut Client, path: &str) -> u16 {
    client.get(path).await.unwrap().status
}

/// Waits until a delivery is what it is to be; tells what it is when it does not become that.
async fn until(client: &mut Client, id: &str, done: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let workflow = look(client, &format!("/api/deliveryrequests/{id}")).await;
        if done(&workflow) {
            return workflow;
        }
        assert!(Instant::now() < deadline, "{id} is still {workflow:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn until_status(client: &mut Client, id: &str, status: &str) -> Value {
    until(client, id, |workflow| workflow["status"] == status).await
}

/// Nothing of a delivery is left with the services.
async fn assert_nothing_left(client: &mut Client, id: &str, package: &str) {
    for path in [
        format!("/api/packages/{package}"),
        format!("/api/thirdpartydeliveries/{id}"),
        format!("/api/dronedeliveries/{id}"),
        format!("/api/deliveries/{id}"),
    ] {
        let status = status_of(client, &path).await;
        assert!(matches!(status, 404 | 410), "{path} answers {status}");
    }
}
