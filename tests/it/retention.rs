//! What is long over is forgotten, with all that belongs to it, in small steps and by any number of processes at once;
//! nothing else is.

use std::sync::Arc;
use std::time::Duration;

use drone_delivery::actors::purger::{Parts, Purged, Walk};
use drone_delivery::config::Settings;
use drone_delivery::domain::time::{Timestamp, later, now};
use drone_delivery::domain::workflow::{Event, Output};
use drone_delivery::domain::{Failure, Operation, OperationKind, ReasonCode, Status, StepName, Workflow};
use drone_delivery::services::{Local, Order, SharedState};
use drone_delivery::store::workflows::{Filter, Stored, Workflows};
use drone_delivery::store::{Outcome, Txn};

use crate::services::{
    PICKUP, Told, cancel, code, drone, execute, furnished, on_every_store, order, order_with, reserved,
};

on_every_store!(
    a_finished_delivery_goes_with_all_that_is_its,
    what_is_not_over_stays,
    a_walk_takes_small_steps_and_passes_by_what_is_not_due,
    two_at_once_do_no_harm,
    a_record_that_changed_meanwhile_stays,
    time_that_is_past_is_forgotten,
    what_is_damaged_holds_up_no_walk,
    a_tombstone_ends_when_the_settings_say,
);

fn ago(seconds: i64) -> Timestamp {
    now() - jiff::SignedDuration::from_secs(seconds)
}

/// Keeps what is over for a minute.
fn walk(state: &SharedState, services: &Local, batch: usize) -> Walk {
    let mut settings = Settings::builtin().unwrap().retention;
    settings.batch = batch;
    settings.finished = Duration::from_secs(60);
    Walk::new(Parts { workflows: Workflows::new(state.clone()), services: services.clone(), settings })
}

/// The way to each status that a test asks for.
fn events(status: Status) -> Vec<Event> {
    let failing = Event::Failing(Failure::new(ReasonCode::ServiceUnavailable, "away"));
    let done = StepName::ALL.map(|step| Event::StepDone(step, Output::Nothing)).to_vec();
    let scheduled = [vec![Event::Started], done].concat();
    match status {
        Status::Scheduling => vec![Event::Started],
        Status::Compensating => vec![failing],
        Status::Stuck => vec![failing, Event::UndoGaveUp(Failure::new(ReasonCode::ServiceUnavailable, "away"))],
        Status::Failed => vec![failing, Event::Undone],
        Status::Cancelled => vec![Event::CancelRequested, Event::Undone],
        Status::Scheduled => scheduled,
        Status::Completed => [scheduled, vec![Event::Completed]].concat(),
        other => panic!("{other:?}"),
    }
}

/// A record in this status, of a delivery whose deadline is so many seconds past.
async fn record(state: &SharedState, order: &Order, status: Status, past: i64) {
    let mut request = (*order.request).clone();
    (request.pickup_time, request.deadline) = (ago(past + 3600), ago(past));
    let (request, at) = (Arc::new(request), ago(past.max(0) + 7200));
    let op = OperationKind::Schedule(request.clone());
    let operation = Operation { id: order.id.clone(), at, trace: None, op };
    let mut workflow = Workflow::accepted(&operation, request, at);
    for event in events(status) {
        workflow.apply(event, ago(past.max(0) + 7000)).unwrap();
    }
    let outcomes = Workflows::new(state.clone()).save(&mut [&mut Stored::new(workflow)]).await.unwrap();
    assert_eq!(outcomes, [Outcome::Done]);
}

async fn schedule(services: &Local, order: &Order) {
    for step in [StepName::Package, StepName::Transport, StepName::Delivery] {
        execute(&*services.of(step), order).await.unwrap();
    }
}

/// Whether the package, the booking and the delivery are there.
async fn entities(services: &Local, order: &Order) -> [bool; 3] {
    [
        services.package.get(&order.request.package_info.package_id).await.unwrap().is_some(),
        services.transport.get(&order.id).await.unwrap().is_some(),
        services.delivery.get(&order.id).await.unwrap().is_some(),
    ]
}

/// The ids that every list of records still shows.
async fn listed(state: &SharedState) -> Vec<String> {
    let workflows = Workflows::new(state.clone());
    let all = workflows.list(&Filter::default(), None, 1000).await.unwrap().items;
    let owner = Filter { owner: Some("contoso".into()), ..Filter::default() };
    let of_owner = workflows.list(&owner, None, 1000).await.unwrap().items;
    let counted: u64 = workflows.counts().await.unwrap().into_iter().map(|(_, count)| count).sum();
    assert_eq!((of_owner.len(), counted), (all.len(), all.len() as u64));
    let mut ids: Vec<String> = all.into_iter().map(|workflow| workflow.delivery_id.to_string()).collect();
    ids.sort();
    ids
}

