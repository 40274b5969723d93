//! What must hold for every step: it repeats safely, undoing it leaves nothing behind, undoing repeats safely and
//! comes before doing as well as after.

use drone_delivery::domain::workflow::Output;
use drone_delivery::domain::{Location, ReasonCode, StepName};
use drone_delivery::services::account::AccountStatus;
use drone_delivery::services::{Local, Order, Service, SharedState, StepError};
use drone_delivery::store::Txn;

use super::{PICKUP, account, cancel, code, execute, furnished, on_every_store, order, order_with, reserved};

on_every_store!(
    a_step_repeats_safely,
    undoing_leaves_nothing_behind,
    undoing_repeats_safely,
    what_was_undone_is_refused_from_then_on,
    undoing_comes_first,
    a_batch_is_answered_in_its_order,
    a_refused_step_leaves_nothing_behind,
    doing_and_undoing_at_once_leaves_nothing_behind,
    a_damaged_value_holds_up_nobody_else,
);

/// An order that every step has something to write for: its pickup is a carrier's.
fn far_order(id: &str) -> Order {
    order_with(id, |request| request.pickup_location = Location { latitude: 47.48, longitude: -122.20 })
}

/// What a delivery has of every step.
async fn traces(services: &Local, order: &Order) -> Vec<&'static str> {
    let mut traces = Vec::new();
    let mut note = |there: bool, what| {
        if there {
            traces.push(what);
        }
    };
    let package = services.package.get(&order.request.package_info.package_id).await.unwrap();
    note(package.is_some_and(|package| package.delivery_id == order.id), "package");
    note(services.transport.get(&order.id).await.unwrap().is_some(), "booking");
    note(services.drone.reservation(&order.id).await.unwrap().is_some(), "reservation");
    let booked = services.drone.reservations("d-1", None, 1000).await.unwrap().items;
    note(booked.iter().any(|booked| booked.delivery_id == order.id), "calendar");
    note(services.delivery.get(&order.id).await.unwrap().is_some(), "delivery");
    let listed = services.delivery.of_owner("contoso", None, 1000).await.unwrap().items;
    note(listed.iter().any(|delivery| delivery.id == order.id), "list");
    traces
}

fn traces_of(step: StepName) -> &'static [&'static str] {
    match step {
        StepName::Account => &[],
        StepName::Package => &["package"],
        StepName::Transport => &["booking"],
        StepName::Drone => &["reservation", "calendar"],
        StepName::Delivery => &["delivery", "list"],
    }
}

async fn a_step_repeats_safely(state: SharedState) {
    let services = furnished(&state).await;
    for step in StepName::ALL {
        let order = far_order(&format!("repeat-{}", step.as_str()));
        let first = execute(&*services.of(step), &order).await.unwrap();
        let again = super::services(&state);
        assert_eq!(execute(&*again.of(step), &order).await, Ok(first.clone()), "{step:?} elsewhere");
        assert_eq!(execute(&*services.of(step), &order).await, Ok(first), "{step:?}");
        assert_eq!(traces(&services, &order).await, traces_of(step));
    }
    assert_eq!(services.drone.reservations("d-1", None, 10).await.unwrap().items.len(), 1);
    assert_eq!(services.delivery.of_owner("contoso", None, 10).await.unwrap().items.len(), 1);
}

async fn undoing_leaves_nothing_behind(state: SharedState) {
    let services = furnished(&state).await;
    for step in StepName::ALL {
        let order = far_order(&format!("undo-{}", step.as_str()));
        execute(&*services.of(step), &order).await.unwrap();
        cancel(&*super::services(&state).of(step), &order).await.unwrap();
        assert_eq!(traces(&services, &order).await, [""; 0], "{step:?}");
    }
}

async fn undoing_repeats_safely(state: SharedState) {
    let services = furnished(&state).await;
    for step in StepName::ALL {
        let order = far_order(&format!("twice-{}", step.as_str()));
        execute(&*services.of(step), &order).await.unwrap();
        for _ in 0..3 {
            cancel(&*services.of(step), &order).await.unwrap();
            assert_eq!(traces(&services, &order).await, [""; 0], "{step:?}");
        }
    }
}

async fn what_was_undone_is_refused_from_then_on(state: SharedState) {
    let services = furnished(&state).await;
    for step in StepName::ALL {
        let order = far_order(&format!("late-{}", step.as_str()));
        execute(&*services.of(step), &order).await.unwrap();
        cancel(&*services.of(step), &order).await.unwrap();
        assert_eq!(code(execute(&*services.of(step), &order).await), ReasonCode::AlreadyCancelled, "{step:?}");
        assert_eq!(traces(&services, &order).await, [""; 0]);
    }
}

async fn undoing_comes_first(state: SharedState) {
    let services = furnished(&state).await;
    for step in StepName::ALL {
        for order in [far_order("never-far"), super::order("never-near")] {
            cancel(&*services.of(step), &order).await.unwrap();
            assert_eq!(code(execute(&*services.of(step), &order).await), ReasonCode::AlreadyCancelled, "{step:?}");
            cancel(&*services.of(step), &order).await.unwrap();
            assert_eq!(traces(&services, &order).await, [""; 0]);
        }
    }
}

