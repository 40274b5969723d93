//! Two processes that reserve, cancel and move on one store: whatever they do, no drone has two deliveries at once, no
//! delivery has two drones, and the calendars hold exactly what was answered.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use drone_delivery::domain::DeliveryId;
use drone_delivery::domain::time::later;
use drone_delivery::services::drone::DroneService;
use drone_delivery::services::{Order, Service, SharedState, StepError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{PICKUP, drone, minutes, north, on_every_store, order_with, services};

on_every_store!(two_that_race_never_overlap, a_small_fleet_is_shared_out_once);

const DRONES: usize = 4;

async fn fleet(state: &SharedState) {
    let drones: Vec<_> = (0..DRONES).map(|n| drone(&format!("d-{n}"), north(PICKUP, 0.2 * n as f64))).collect();
    services(state).drone.put_drones(&drones).await.unwrap();
}

/// Every calendar, checked for overlaps, as delivery → drone.
async fn calendars(service: &DroneService) -> HashMap<DeliveryId, String> {
    let mut found = HashMap::new();
    for n in 0..DRONES {
        let id = format!("d-{n}");
        let booked = service.reservations(&id, None, 100_000).await.unwrap().items;
        assert!(booked.windows(2).all(|pair| pair[0].until <= pair[1].from), "{id} is in two places at once");
        for booked in booked {
            assert_eq!(found.insert(booked.delivery_id, id.clone()), None, "a delivery has two drones");
        }
    }
    found
}

fn random_order(random: &mut StdRng, ids: u32) -> Order {
    let (start, slack) = (random.random_range(0..2000), random.random_range(25..600));
    order_with(&format!("o-{}", random.random_range(0..ids)), |request| {
        request.pickup_time = minutes(start);
        request.deadline = later(request.pickup_time, Duration::from_secs(slack * 60));
        request.expedited = random.random_range(0..10) == 0;
    })
}

/// One process's share of the race: batches of reservations, then cancels or moves. The ids overlap with the rival's.
async fn run(service: &DroneService, seed: u64) -> HashSet<DeliveryId> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut cancelled = HashSet::new();
    for _ in 0..15 {
        let count = random.random_range(1..30);
        let orders: Vec<Order> = (0..count).map(|_| random_order(&mut random, 200)).collect();
        for answer in service.execute(&orders).await {
            assert!(!matches!(answer, Err(StepError::Transient(_))), "{answer:?}");
        }
        let gone: Vec<Order> = (0..3).map(|_| random_order(&mut random, 200)).collect();
        for (order, answer) in gone.iter().zip(service.cancel(&gone).await) {
            answer.unwrap();
            cancelled.insert(order.id.clone());
        }
        let moved = random_order(&mut random, 200);
        let _ = service.reschedule(&moved).await;
    }
    cancelled
}

async fn two_that_race_never_overlap(state: SharedState) {
    fleet(&state).await;
    for round in 0..3 {
        let (one, two) = (services(&state).drone, services(&state).drone);
        let (mut gone, more) = tokio::join!(run(&one, round * 2), run(&two, round * 2 + 1));
        gone.extend(more);
        let booked = calendars(&one).await;
        for n in 0..200 {
            let id = DeliveryId::parse(&format!("o-{n}")).unwrap();
            let reservation = one.reservation(&id).await.unwrap();
            assert_eq!(reservation.as_ref().map(|r| &*r.drone_id), booked.get(&id).map(String::as_str), "{id}");
            assert!(!(gone.contains(&id) && reservation.is_some()), "{id} was cancelled");
        }
    }
}

/// More orders than there is time for: each slot is given once, and what is refused is refused for good reason.
async fn a_small_fleet_is_shared_out_once(state: SharedState) {
    fleet(&state).await;
    let orders = |who: &str| -> Vec<Order> {
        (0..100).map(|n| order_with(&format!("{who}-{n}"), |request| request.deadline = minutes(600))).collect()
    };
    let (one, two) = (services(&state).drone, services(&state).drone);
    let (a, b) = (orders("a"), orders("b"));
    let (first, second) = tokio::join!(one.execute(&a), two.execute(&b));
    let answers: Vec<_> = a.iter().chain(&b).zip(first.into_iter().chain(second)).collect();
    let served = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
    assert!(answers.iter().all(|(_, answer)| !matches!(answer, Err(StepError::Transient(_)))));
    assert_eq!(calendars(&one).await.len(), served);
    assert!((20..150).contains(&served), "{served}");
    // Nobody who was refused can be served now either.
    let refused: Vec<Order> =
        answers.iter().filter(|(_, answer)| answer.is_err()).map(|(order, _)| (*order).clone()).collect();
    assert!(one.execute(&refused).await.iter().all(Result::is_err));
}
