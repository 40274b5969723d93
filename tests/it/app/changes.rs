//! Cancel and reschedule, in the order they were accepted.

use serde_json::{Value, json};

use super::{assert_nothing_left, look, request, schedule, until, until_status};
use crate::faults::program::Program;
use crate::support::http::Client;
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

const DEMO: &str = "[demo]\nenabled = true\ntime_factor = 1.0\n";

async fn patch(client: &mut Client, id: &str, body: &Value) -> u16 {
    let path = format!("/api/deliveryrequests/{id}");
    client.call("PATCH", &path, &[], Some(&body.to_string())).await.unwrap().status
}

async fn delete(client: &mut Client, id: &str) -> u16 {
    client.call("DELETE", &format!("/api/deliveryrequests/{id}"), &[], None).await.unwrap().status
}

fn in_december(owner: &str) -> Value {
    let mut body = request(owner);
    body["pickupTime"] = json!("2030-12-01T10:00:00Z");
    body["deadline"] = json!("2030-12-01T12:00:00Z");
    body
}

async fn plans_change(program: &mut Program) {
    program.start().await;
    let mut client = program.client();
    schedule(&mut client, "c-1", &in_december("contoso")).await;
    until_status(&mut client, "c-1", "Scheduled").await;

    let later = json!({"pickupTime": "2030-12-02T10:00:00Z", "deadline": "2030-12-02T12:00:00Z"});
    assert_eq!(patch(&mut client, "c-1", &later).await, 202);
    let moved = until(&mut client, "c-1", |w| w["request"]["pickupTime"] == "2030-12-02T10:00:00Z").await;
    assert_eq!(moved["status"], "Scheduled");
    let booked = look(&mut client, "/api/dronedeliveries/c-1").await;
    assert!(booked["from"].as_str().unwrap().starts_with("2030-12-02"), "{booked:#}");
    let entity = look(&mut client, "/api/deliveries/c-1").await;
    assert_eq!(entity["pickupTime"], "2030-12-02T10:00:00Z");

    // A plan that cannot be kept leaves everything as it was and says why.
    let hopeless = json!({"deadline": "2030-12-02T10:00:01Z"});
    assert_eq!(patch(&mut client, "c-1", &hopeless).await, 202);
    let kept = until(&mut client, "c-1", |w| w["changeRefused"].is_object()).await;
    assert_eq!(kept["changeRefused"]["code"], "NoDroneBeforeDeadline");
    assert_eq!(kept["request"]["deadline"], "2030-12-02T12:00:00Z");
    assert_eq!(look(&mut client, "/api/dronedeliveries/c-1").await, booked);

    for bad in
        [json!({}), json!({"deadline": "soon"}), json!({"weight": 1}), json!({"deadline": "2020-01-01T00:00:00Z"})]
    {
        assert_eq!(patch(&mut client, "c-1", &bad).await, 422, "{bad}");
    }
    assert_eq!(patch(&mut client, "nobody", &later).await, 404);

    // Cancelled twice, changed after: the first cancel holds.
    assert_eq!(delete(&mut client, "c-1").await, 202);
    assert_eq!(delete(&mut client, "c-1").await, 202);
    until_status(&mut client, "c-1", "Cancelled").await;
    assert_nothing_left(&mut client, "c-1", "c-1").await;
    assert_eq!(patch(&mut client, "c-1", &later).await, 409);
    assert_eq!(delete(&mut client, "nobody").await, 404);

    // Cancelled before it can have been read, and during.
    for n in 0..20 {
        let id = format!("c-early-{n}");
        schedule(&mut client, &id, &in_december("contoso")).await;
        assert_eq!(delete(&mut client, &id).await, 202);
    }
    for n in 0..20 {
        let id = format!("c-early-{n}");
        until_status(&mut client, &id, "Cancelled").await;
        assert_nothing_left(&mut client, &id, &id).await;
    }
    // A cancelled id stays refused.
    let again = client.call("PUT", "/api/dronedeliveries/c-1", &[], Some("{}")).await.unwrap();
    assert!(matches!(again.status, 409 | 422), "{}", again.status);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    plans_change(&mut Program::embedded(DEMO)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster() {
    plans_change(&mut Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), DEMO)).await;
}
