//! Compares what was accepted with what became of it, all of it through the public calls: every accepted delivery has
//! come to an end, none of them twice, and the services hold exactly what the scheduled ones need.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::load::Book;
use super::program::OWNERS;
use crate::support::http::Client;

/// How long it may take after the faults have stopped until another workflow comes to its end.
const PATIENCE: Duration = Duration::from_secs(120);

/// The final states, which nothing but a new wish of the client's changes.
const FINAL: [&str; 5] = ["Scheduled", "Completed", "Failed", "Cancelled", "Stuck"];

#[derive(Debug, Default)]
pub struct Counts {
    attempted: u64,
    accepted: usize,
    refused: u64,
    unknown: u64,
    pub scheduled: usize,
    pub failed: usize,
    pub cancelled: usize,
    stuck: usize,
    /// Accepted, and not in a final state, or cancelled and yet scheduled.
    lost: BTreeSet<String>,
    /// More than one delivery, or more than one reservation, for one request.
    duplicated: BTreeSet<String>,
    /// Scheduled without its package, reservation or delivery.
    incomplete: BTreeSet<String>,
    /// Held by a service for a delivery that is not scheduled.
    orphaned: BTreeSet<String>,
    /// Two reservations of one drone at one time.
    overlapping: BTreeSet<String>,
    wrong: Vec<String>,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempted, accepted, refused, unknown, scheduled, failed, cancelled, stuck, .. } = self;
        write!(f, "attempted {attempted}, accepted {accepted}, refused {refused}, unknown {unknown}; ")?;
        write!(f, "scheduled {scheduled}, failed {failed}, cancelled {cancelled}, stuck {stuck}; ")?;
        let (lost, duplicated, orphaned) = (self.lost.len(), self.duplicated.len(), self.orphaned.len());
        let (incomplete, overlapping) = (self.incomplete.len(), self.overlapping.len());
        write!(f, "lost {lost}, duplicated {duplicated}, orphaned {orphaned}, ")?;
        write!(f, "incomplete {incomplete}, overlapping {overlapping}, wrong answers {}", self.wrong.len())
    }
}

impl Counts {
    /// Whether no client was refused or left without an answer.
    pub fn all_answered(&self) -> bool {
        self.refused + self.unknown == 0
    }
}

/// Waits for the ends, compares, prints the counts and insists that nothing is wrong and that work was done.
pub async fn check(name: &str, port: u16, book: Book, least: usize) -> Counts {
    let mut client = Client::new(port);
    let workflows = wait_for_ends(&mut client, &book).await;
    let counts = compare(&mut client, book, &workflows).await;
    eprintln!("{name}: {counts}");
    assert!(
        counts.lost.is_empty()
            && counts.duplicated.is_empty()
            && counts.orphaned.is_empty()
            && counts.incomplete.is_empty()
            && counts.overlapping.is_empty()
            && counts.wrong.is_empty()
            && counts.stuck == 0,
        "{name}: {counts:#?}"
    );
    assert!(counts.accepted >= least, "{name}: only {} accepted", counts.accepted);
    let done = counts.scheduled + counts.cancelled;
    assert!(done >= least / 2, "{name}: only {done} scheduled or cancelled");
    counts
}

