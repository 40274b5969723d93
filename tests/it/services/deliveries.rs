//! The delivery entity's life after it was made.

use std::sync::Arc;

use drone_delivery::config::Settings;
use drone_delivery::domain::status::{EventType, Stage};
use drone_delivery::domain::time::now;
use drone_delivery::domain::workflow::Output;
use drone_delivery::domain::{Confirmation, ReasonCode};
use drone_delivery::services::SharedState;
use drone_delivery::services::delivery::{Confirmed, DeliveryService, NotifyMe};

use super::{Told, cancel, code, execute, minutes, on_every_store, order, order_with};

on_every_store!(
    a_replay_does_not_set_progress_back,
    stages_only_go_forwards_and_are_told_once,
    an_owner_s_deliveries_come_newest_first,
    confirmations_must_be_of_the_kind_asked_for,
    a_changed_order_is_taken_over,
    changes_at_once_are_all_kept,
);

fn service(state: &SharedState) -> (DeliveryService, Arc<Told>) {
    let told = Arc::new(Told::default());
    (DeliveryService::new(state.clone(), told.clone(), &Settings::builtin().unwrap()), told)
}

async fn a_replay_does_not_set_progress_back(state: SharedState) {
    let (service, _) = service(&state);
    execute(&service, &order("a")).await.unwrap();
    let before = service.advance(&order("a").id, Stage::PickedUp).await.unwrap();
    assert_eq!(execute(&service, &order("a")).await, Ok(Output::Nothing));
    assert_eq!(service.get(&order("a").id).await.unwrap(), before);
}

async fn stages_only_go_forwards_and_are_told_once(state: SharedState) {
    let (service, told) = service(&state);
    let a = order("a");
    execute(&service, &a).await.unwrap();
    execute(&service, &a).await.unwrap();
    for stage in [Stage::HeadedToPickup, Stage::PickedUp, Stage::PickedUp, Stage::HeadedToPickup, Stage::Delivered] {
        service.advance(&a.id, stage).await.unwrap();
    }
    let delivery = service.get(&a.id).await.unwrap().unwrap();
    let stages = [Stage::Created, Stage::HeadedToPickup, Stage::PickedUp, Stage::Delivered];
    assert_eq!(delivery.stage, Stage::Delivered);
    assert_eq!(delivery.events.iter().map(|event| event.stage).collect::<Vec<_>>(), stages);
    cancel(&service, &a).await.unwrap();
    cancel(&service, &a).await.unwrap();
    let told = told.take();
    assert!(told.iter().all(|event| event.kind == EventType::Stage && event.owner_id == "contoso"));
    let told: Vec<Stage> = told.iter().filter_map(|event| event.stage).collect();
    // That it was made is told by the scheduler.
    assert_eq!(told, [&stages[1..], &[Stage::Cancelled]].concat());
    assert_eq!(service.advance(&a.id, Stage::Delivered).await, Ok(None));
    assert!(service.is_cancelled(&a.id).await.unwrap());
}

async fn an_owner_s_deliveries_come_newest_first(state: SharedState) {
    let (service, _) = service(&state);
    for id in ["a", "b", "c", "d", "e"] {
        execute(&service, &order(id)).await.unwrap();
        // They sort by the millisecond they were made in.
        let made = now();
        while now() == made {
            tokio::task::yield_now().await;
        }
    }
    execute(&service, &order_with("x", |request| request.owner_id = "other".into())).await.unwrap();
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = service.of_owner("contoso", cursor, 2).await.unwrap();
        seen.extend(page.items.into_iter().map(|delivery| delivery.id.to_string()));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, ["e", "d", "c", "b", "a"]);
}

async fn confirmations_must_be_of_the_kind_asked_for(state: SharedState) {
    let (service, _) = service(&state);
    let a = order("a");
    let picture = Confirmed { at: now(), kind: Confirmation::Picture, reference: Some("p-1".into()) };
    assert_eq!(service.confirm(&a.id, &picture).await, Ok(None));
    execute(&service, &a).await.unwrap();
    let voice = Confirmed { kind: Confirmation::Voice, ..picture.clone() };
    assert_eq!(code(service.confirm(&a.id, &voice).await), ReasonCode::ServiceRefused);
    for _ in 0..2 {
        service.confirm(&a.id, &picture).await.unwrap();
    }
    assert_eq!(service.get(&a.id).await.unwrap().unwrap().confirmations, [picture]);
}

async fn a_changed_order_is_taken_over(state: SharedState) {
    let (service, _) = service(&state);
    execute(&service, &order("a")).await.unwrap();
    service.advance(&order("a").id, Stage::HeadedToPickup).await.unwrap();
    let deadline = minutes(500);
    let changed = service.amend(&order_with("a", |request| request.deadline = deadline)).await.unwrap().unwrap();
    assert_eq!((changed.deadline, changed.stage), (deadline, Stage::HeadedToPickup));
}

async fn changes_at_once_are_all_kept(state: SharedState) {
    let (one, _) = service(&state);
    let (two, _) = service(&state);
    let a = order("a");
    execute(&one, &a).await.unwrap();
    let wish = |n: usize| NotifyMe { email: Some(format!("{n}@example.com")), webhook: None, stage: None };
    for n in (0..16).step_by(2) {
        let (first, second) = (wish(n), wish(n + 1));
        let (x, y) = tokio::join!(one.notify_me(&a.id, &first), two.notify_me(&a.id, &second));
        x.unwrap();
        y.unwrap();
    }
    assert_eq!(one.get(&a.id).await.unwrap().unwrap().notify_me.len(), 16);
    assert_eq!(code(one.notify_me(&a.id, &wish(16)).await), ReasonCode::ServiceRefused);
}
