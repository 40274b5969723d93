//! One request from its 202 to its end, and the ways it can fail.

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;

use super::{DEMO, PATIENCE, assert_nothing_left, look, request, schedule, until, until_status};
use crate::faults::program::Program;
use crate::support::servers::{fresh_prefix, shared_rabbitmq, shared_redis};

/// What the feed tells of one delivery, up to its completion.
async fn watch(port: u16, id: &str) -> tokio::task::JoinHandle<Vec<String>> {
    let (mut socket, _) = connect_async(format!("ws://127.0.0.1:{port}/api/status?deliveryId={id}")).await.unwrap();
    tokio::spawn(async move {
        let mut told = Vec::new();
        loop {
            let message = tokio::time::timeout(PATIENCE, socket.next()).await;
            let Ok(Some(Ok(message))) = message else { panic!("the feed ended after {told:?}") };
            let Message::Text(text) = message else { continue };
            let event: Value = serde_json::from_str(&text).unwrap();
            let what = ["status", "step", "stage"].iter().find_map(|name| event[name].as_str());
            told.extend(what.map(str::to_owned));
            if event["status"] == "Completed" {
                return told;
            }
        }
    })
}

/// The first mention of each, in order.
fn order(told: &[String]) -> Vec<&str> {
    let mut seen = Vec::new();
    for what in told {
        if !seen.contains(&what.as_str()) {
            seen.push(what.as_str());
        }
    }
    seen
}

async fn from_accepted_to_completed(port: u16, other: u16) {
    let mut client = crate::support::http::Client::new(port);
    let told = watch(other, "way-1").await;
    schedule(&mut client, "way-1", &request("contoso")).await;
    let right_after = look(&mut client, "/api/deliveryrequests/way-1").await;
    assert_eq!(right_after["ownerId"], "contoso");
    let scheduled = until(&mut client, "way-1", |w| w["droneId"].is_string()).await;
    assert!(scheduled["steps"].as_array().unwrap().iter().all(|step| step["state"] == "Done"), "{scheduled:#}");
    let drone = scheduled["droneId"].as_str().unwrap().to_owned();
    let booked = look(&mut client, "/api/dronedeliveries/way-1").await;
    assert_eq!(booked["droneId"], drone.as_str());
    until_status(&mut client, "way-1", "Completed").await;
    let told = told.await.unwrap();
    let expected = [
        "Accepted",
        "Scheduling",
        "account",
        "package",
        "transport",
        "drone",
        "delivery",
        "Created",
        "Scheduled",
        "HeadedToPickup",
        "PickedUp",
        "HeadedToDropOff",
        "Delivered",
        "Completed",
    ];
    assert_eq!(order(&told), expected, "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    let mut program = Program::embedded(DEMO);
    program.start().await;
    from_accepted_to_completed(program.port, program.port).await;
}

/// Two instances share the partitions; what one takes in, the other tells of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_of_two() {
    let prefix = fresh_prefix();
    let mut first = Program::cluster(shared_rabbitmq(), shared_redis(), &prefix, DEMO);
    let mut second = Program::cluster(shared_rabbitmq(), shared_redis(), &prefix, DEMO);
    first.start().await;
    second.start().await;
    from_accepted_to_completed(first.port, second.port).await;
    let mut client = second.client();
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let partitions = look(&mut client, "/api/operations/partitions").await;
        let owners: std::collections::BTreeSet<&str> =
            partitions["items"].as_array().unwrap().iter().filter_map(|p| p["owner"].as_str()).collect();
        if owners.len() == 2 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "not shared: {partitions:#}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    for n in 0..40 {
        schedule(&mut client, &format!("shared-{n}"), &request("contoso")).await;
    }
    for n in 0..40 {
        until(&mut client, &format!("shared-{n}"), |w| w["droneId"].is_string()).await;
    }
}

async fn fails_as_it_should(program: &mut Program) {
    program.start().await;
    let mut client = program.client();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut body = request("contoso");
        change(&mut body);
        body
    };
    let cases: Vec<(&str, &str, Value)> = vec![
        ("f-unknown", "AccountUnknown", request("nobody-here")),
        ("f-suspended", "AccountSuspended", request("litware")),
        ("f-heavy", "PackageTooHeavy", with(&|b| b["packageInfo"]["weight"] = json!(500))),
        ("f-far", "OutOfArea", with(&|b| b["pickupLocation"] = json!("-33.86,151.21"))),
        (
            "f-late",
            "NoDroneBeforeDeadline",
            with(&|b| {
                b["pickupTime"] = json!("2030-01-01T10:00:00Z");
                b["deadline"] = json!("2030-01-01T10:00:01Z");
            }),
        ),
    ];
    for (id, _, body) in &cases {
        schedule(&mut client, id, body).await;
    }
    for (id, code, _) in &cases {
        let workflow = until_status(&mut client, id, "Failed").await;
        assert_eq!(workflow["reason"]["code"], *code, "{workflow:#}");
        assert_nothing_left(&mut client, id, id).await;
    }
    let failed = look(&mut client, "/api/deliveryrequests?status=Failed&limit=3").await;
    assert_eq!(failed["items"].as_array().unwrap().len(), 3);
    let cursor = failed["next"].as_str().unwrap();
    let rest = look(&mut client, &format!("/api/deliveryrequests?status=Failed&limit=3&cursor={cursor}")).await;
    assert_eq!((rest["items"].as_array().unwrap().len(), rest["next"].is_null()), (2, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_embedded() {
    fails_as_it_should(&mut Program::embedded(DEMO)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_cluster() {
    let mut program = Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), DEMO);
    fails_as_it_should(&mut program).await;
}

/// Every mode carries requests, cancels and changes through.
async fn mode(program: &mut Program) {
    program.start().await;
    let mut client = program.client();
    for n in 0..30 {
        schedule(&mut client, &format!("m-{n}"), &request("contoso")).await;
        if n % 3 == 0 {
            let path = format!("/api/deliveryrequests/m-{n}");
            assert_eq!(client.call("DELETE", &path, &[], None).await.unwrap().status, 202);
        }
    }
    for n in 0..30 {
        let id = format!("m-{n}");
        if n % 3 == 0 {
            until_status(&mut client, &id, "Cancelled").await;
            assert_nothing_left(&mut client, &id, &id).await;
        } else {
            until(&mut client, &id, |w| w["droneId"].is_string()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mode_batch() {
    mode(&mut Program::embedded(&format!("{DEMO}[scheduler]\nmode = \"batch\"\n"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mode_queue_embedded() {
    mode(&mut Program::embedded(&format!("{DEMO}[scheduler]\nmode = \"queue\"\n"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mode_queue_cluster() {
    let more = format!("{DEMO}[scheduler]\nmode = \"queue\"\n");
    mode(&mut Program::cluster(shared_rabbitmq(), shared_redis(), &fresh_prefix(), &more)).await;
}