/// Pickups outside the areas, so that a carrier is booked.
fn carried(id: &str) -> Order {
    order_with(id, |request| request.pickup_location.latitude = 47.2529)
}

async fn a_finished_delivery_goes_with_all_that_is_its(state: SharedState) {
    let services = furnished(&state).await;
    for (id, status) in [("a", Status::Completed), ("b", Status::Failed), ("c", Status::Cancelled)] {
        schedule(&services, &carried(id)).await;
        assert_eq!(entities(&services, &carried(id)).await, [true; 3]);
        record(&state, &carried(id), status, 3600).await;
    }
    let taken_over = order_with("e", |request| request.package_info.package_id = "package-a".into());
    execute(&*services.package, &taken_over).await.unwrap();
    let purged = walk(&state, &services, 100).step().await.unwrap();
    assert_eq!(purged, Purged { deliveries: 3, buckets: 0 });
    assert_eq!(entities(&services, &carried("b")).await, [false; 3]);
    assert_eq!(entities(&services, &carried("c")).await, [false; 3]);
    assert_eq!(entities(&services, &carried("a")).await, [true, false, false], "the package is another's by now");
    assert!(services.delivery.of_owner("contoso", None, 10).await.unwrap().items.is_empty());
    assert!(listed(&state).await.is_empty());
}

async fn what_is_not_over_stays(state: SharedState) {
    let services = furnished(&state).await;
    let ids = ["deadline", "scheduled", "scheduling", "stuck", "undoing"];
    for id in ids {
        schedule(&services, &carried(id)).await;
    }
    record(&state, &carried("deadline"), Status::Completed, -3600).await;
    record(&state, &carried("scheduled"), Status::Scheduled, 3600).await;
    record(&state, &carried("scheduling"), Status::Scheduling, 3600).await;
    record(&state, &carried("stuck"), Status::Stuck, 3600).await;
    record(&state, &carried("undoing"), Status::Compensating, 3600).await;
    assert_eq!(walk(&state, &services, 100).step().await.unwrap(), Purged::default());
    assert_eq!(listed(&state).await, ids);
    for id in ids {
        assert_eq!(entities(&services, &carried(id)).await, [true; 3], "{id}");
    }
}

async fn a_walk_takes_small_steps_and_passes_by_what_is_not_due(state: SharedState) {
    let services = furnished(&state).await;
    for n in 0..10 {
        record(&state, &order(&format!("due-{n}")), Status::Failed, 3600).await;
        // Accepted long before, but its deadline is to come: it stands in front of the others.
        let id = order(&format!("early-{n}")).id;
        let mut early = Workflows::new(state.clone()).get(&order(&format!("due-{n}")).id).await.unwrap().unwrap();
        early.seen = None;
        early.workflow.delivery_id = id;
        early.workflow.accepted_at = ago(100_000);
        Arc::make_mut(&mut early.workflow.request).deadline = later(now(), Duration::from_secs(3600));
        Workflows::new(state.clone()).save(&mut [&mut early]).await.unwrap();
    }
    let mut walk = walk(&state, &services, 3);
    let mut purged = 0;
    for _ in 0..7 {
        let step = walk.step().await.unwrap().deliveries;
        assert!(step <= 3, "{step}");
        purged += step;
    }
    assert_eq!(purged, 10);
    assert_eq!(listed(&state).await, (0..10).map(|n| format!("early-{n}")).collect::<Vec<_>>());
}

async fn two_at_once_do_no_harm(state: SharedState) {
    let services = furnished(&state).await;
    for n in 0..40 {
        schedule(&services, &order(&format!("o-{n}"))).await;
        record(&state, &order(&format!("o-{n}")), Status::Completed, 3600).await;
    }
    let run = |mut walk: Walk| async move {
        let mut purged = 0;
        for _ in 0..12 {
            purged += walk.step().await.unwrap().deliveries;
        }
        purged
    };
    let (one, two) = tokio::join!(run(walk(&state, &services, 4)), run(walk(&state, &services, 4)));
    assert_eq!(one + two, 40, "each is counted once");
    assert!(listed(&state).await.is_empty());
}