/// Waits until everything that was accepted has come to an end and is behind the checkpoints.
pub async fn wait_until_quiet(port: u16) {
    let mut client = Client::new(port);
    let deadline = Instant::now() + PATIENCE;
    while let Some(summary) = work_left(&mut client).await {
        assert!(Instant::now() < deadline, "work is left: {summary}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The summary, if it says that not everything is at its end and behind the checkpoints.
async fn work_left(client: &mut Client) -> Option<Value> {
    let summary = client.get("/api/operations/summary").await.map(|answer| answer.json()).unwrap_or_default();
    let none = |status: &str| summary["workflows"][status] == 0;
    let over = ["Accepted", "Scheduling", "Compensating", "Cancelling"].into_iter().all(none);
    (!over || summary["lagEntries"] != 0).then_some(summary)
}

/// Every workflow there is, by id, when all are at their ends, or as they are when no more of them come to it.
async fn wait_for_ends(client: &mut Client, book: &Book) -> BTreeMap<String, Value> {
    let (mut most, mut deadline) = (0, Instant::now() + PATIENCE);
    loop {
        // To list them all is work for the program, too; the summary says when it is worth while.
        let soon = Instant::now() + Duration::from_secs(5);
        while Instant::now() < soon && work_left(client).await.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let workflows: BTreeMap<String, Value> = list(client, "/api/deliveryrequests?limit=500")
            .await
            .into_iter()
            .map(|workflow| (workflow["deliveryId"].as_str().unwrap().to_owned(), workflow))
            .collect();
        let over = workflows.iter().filter(|(id, workflow)| is_final(book, id, workflow)).count();
        let all = over == workflows.len() && book.accepted.keys().all(|id| workflows.contains_key(id));
        if all || Instant::now() > deadline {
            return workflows;
        }
        if over > most {
            (most, deadline) = (over, Instant::now() + PATIENCE);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn status(workflow: &Value) -> &str {
    workflow["status"].as_str().unwrap_or_default()
}

/// Whether nothing more is to come: a cancellation that was accepted after the scheduling may still be on its way.
fn is_final(book: &Book, id: &str, workflow: &Value) -> bool {
    FINAL.contains(&status(workflow)) && !(status(workflow) == "Scheduled" && book.cancelled.contains(id))
}

async fn compare(client: &mut Client, book: Book, workflows: &BTreeMap<String, Value>) -> Counts {
    let (attempted, refused, unknown) = (book.attempted, book.refused, book.unknown);
    let mut counts = Counts { attempted, refused, unknown, accepted: book.accepted.len(), ..Counts::default() };
    for id in book.accepted.keys() {
        if !workflows.get(id).is_some_and(|workflow| is_final(&book, id, workflow)) {
            let state = workflows.get(id).map_or("absent", status);
            counts.lost.insert(format!("{id} is {state}"));
        }
    }
    let mut tags = BTreeMap::<&str, &String>::new();
    for (id, workflow) in workflows {
        match status(workflow) {
            "Scheduled" | "Completed" => counts.scheduled += 1,
            "Failed" => counts.failed += 1,
            "Cancelled" => counts.cancelled += 1,
            "Stuck" => counts.stuck += 1,
            _ => {}
        }
        let asked_for = book.cancelled.contains(id) || book.maybe_cancelled.contains(id);
        if status(workflow) == "Cancelled" && !asked_for {
            counts.wrong.push(format!("{id} was cancelled by nobody"));
        }
        let tag = workflow["request"]["packageInfo"]["tag"].as_str().unwrap_or_default();
        if let Some(other) = tags.insert(tag, id) {
            counts.duplicated.insert(format!("request {tag}: {other} and {id}"));
        }
    }
    counts.wrong.extend(book.wrong);
    compare_reservations(client, workflows, &mut counts).await;
    compare_deliveries(client, workflows, &mut counts).await;
    compare_packages(client, workflows, &mut counts).await;
    counts
}

fn is_scheduled(workflows: &BTreeMap<String, Value>, id: &str) -> bool {
    workflows.get(id).is_some_and(|workflow| matches!(status(workflow), "Scheduled" | "Completed"))
}

/// Every reservation in the drones' calendars is one scheduled delivery's, on the drone that it says it has.
async fn compare_reservations(client: &mut Client, workflows: &BTreeMap<String, Value>, counts: &mut Counts) {
    let mut held = BTreeMap::<String, String>::new();
    for drone in list(client, "/api/drones?limit=500").await {
        let drone = drone["id"].as_str().unwrap().to_owned();
        let reservations = list(client, &format!("/api/drones/{drone}/reservations?limit=500")).await;
        for pair in reservations.windows(2) {
            if instant(&pair[0]["until"]) > instant(&pair[1]["from"]) {
                counts.overlapping.insert(format!("{drone}: {} and {}", pair[0], pair[1]));
            }
        }
        for reservation in reservations {
            let id = reservation["deliveryId"].as_str().unwrap().to_owned();
            if !is_scheduled(workflows, &id) || workflows[&id]["droneId"] != *drone.as_str() {
                counts.orphaned.insert(format!("reservation of {drone} for {id}"));
            }
            if let Some(other) = held.insert(id.clone(), drone.clone()) {
                counts.duplicated.insert(format!("reservations of {other} and {drone} for {id}"));
            }
        }
    }
    for id in workflows.keys().filter(|id| is_scheduled(workflows, id) && !held.contains_key(*id)) {
        counts.incomplete.insert(format!("{id} has no reservation"));
    }
}

fn instant(value: &Value) -> drone_delivery::domain::time::Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

async fn compare_deliveries(client: &mut Client, workflows: &BTreeMap<String, Value>, counts: &mut Counts) {
    let mut there = BTreeSet::new();
    for owner in OWNERS {
        for delivery in list(client, &format!("/api/deliveries?ownerId={owner}&limit=500")).await {
            there.insert(delivery["id"].as_str().or(delivery["deliveryId"].as_str()).unwrap().to_owned());
        }
    }
    for id in &there {
        if !is_scheduled(workflows, id) {
            counts.orphaned.insert(format!("delivery {id}"));
        }
    }
    for id in workflows.keys().filter(|id| is_scheduled(workflows, id) && !there.contains(*id)) {
        counts.incomplete.insert(format!("{id} has no delivery"));
    }
}

/// Packages have no list: each delivery's is asked for.
async fn compare_packages(client: &mut Client, workflows: &BTreeMap<String, Value>, counts: &mut Counts) {
    for id in workflows.keys() {
        let answer = client.get(&format!("/api/packages/{id}")).await.unwrap();
        match (answer.status, is_scheduled(workflows, id)) {
            (200, true) | (404 | 410, false) => {}
            (200, false) => drop(counts.orphaned.insert(format!("package {id}"))),
            (404 | 410, true) => drop(counts.incomplete.insert(format!("{id} has no package"))),
            (other, _) => counts.wrong.push(format!("package {id}: {other}")),
        }
    }
}

/// Every item of a list, page after page. Asks again when a page does not come: the program may be settling down.
pub async fn list(client: &mut Client, path: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = match client.get(&format!("{path}{cursor}")).await {
            Ok(answer) if answer.status == 200 => answer.json(),
            other => {
                assert!(Instant::now() < deadline, "{path}: {other:?}");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        items.extend(page["items"].as_array().expect("items").iter().cloned());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return items,
        }
    }
}
