//! Two processes of their own on one Redis, racing for a fleet that is far too small for them. Each tries, gets or does
//! not get, gives back and tries again, and writes down what it was answered; then the calendars must hold exactly what
//! the two were answered and did not give back, with no drone in two places at once.
//!
//! The rival is this very test program, started anew with a test of its own to run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use drone_delivery::cluster::runtime::EngineRuntime;
use drone_delivery::config::Redis;
use drone_delivery::domain::time::later;
use drone_delivery::domain::workflow::{Output, Reservation};
use drone_delivery::services::drone::DroneService;
use drone_delivery::services::{Order, Service, SharedState};
use drone_delivery::store::Txn;
use drone_delivery::store::redis::RedisState;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{PICKUP, drone, minutes, north, order_with, services};
use crate::support::process::Process;
use crate::support::servers::{fresh_prefix, shared_redis};

const DRONES: usize = 3;
const BATCH: usize = 250;
/// Of each process.
const ATTEMPTS: usize = 26_000;
/// One order in so many is tried by both.
const SHARED: usize = 10;

/// How long the race may take on a machine that is busy with everything else.
const PATIENCE: Duration = Duration::from_secs(600);

const URL: &str = "RIVAL_REDIS";
const PREFIX: &str = "RIVAL_PREFIX";
const NAME: &str = "RIVAL_NAME";
const ANSWERS: &str = "RIVAL_ANSWERS";

async fn open(url: &str, prefix: &str) -> SharedState {
    let settings = Redis { url: url.to_owned(), ca_file: String::new(), timeout: Duration::from_secs(60) };
    let state = RedisState::open(&settings, prefix, &EngineRuntime::start().unwrap()).unwrap();
    state.wait_until_up().await;
    std::sync::Arc::new(state)
}

fn orders(name: &str, batch: usize, random: &mut StdRng) -> Vec<Order> {
    let one = |n: usize| {
        let (start, slack) = (random.random_range(0..600), random.random_range(25..300));
        let whose = if n.is_multiple_of(SHARED) { "both" } else { name };
        order_with(&format!("{whose}-{batch}-{n}"), |request| {
            request.pickup_time = minutes(start);
            request.deadline = later(request.pickup_time, Duration::from_secs(slack * 60));
        })
    };
    (0..BATCH).map(one).collect()
}

/// Both begin only when both are there.
async fn wait_for_the_other(state: &SharedState, name: &str) {
    state.commit(vec![Txn::new().add("rivals", name.to_owned())]).await.unwrap();
    let both = async {
        while state.count("rivals").await.unwrap() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), both).await.expect("the other process");
}

/// Tries batch after batch; gives back its own of the batch before, so that there is always something to race for.
async fn race(service: &DroneService, name: &str) -> HashMap<String, Reservation> {
    let mut random = StdRng::seed_from_u64(name.len() as u64);
    let mut held = HashMap::new();
    let mut own: Vec<Order> = Vec::new();
    for batch in 0..ATTEMPTS / BATCH {
        let orders = orders(name, batch, &mut random);
        let answers = service.execute(&orders).await;
        for answer in service.cancel(&own).await {
            answer.unwrap();
        }
        own.drain(..).for_each(|order| drop(held.remove(order.id.as_str())));
        for (order, answer) in orders.into_iter().zip(answers) {
            if let Ok(Output::Reservation(reservation)) = answer {
                held.insert(order.id.to_string(), reservation);
                if order.id.as_str().starts_with(name) {
                    own.push(order);
                }
            }
        }
    }
    held
}

#[tokio::test]
#[ignore = "what `two_processes_never_book_a_drone_twice` starts as processes of their own"]
async fn rival() {
    let setting = |name| std::env::var(name);
    let (Ok(url), Ok(prefix), Ok(name), Ok(answers)) = (setting(URL), setting(PREFIX), setting(NAME), setting(ANSWERS))
    else {
        return;
    };
    let state = open(&url, &prefix).await;
    wait_for_the_other(&state, &name).await;
    let held = race(&services(&state).drone, &name).await;
    std::fs::write(answers, serde_json::to_vec(&held).unwrap()).unwrap();
}

fn start_rival(dir: &Path, prefix: &str, name: &str) -> (Process, PathBuf) {
    let answers = dir.join(format!("{name}.json"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "services::processes::rival", "--ignored"])
        .envs([(URL, shared_redis().url()), (PREFIX, prefix.to_owned()), (NAME, name.to_owned())])
        .env(ANSWERS, &answers);
    (Process::start(command, dir, name), answers)
}

#[tokio::test]
async fn two_processes_never_book_a_drone_twice() {
    let (dir, prefix) = (tempfile::tempdir().unwrap(), fresh_prefix());
    let state = open(&shared_redis().url(), &prefix).await;
    let service = services(&state).drone;
    let fleet: Vec<_> = (0..DRONES).map(|n| drone(&format!("d-{n}"), north(PICKUP, 0.2 * n as f64))).collect();
    service.put_drones(&fleet).await.unwrap();

    let rivals = ["left", "right"].map(|name| start_rival(dir.path(), &prefix, name));
    let mut answered: HashMap<String, Reservation> = HashMap::new();
    for (mut process, answers) in rivals {
        let log = || std::fs::read_to_string(answers.with_extension("log")).unwrap_or_default();
        let ended = async {
            while !process.has_ended() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("the end of the race");
        assert_eq!(process.exit_code(), Some(0), "{}", log());
        let held: HashMap<String, Reservation> = serde_json::from_slice(&std::fs::read(&answers).unwrap()).unwrap();
        assert!(held.len() > 10, "{} held only", held.len());
        for (id, reservation) in held {
            let other = answered.insert(id.clone(), reservation.clone());
            assert!(other.is_none_or(|other| other == reservation), "{id} was answered two reservations");
        }
    }

    let mut booked = HashMap::new();
    for drone in &fleet {
        let mut last = None;
        for item in service.reservations(&drone.id, None, 100_000).await.unwrap().items {
            assert!(last.is_none_or(|last| last <= item.from), "{} is in two places at once", drone.id);
            last = Some(item.until);
            let held = service.reservation(&item.delivery_id).await.unwrap().expect("a reservation for every booking");
            assert_eq!((&*held.drone_id, held.from, held.until), (&*drone.id, item.from, item.until));
            assert!(booked.insert(item.delivery_id.to_string(), held).is_none(), "a delivery has two drones");
        }
    }
    assert_eq!(booked, answered);
}
