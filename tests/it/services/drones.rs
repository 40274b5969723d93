//! Which drone gets a delivery, and when.

use std::collections::HashSet;
use std::time::Duration;

use drone_delivery::domain::time::later;
use drone_delivery::domain::{DeliveryRequest, ReasonCode, StepName};
use drone_delivery::services::drone::{Drone, DroneStatus};
use drone_delivery::services::{Order, Service, SharedState};

use super::{
    PICKUP, cancel, code, drone, execute, minutes, north, on_every_store, order, order_with, reserved, services,
};

on_every_store!(
    the_nearest_of_the_free_is_taken,
    far_ones_help_out,
    the_earliest_pickup_wins,
    the_deadline_is_kept,
    freed_time_serves_another,
    expedited_ones_are_served_first,
    grounded_ones_get_nothing,
    payload_and_range_are_respected,
    a_new_drone_is_known_at_once,
    reservations_cross_bucket_edges,
    a_move_frees_the_old_time,
    a_move_that_fails_leaves_everything_as_it_was,
    a_replay_of_the_last_free_time_is_not_refused,
    reservations_are_listed_in_pages,
    a_refusal_is_not_made_from_memory,
    a_large_fleet_is_filled_to_the_last,
);

/// An order that leaves no time to wait for another flight to end.
fn urgent(id: &str) -> Order {
    order_with(id, |request| request.deadline = later(request.pickup_time, Duration::from_secs(25 * 60)))
}

async fn the_nearest_of_the_free_is_taken(state: SharedState) {
    let service = services(&state).drone;
    let fleet = [drone("far", north(PICKUP, 3.0)), drone("near", north(PICKUP, 0.3)), drone("mid", north(PICKUP, 1.0))];
    service.put_drones(&fleet).await.unwrap();
    let orders = [order("a"), order("b"), order("c")];
    let taken = service_all(&*service, &orders).await;
    assert_eq!(taken, ["near", "mid", "far"]);
}

async fn service_all(service: &dyn Service, orders: &[Order]) -> Vec<String> {
    service.execute(orders).await.into_iter().map(|answer| reserved(answer).drone_id.to_string()).collect()
}

async fn far_ones_help_out(state: SharedState) {
    let service = services(&state).drone;
    service.put_drones(&[drone("near", PICKUP), drone("away", north(PICKUP, 9.0))]).await.unwrap();
    assert_eq!(service_all(&*service, &[urgent("a"), urgent("b")]).await, ["near", "away"]);
    assert_eq!(code(execute(&*service, &urgent("c")).await), ReasonCode::NoDroneBeforeDeadline);
}

async fn the_earliest_pickup_wins(state: SharedState) {
    let service = services(&state).drone;
    service.put_drones(&[drone("near", PICKUP), drone("next", north(PICKUP, 1.0))]).await.unwrap();
    let first = reserved(execute(&*service, &order("a")).await);
    assert_eq!((&*first.drone_id, first.pickup_at >= order("a").request.pickup_time), ("near", true));
    assert_eq!(&*reserved(execute(&*service, &order("b")).await).drone_id, "next");
    // Both are taken now; the nearer one is back earlier.
    let third = reserved(execute(&*service, &order("c")).await);
    assert_eq!(&*third.drone_id, "near");
    assert_eq!(third.from, first.until);
}

async fn the_deadline_is_kept(state: SharedState) {
    let service = services(&state).drone;
    service.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    let mut served = 0;
    for n in 0..10 {
        let order = order(&format!("o-{n}"));
        match execute(&*service, &order).await {
            Ok(answer) => {
                let reservation = reserved(Ok(answer));
                assert!(reservation.drop_off_at <= order.request.deadline);
                assert!(reservation.from <= reservation.pickup_at && reservation.pickup_at < reservation.drop_off_at);
                served += 1;
            }
            refused => assert_eq!(code(refused), ReasonCode::NoDroneBeforeDeadline),
        }
    }
    assert!((2..10).contains(&served), "{served}");
    let past = order_with("past", |request| {
        request.pickup_time = drone_delivery::domain::time::from_millis(0);
        request.deadline = drone_delivery::domain::time::from_millis(7_200_000);
    });
    assert_eq!(code(execute(&*service, &past).await), ReasonCode::NoDroneBeforeDeadline);
}

