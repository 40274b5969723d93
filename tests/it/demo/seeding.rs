//! Seeded once, never over what an operator did, and taken back whole.

use std::time::Duration;

use drone_delivery::config;
use drone_delivery::demo::seed::remove;
use drone_delivery::domain::time::{later, now};
use drone_delivery::domain::{Confirmation, ReasonCode};
use drone_delivery::services::account::AccountStatus;
use drone_delivery::services::drone::DroneStatus;
use drone_delivery::services::{Local, SharedState};

use super::{seed, settings, small};
use crate::services::{account, code, execute, on_every_store, order_with, reserved, services};

on_every_store!(
    two_that_start_at_once_seed_it_once,
    what_an_operator_changed_stays,
    a_larger_demo_adds_to_the_smaller,
    removing_leaves_nothing_and_takes_nothing_else,
    the_fleet_flies_the_example_now,
);

/// The ids of the fleet.
async fn fleet(services: &Local) -> Vec<String> {
    let page = services.drone.drones(None, 10_000).await.unwrap();
    page.items.iter().map(|drone| drone.id.to_string()).collect()
}

async fn two_that_start_at_once_seed_it_once(state: SharedState) {
    let settings = settings();
    let (one, other) = tokio::join!(seed(&state, &settings), seed(&state, &settings));
    let fleet = fleet(&services(&state)).await;
    assert_eq!(fleet.len(), settings.drones as usize);
    assert!(one + other > fleet.len() + settings.accounts as usize, "the named accounts too");
    assert_eq!(seed(&state, &settings).await, 0);
    let account = services(&state).account.get("contoso").await.unwrap().unwrap();
    assert_eq!(account.status, AccountStatus::Active);
    let suspended = order_with("a", |request| request.owner_id = "litware".into());
    assert_eq!(code(execute(&*services(&state).account, &suspended).await), ReasonCode::AccountSuspended);
}

async fn what_an_operator_changed_stays(state: SharedState) {
    let services = services(&state);
    services.account.put(&[("fabrikam".into(), account(AccountStatus::Suspended))]).await.unwrap();
    seed(&state, &small()).await;
    services.account.put(&[("contoso".into(), account(AccountStatus::Suspended))]).await.unwrap();
    services.account.delete("tailspin").await.unwrap();
    let mut drone = services.drone.drones(None, 1).await.unwrap().items.remove(0);
    drone.status = DroneStatus::Grounded;
    services.drone.put_drones(std::slice::from_ref(&drone)).await.unwrap();
    assert_eq!(seed(&state, &small()).await, 0);
    for owner in ["contoso", "fabrikam"] {
        assert_eq!(services.account.get(owner).await.unwrap(), Some(account(AccountStatus::Suspended)), "{owner}");
    }
    assert_eq!(services.account.get("tailspin").await.unwrap(), None);
    assert_eq!(services.drone.drone(&drone.id).await.unwrap(), Some(drone));
}

async fn a_larger_demo_adds_to_the_smaller(state: SharedState) {
    seed(&state, &small()).await;
    let larger = config::Demo { accounts: small().accounts + 2, drones: small().drones + 5, ..small() };
    assert_eq!(seed(&state, &larger).await, 7);
    assert_eq!(seed(&state, &small()).await, 0);
    assert_eq!(seed(&state, &larger).await, 0);
    assert_eq!(fleet(&services(&state)).await.len(), larger.drones as usize);
}

async fn removing_leaves_nothing_and_takes_nothing_else(state: SharedState) {
    let services = services(&state);
    services.account.put(&[("fabrikam".into(), account(AccountStatus::Active))]).await.unwrap();
    let seeded = seed(&state, &small()).await;
    let drone = fleet(&services).await.remove(0);
    let reservation = reserved(execute(&*services.drone, &now_from_bellevue("a")).await);
    assert_eq!(remove(&*state).await.unwrap(), seeded);
    assert_eq!(remove(&*state).await.unwrap(), 0);
    assert_eq!(fleet(&services).await, [""; 0]);
    assert_eq!(services.account.get("contoso").await.unwrap(), None);
    assert!(services.account.get("fabrikam").await.unwrap().is_some(), "the operator's own");
    for drone in [&*drone, &*reservation.drone_id] {
        assert_eq!(services.drone.reservations(drone, None, 10).await.unwrap().items, []);
    }
    for set in ["demo/items", "flights", "drones"] {
        assert_eq!(state.count(set).await.unwrap(), 0, "{set}");
    }
    assert_eq!(seed(&state, &small()).await, seeded, "it can be had again");
}

async fn the_fleet_flies_the_example_now(state: SharedState) {
    seed(&state, &settings()).await;
    let services = services(&state);
    for n in 0..20 {
        let order = now_from_bellevue(&format!("a-{n}"));
        let reservation = reserved(execute(&*services.drone, &order).await);
        assert!(reservation.drop_off_at <= order.request.deadline);
    }
}

/// The example of the API with the times of one that names none.
fn now_from_bellevue(id: &str) -> drone_delivery::services::Order {
    order_with(id, |request| {
        request.pickup_time = now();
        request.deadline = later(now(), Duration::from_secs(7_200));
        request.confirmation_required = Confirmation::None;
    })
}
