//! What operators do: pause, resume, look at what is stuck, redrive and abandon it.

use serde_json::{Value, json};

use super::{look, request, schedule, until, until_status};
use crate::faults::program::Program;
use crate::support::http::Client;
use crate::support::process::free_port;

async fn post(client: &mut Client, path: &str, body: &Value) -> (u16, Value) {
    let answer = client.call("POST", path, &[], Some(&body.to_string())).await.unwrap();
    (answer.status, answer.json())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_service_holds_its_orders_and_goes_on() {
    let mut program = Program::embedded(super::DEMO);
    program.start().await;
    let mut client = program.client();
    assert_eq!(post(&mut client, "/api/operations/agents/drone/pause", &json!({})).await.0, 200);
    let drone = |agents: &Value| agents["items"].as_array().unwrap()[3].clone();
    super_until(&mut client, "/api/operations/agents", |agents| drone(agents)["paused"] == true).await;
    schedule(&mut client, "p-1", &request("contoso")).await;
    super_until(&mut client, "/api/operations/agents", |agents| drone(agents)["queued"] == 1).await;
    let waiting = look(&mut client, "/api/deliveryrequests/p-1").await;
    assert!(matches!(waiting["status"].as_str(), Some("Accepted" | "Scheduling")), "{waiting:#}");
    assert_eq!(post(&mut client, "/api/operations/agents/drone/resume", &json!({})).await.0, 200);
    until(&mut client, "p-1", |w| w["droneId"].is_string()).await;

    for partition in 0..4 {
        let path = format!("/api/operations/partitions/{partition}/pause");
        assert_eq!(post(&mut client, &path, &json!({})).await.0, 200);
    }
    let paused = |all: &Value| all["items"].as_array().unwrap().iter().all(|p| p["paused"] == true);
    super_until(&mut client, "/api/operations/partitions", paused).await;
    assert_eq!(post(&mut client, "/api/operations/partitions/99/pause", &json!({})).await.0, 404);
    assert_eq!(post(&mut client, "/api/operations/agents/nobody/pause", &json!({})).await.0, 404);
}

/// An operator's pause is nobody's failure: neither the agent, nor the sweeper, nor the steps that follow give up on what
/// waited longer than a workflow may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_paused_service_holds_is_not_late() {
    let hasty = "[scheduler]\ncomplete_by_ms = 4000\n[supervisor]\nsweep_every_ms = 100\ngrace_ms = 2500\n";
    let mut program = Program::embedded(&format!("{}{hasty}", super::DEMO));
    program.start().await;
    let mut client = program.client();
    assert_eq!(post(&mut client, "/api/operations/agents/drone/pause", &json!({})).await.0, 200);
    let drone = |agents: &Value| agents["items"].as_array().unwrap()[3].clone();
    super_until(&mut client, "/api/operations/agents", |agents| drone(agents)["paused"] == true).await;
    let ids: Vec<String> = (0..20).map(|n| format!("late-{n}")).collect();
    for id in &ids {
        schedule(&mut client, id, &request("contoso")).await;
    }
    super_until(&mut client, "/api/operations/agents", |agents| drone(agents)["queued"] == ids.len()).await;
    // Records say how far a workflow is only when it takes its time.
    for id in &ids {
        until(&mut client, id, |waiting| waiting["status"] == "Scheduling").await;
    }
    // Longer than both together.
    for _ in 0..16 {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        for id in &ids {
            let waiting = look(&mut client, &format!("/api/deliveryrequests/{id}")).await;
            assert_eq!(waiting["status"], "Scheduling", "{waiting:#}");
        }
    }
    assert_eq!(post(&mut client, "/api/operations/agents/drone/resume", &json!({})).await.0, 200);
    for id in &ids {
        let ended = |w: &Value| !matches!(w["status"].as_str(), Some("Accepted" | "Scheduling"));
        let workflow = until(&mut client, id, ended).await;
        assert!(matches!(workflow["status"].as_str(), Some("Scheduled" | "Completed")), "{workflow:#}");
    }
}

async fn super_until(client: &mut Client, path: &str, done: impl Fn(&Value) -> bool) -> Value {
    let deadline = std::time::Instant::now() + super::PATIENCE;
    loop {
        let seen = look(client, path).await;
        if done(&seen) {
            return seen;
        }
        assert!(std::time::Instant::now() < deadline, "{path} is still {seen:#}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// A package service that is not there: the step's outcome is unknown, so it must be undone, and cannot be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_undone_is_stuck_until_an_operator_acts() {
    let gone = format!(
        "{}[agents.package]\nurl = \"http://127.0.0.1:{}\"\nattempts = 2\n[agents.account]\nattempts = 2\n",
        super::DEMO,
        free_port()
    );
    let mut program = Program::embedded(&gone);
    program.start().await;
    let mut client = program.client();
    for id in ["s-1", "s-2", "s-3"] {
        schedule(&mut client, id, &request("contoso")).await;
    }
    for id in ["s-1", "s-2", "s-3"] {
        let stuck = until_status(&mut client, id, "Stuck").await;
        assert_eq!(stuck["reason"]["code"], "ServiceUnavailable");
    }
    let alerts = look(&mut client, "/api/operations/alerts").await;
    let about = |id: &str| alerts["items"].as_array().unwrap().iter().any(|a| a["subject"] == id);
    assert!(about("s-1") && about("s-3"), "{alerts:#}");
    let summary = look(&mut client, "/api/operations/summary").await;
    assert_eq!(summary["workflows"]["Stuck"], 3);

    let (status, abandoned) = post(&mut client, "/api/operations/workflows/s-1/abandon", &json!({})).await;
    assert_eq!((status, &abandoned["reason"]["code"]), (202, &json!("Abandoned")));
    assert_eq!(post(&mut client, "/api/operations/workflows/s-1/redrive", &json!({})).await.0, 409);
    assert_eq!(post(&mut client, "/api/operations/workflows/s-9/redrive", &json!({})).await.0, 404);

    // With the service back, all that is stuck is redriven by one call, which says how many it was.
    program.configure(super::DEMO);
    program.start().await;
    let mut client = program.client();
    let (status, many) = post(&mut client, "/api/operations/workflows/redrive", &json!({"ownerId": "contoso"})).await;
    assert_eq!((status, &many["matched"], &many["done"]), (200, &json!(2), &json!(2)), "{many:#}");
    for id in ["s-2", "s-3"] {
        until_status(&mut client, id, "Failed").await;
    }
    assert_eq!(post(&mut client, "/api/operations/workflows/redrive", &json!({"who": 1})).await.0, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_queries_are_named() {
    let mut program = Program::embedded(super::DEMO);
    program.start().await;
    let mut client = program.client();
    for path in [
        "/api/deliveryrequests?limit=0",
        "/api/deliveryrequests?status=Nope",
        "/api/deliveryrequests?colour=red",
        "/api/operations/deadletters?cursor=x",
        "/api/operations/deadletters?limit=9999",
    ] {
        let answer = client.get(path).await.unwrap();
        assert_eq!(answer.status, 400, "{path}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
    }
    assert_eq!(look(&mut client, "/api/operations/deadletters").await["items"], json!([]));
    assert_eq!(post(&mut client, "/api/operations/deadletters/0-0/redrive", &json!({})).await.0, 404);
}