async fn freed_time_serves_another(state: SharedState) {
    let service = services(&state).drone;
    service.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    let first = reserved(execute(&*service, &urgent("a")).await);
    code(execute(&*service, &urgent("b")).await);
    cancel(&*service, &urgent("a")).await.unwrap();
    let second = reserved(execute(&*service, &urgent("b")).await);
    assert_eq!(second.drone_id, first.drone_id);
}

async fn expedited_ones_are_served_first(state: SharedState) {
    let service = services(&state).drone;
    service.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    let mut hasty = urgent("hasty");
    std::sync::Arc::make_mut(&mut hasty.request).expedited = true;
    let answers = service.execute(&[urgent("plain"), hasty]).await;
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true]);
}

async fn grounded_ones_get_nothing(state: SharedState) {
    let service = services(&state).drone;
    service.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    reserved(execute(&*service, &order("a")).await);
    service.put_drones(&[Drone { status: DroneStatus::Grounded, ..drone("d", PICKUP) }]).await.unwrap();
    assert_eq!(code(execute(&*service, &order("b")).await), ReasonCode::NoDroneBeforeDeadline);
    // What it has it keeps, and can give back.
    assert_eq!(&*reserved(execute(&*service, &order("a")).await).drone_id, "d");
    cancel(&*service, &order("a")).await.unwrap();
    assert!(service.reservations("d", None, 10).await.unwrap().items.is_empty());
}

async fn payload_and_range_are_respected(state: SharedState) {
    let service = services(&state).drone;
    let weak = Drone { payload_kg: 1.0, ..drone("weak", PICKUP) };
    let short = Drone { range_km: 20.0, ..drone("short", PICKUP) };
    service.put_drones(&[weak, short]).await.unwrap();
    assert_eq!(code(execute(&*service, &order("a")).await), ReasonCode::NoDroneBeforeDeadline);
    service.put_drones(&[drone("able", north(PICKUP, 2.0))]).await.unwrap();
    assert_eq!(&*reserved(execute(&*service, &order("a")).await).drone_id, "able");
}

async fn a_new_drone_is_known_at_once(state: SharedState) {
    let service = services(&state).drone;
    assert_eq!(code(execute(&*service, &order("a")).await), ReasonCode::NoDroneBeforeDeadline);
    service.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    assert_eq!(&*reserved(execute(&*service, &order("a")).await).drone_id, "d");
    service.delete_drone("d").await.unwrap();
    assert_eq!(code(execute(&*service, &order("b")).await), ReasonCode::NoDroneBeforeDeadline);
}

/// Flights one after the other for more than a day cross every kind of edge.
async fn reservations_cross_bucket_edges(state: SharedState) {
    let service = services(&state).drone;
    service.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    let orders: Vec<Order> =
        (0..60).map(|n| order_with(&format!("o-{n}"), |request| request.deadline = minutes(60 * 48))).collect();
    let mut spans: Vec<_> =
        service.execute(&orders).await.into_iter().map(reserved).map(|r| (r.from, r.until)).collect();
    spans.sort();
    assert!(spans.windows(2).all(|pair| pair[0].1 == pair[1].0), "neither gap nor overlap");
    let listed = service.reservations("d", None, 1000).await.unwrap().items;
    assert_eq!(listed.iter().map(|booked| (booked.from, booked.until)).collect::<Vec<_>>(), spans);
    assert!(service.cancel(&orders).await.iter().all(Result::is_ok));
    assert!(service.reservations("d", None, 1000).await.unwrap().items.is_empty());
    assert_eq!(state.count("cals/d").await.unwrap(), 0);
}