async fn a_record_that_changed_meanwhile_stays(state: SharedState) {
    let workflows = Workflows::new(state.clone());
    record(&state, &order("a"), Status::Scheduled, 3600).await;
    let seen = workflows.get(&order("a").id).await.unwrap().unwrap();
    let mut changed = seen.clone();
    changed.workflow.apply(Event::CancelRequested, now()).unwrap();
    workflows.save(&mut [&mut changed]).await.unwrap();
    assert_eq!(workflows.remove(&[seen]).await.unwrap(), [Outcome::Conflict]);
    assert_eq!(listed(&state).await, ["a"]);
    assert_eq!(workflows.get(&order("a").id).await.unwrap().unwrap().workflow.status, Status::Cancelling);
}

async fn time_that_is_past_is_forgotten(state: SharedState) {
    let services = furnished(&state).await;
    let (first, last) = (reserved(execute(&*services.drone, &order("a")).await), order("z"));
    let much_later = order_with("z", |request| {
        (request.pickup_time, request.deadline) = (
            later(last.request.pickup_time, Duration::from_secs(864_000)),
            later(last.request.deadline, Duration::from_secs(864_000)),
        );
    });
    reserved(execute(&*services.drone, &much_later).await);
    let booked = async || services.drone.reservations("d-1", None, 10).await.unwrap().items.len();
    assert_eq!(services.drone.forget_before(first.from.as_second(), None, 10).await.unwrap(), (0, None));
    assert_eq!(booked().await, 2);
    let day_after = first.until.as_second() + 86_400;
    let (buckets, next) = services.drone.forget_before(day_after, None, 10).await.unwrap();
    assert!((1..=2).contains(&buckets) && next.is_none(), "{buckets} {next:?}");
    assert_eq!(booked().await, 1);
    assert_eq!(services.drone.reservation(&order("a").id).await.unwrap(), None);
    assert!(services.drone.reservation(&order("z").id).await.unwrap().is_some());
    assert_eq!(services.drone.forget_before(day_after, None, 10).await.unwrap(), (0, None));
    // What this process remembers of the forgotten time is found out to be wrong, not believed.
    let again = reserved(execute(&*services.drone, &order("b")).await);
    assert_eq!((again.from, again.until), (first.from, first.until));
}

async fn what_is_damaged_holds_up_no_walk(state: SharedState) {
    let services = furnished(&state).await;
    services.drone.put_drones(&[drone("d-2", PICKUP)]).await.unwrap();
    let held = [
        reserved(execute(&*services.drone, &order("x")).await),
        reserved(execute(&*services.drone, &order("y")).await),
    ];
    assert_ne!(held[0].drone_id, held[1].drone_id);
    for id in ["a", "b"] {
        schedule(&services, &carried(id)).await;
        record(&state, &carried(id), Status::Completed, 3600).await;
    }
    let bucket = held[0].from.as_second().div_euclid(6 * 60 * 60);
    for key in ["delivery/a", "package/package-a", &format!("cal/{}/{bucket}", held[0].drone_id)] {
        state.commit(vec![Txn::new().put(key, "neither an entity nor a calendar")]).await.unwrap();
    }
    let day_after = held[0].until.as_second() + 86_400;
    let (buckets, next) = services.drone.forget_before(day_after, None, 10).await.unwrap();
    assert!((2..=4).contains(&buckets) && next.is_none(), "{buckets} {next:?}");
    assert_eq!(services.drone.reservation(&order("y").id).await.unwrap(), None);
    assert_eq!(walk(&state, &services, 10).step().await.unwrap().deliveries, 2);
    assert_eq!(entities(&services, &carried("b")).await, [false; 3]);
    assert_eq!(state.get(&["delivery/a".to_owned()]).await.unwrap(), [None]);
    assert!(listed(&state).await.is_empty());
}

async fn a_tombstone_ends_when_the_settings_say(state: SharedState) {
    furnished(&state).await;
    let mut settings = Settings::builtin().unwrap();
    settings.retention.tombstones = Duration::from_millis(300);
    let services = Local::new(&state, Arc::new(Told::default()), &settings).unwrap();
    for step in StepName::ALL {
        let service = services.of(step);
        cancel(&*service, &order("a")).await.unwrap();
        match execute(&*service, &order("a")).await {
            Ok(_) => {} // A slow machine: it ended before it could be seen.
            refused => assert_eq!(code(refused), ReasonCode::AlreadyCancelled),
        }
        let ended = async {
            while execute(&*service, &order("a")).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ended).await.unwrap();
    }
}