async fn a_batch_is_answered_in_its_order(state: SharedState) {
    let services = furnished(&state).await;
    for step in StepName::ALL {
        let orders: Vec<Order> = ["b-0", "b-1", "b-2"].into_iter().map(far_order).collect();
        cancel(&*services.of(step), &orders[1]).await.unwrap();
        // The last is the first again.
        let batch = [orders[0].clone(), orders[1].clone(), orders[2].clone(), orders[0].clone()];
        let answers = services.of(step).execute(&batch).await;
        assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true], "{step:?}");
        assert_eq!(answers[0], answers[3]);
        assert_eq!(services.of(step).cancel(&batch).await, [Ok(()), Ok(()), Ok(()), Ok(())]);
        for order in &orders {
            assert_eq!(traces(&services, order).await, [""; 0], "{step:?}");
        }
        assert!(services.of(step).execute(&[]).await.is_empty());
        assert!(services.of(step).cancel(&[]).await.is_empty());
    }
}

async fn a_refused_step_leaves_nothing_behind(state: SharedState) {
    let services = furnished(&state).await;
    let order = order_with("refused", |request| {
        request.owner_id = "nobody".into();
        request.package_info.weight = 99.0;
        request.pickup_location = Location { latitude: 10.0, longitude: 10.0 };
    });
    for step in [StepName::Account, StepName::Package, StepName::Transport, StepName::Drone] {
        code(execute(&*services.of(step), &order).await);
        assert_eq!(traces(&services, &order).await, [""; 0], "{step:?}");
    }
}

async fn doing_and_undoing_at_once_leaves_nothing_behind(state: SharedState) {
    let services = furnished(&state).await;
    let rival = super::services(&state);
    for step in StepName::ALL {
        for n in 0..20 {
            let order = far_order(&format!("rush-{}-{n}", step.as_str()));
            let (does, undoes) = (services.of(step), rival.of(step));
            let (_, undone) = tokio::join!(execute(&*does, &order), cancel(&*undoes, &order));
            undone.unwrap();
            assert_eq!(traces(&services, &order).await, [""; 0], "{step:?}");
        }
    }
}

/// What is damaged is the trouble of those that it concerns, not of all that are asked for together.
async fn a_damaged_value_holds_up_nobody_else(state: SharedState) {
    let services = furnished(&state).await;
    let damage = async |key: &str| {
        state.commit(vec![Txn::new().put(key, "neither an entity nor a calendar")]).await.unwrap();
    };
    services.account.put(&[("fabrikam".into(), account(AccountStatus::Active))]).await.unwrap();
    damage("account/contoso").await;
    let orders = [order("a"), order_with("b", |request| request.owner_id = "fabrikam".into())];
    let only_the_first = |answers: Vec<Result<_, _>>| {
        let [first, second] = answers.try_into().unwrap();
        assert_eq!(code(first), ReasonCode::Damaged);
        second.unwrap();
    };
    only_the_first(services.account.execute(&orders).await);

    for order in &orders {
        reserved(execute(&*services.drone, order).await);
    }
    damage("resv/a").await;
    let drone = super::services(&state).drone;
    only_the_first(drone.execute(&orders).await);
    only_the_first(cancelled(&*drone, &orders).await);
    assert_eq!(code(drone.reschedule(&orders[0]).await), ReasonCode::Damaged, "it would not end otherwise");

    // One drone's calendar, and the other drone takes over; what it holds cannot be freed and stays.
    services.drone.put_drones(&[super::drone("d-2", PICKUP)]).await.unwrap();
    let on_first = reserved(execute(&*drone, &order("c")).await);
    let bucket = on_first.from.as_second().div_euclid(6 * 60 * 60);
    damage(&format!("cal/{}/{bucket}", on_first.drone_id)).await;
    let drone = super::services(&state).drone;
    let other = reserved(execute(&*drone, &order("d")).await);
    assert_ne!(other.drone_id, on_first.drone_id);
    only_the_first(cancelled(&*drone, &[order("c"), order("d")]).await);
    assert_eq!(code(drone.reschedule(&order("c")).await), ReasonCode::Damaged);
    assert!(drone.reservation(&order("c").id).await.unwrap().is_some());

    // A drone that cannot be read is not used; the others are, and are listed.
    damage("drone/d-1").await;
    let services = super::services(&state);
    assert_eq!(&*reserved(execute(&*services.drone, &order("e")).await).drone_id, "d-2");
    let listed = services.drone.drones(None, 10).await.unwrap().items;
    assert_eq!(listed.iter().map(|drone| &*drone.id).collect::<Vec<_>>(), ["d-2"]);
}

async fn cancelled(service: &dyn Service, orders: &[Order]) -> Vec<Result<Output, StepError>> {
    service.cancel(orders).await.into_iter().map(|answer| answer.map(|()| Output::Nothing)).collect()
}