async fn a_move_frees_the_old_time(state: SharedState) {
    let service = services(&state).drone;
    service.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    let first = reserved(execute(&*service, &urgent("a")).await);
    let to = |from: u64, until: u64| {
        move |request: &mut DeliveryRequest| {
            request.pickup_time = minutes(from);
            request.deadline = minutes(until);
        }
    };
    // First to a time that overlaps its own, then far away.
    for moved in [order_with("a", to(10, 40)), order_with("a", to(600, 660))] {
        let reservation = service.reschedule(&moved).await.unwrap();
        assert!(
            reservation.pickup_at >= moved.request.pickup_time && reservation.drop_off_at <= moved.request.deadline
        );
        assert_eq!(service.reservation(&moved.id).await.unwrap(), Some(reservation.clone()));
        let listed = service.reservations("d", None, 10).await.unwrap().items;
        assert_eq!(listed.iter().map(|booked| booked.from).collect::<Vec<_>>(), [reservation.from]);
    }
    assert_eq!(reserved(execute(&*service, &urgent("b")).await).drone_id, first.drone_id);
    cancel(&*service, &urgent("a")).await.unwrap();
    assert_eq!(code(service.reschedule(&order_with("a", to(10, 40))).await), ReasonCode::AlreadyCancelled);
}

async fn a_move_that_fails_leaves_everything_as_it_was(state: SharedState) {
    let service = services(&state).drone;
    service.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    let kept = reserved(execute(&*service, &urgent("a")).await);
    let late = |id| {
        order_with(id, |request| {
            request.pickup_time = minutes(120);
            request.deadline = minutes(145);
        })
    };
    reserved(execute(&*service, &late("b")).await);
    let before = service.reservations("d", None, 10).await.unwrap();
    assert_eq!(code(service.reschedule(&late("a")).await), ReasonCode::NoDroneBeforeDeadline);
    assert_eq!(service.reservation(&order("a").id).await.unwrap(), Some(kept));
    assert_eq!(service.reservations("d", None, 10).await.unwrap(), before);
    // Neither does it linger in memory: the time is still taken.
    assert_eq!(code(execute(&*service, &urgent("c")).await), ReasonCode::NoDroneBeforeDeadline);
}

async fn a_replay_of_the_last_free_time_is_not_refused(state: SharedState) {
    let service = services(&state);
    service.drone.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    let first = execute(&*service.drone, &urgent("a")).await;
    assert_eq!(execute(&*service.of(StepName::Drone), &urgent("a")).await, first);
}

async fn reservations_are_listed_in_pages(state: SharedState) {
    let service = services(&state).drone;
    service.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    let orders: Vec<Order> =
        (0..7).map(|n| order_with(&format!("o-{n}"), |request| request.deadline = minutes(60 * 48))).collect();
    service.execute(&orders).await.into_iter().for_each(|answer| drop(reserved(answer)));
    let all = service.reservations("d", None, 100).await.unwrap();
    assert_eq!((all.items.len(), all.next), (7, None));
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = service.reservations("d", cursor, 3).await.unwrap();
        seen.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, all.items);
}

/// Another process frees the time that this one remembers as taken.
async fn a_refusal_is_not_made_from_memory(state: SharedState) {
    let (here, there) = (services(&state).drone, services(&state).drone);
    here.put_drones(&[drone("d", PICKUP)]).await.unwrap();
    reserved(execute(&*here, &urgent("a")).await);
    code(execute(&*here, &urgent("b")).await);
    cancel(&*there, &urgent("a")).await.unwrap();
    reserved(execute(&*here, &urgent("b")).await);
}

/// More drones than are looked at first, spread over many zones, and more orders than drones.
async fn a_large_fleet_is_filled_to_the_last(state: SharedState) {
    let service = services(&state).drone;
    let fleet: Vec<Drone> = (0..60).map(|n| drone(&format!("d-{n}"), north(PICKUP, f64::from(n) * 0.1))).collect();
    service.put_drones(&fleet).await.unwrap();
    let orders: Vec<Order> = (0..70).map(|n| urgent(&format!("o-{n}"))).collect();
    let answers = service.execute(&orders).await;
    let taken: HashSet<String> =
        answers.iter().filter_map(|a| a.clone().ok()).map(|a| reserved(Ok(a)).drone_id.to_string()).collect();
    assert_eq!((taken.len(), answers.iter().filter(|answer| answer.is_ok()).count()), (60, 60));
    assert!(answers[..60].iter().all(Result::is_ok), "in the order of arrival");
    let again = services(&state).drone;
    assert_eq!(again.execute(&orders).await, answers);
}
