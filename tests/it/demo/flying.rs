//! A delivery that the services scheduled is flown: to the end, over restarts, by one of several processes, and not when
//! it is cancelled.

use std::sync::Arc;
use std::time::Duration;

use drone_delivery::config::Settings;
use drone_delivery::demo::pilot::{self, Pilot};
use drone_delivery::demo::plan::{FlightPlan, Planner};
use drone_delivery::domain::operation::{Operation, OperationKind};
use drone_delivery::domain::status::{EventType, Stage, StatusEvent};
use drone_delivery::domain::time::{Timestamp, later, now};
use drone_delivery::domain::workflow::{Event, Output};
use drone_delivery::domain::{Location, Status, StepName, Workflow};
use drone_delivery::services::completion::Completion;
use drone_delivery::services::delivery::{Delivery, DeliveryService};
use drone_delivery::services::{Local, Order, Service, SharedState};
use drone_delivery::store::Txn;
use drone_delivery::store::workflows::{Stored, Workflows};
use drone_delivery::stream::{Queue, Queues};

use crate::conformance::embedded::Embedded;
use crate::conformance::{StreamFixture, soon};
use crate::services::{DROP_OFF, PICKUP, Told, cancel, drone, execute, north, on_every_store, order, services};

on_every_store!(
    it_is_flown_to_its_end,
    a_restart_goes_on_where_the_flight_is,
    two_who_fly_the_same_do_it_once,
    only_one_process_flies_and_the_other_takes_over,
    cancelled_on_the_way_the_drone_turns_home,
    a_changed_delivery_is_flown_as_changed,
    delivered_before_its_record_is_saved,
    what_is_damaged_keeps_no_other_on_the_ground,
    what_is_late_is_caught_up_with_in_bounds,
    a_drone_s_own_word_completes_it_too,
    without_the_demo_nothing_is_planned,
);

const HOME: Location = Location { latitude: 47.6301, longitude: -122.2015 };
/// What is told of a flight; that the delivery was made is told by the scheduler.
const STAGES: [Stage; 4] = [Stage::HeadedToPickup, Stage::PickedUp, Stage::HeadedToDropOff, Stage::Delivered];

/// One process's services with all that the demo adds to them. The queues are always on the disk.
struct Process {
    state: SharedState,
    services: Local,
    told: Arc<Told>,
    workflows: Workflows,
    queues: Arc<dyn Queues>,
    _engine: Embedded,
}

impl Process {
    async fn start(state: &SharedState) -> Self {
        let process = Self::without_fleet(state, Some(PLANNER));
        process.services.drone.put_drones(&[drone("d-1", HOME)]).await.unwrap();
        process
    }

    fn without_fleet(state: &SharedState, planner: Option<Planner>) -> Self {
        let engine = Embedded::start();
        let (told, queues, workflows) = (Arc::new(Told::default()), engine.queues(), Workflows::new(state.clone()));
        let completion = Completion::new(workflows.clone(), queues.clone(), told.clone());
        let delivery = DeliveryService::new(state.clone(), told.clone(), &Settings::builtin().unwrap())
            .completing(completion)
            .flown_by(planner);
        let services = services(state).with_delivery(delivery);
        Self { state: state.clone(), services, told, workflows, queues, _engine: engine }
    }

    fn pilot(&self, instance: &str) -> Pilot {
        Pilot::new(pilot::Parts {
            state: self.state.clone(),
            delivery: self.services.delivery.clone(),
            sink: self.told.clone(),
            planner: PLANNER,
            instance: instance.into(),
        })
    }

    /// Reserves a drone and makes the delivery, as the scheduler's steps do.
    async fn make(&self, id: &str) -> (Order, FlightPlan) {
        let mut order = order(id);
        match execute(&*self.services.drone, &order).await {
            Ok(Output::Reservation(reservation)) => order.reservation = Some(reservation),
            other => panic!("no drone: {other:?}"),
        }
        execute(&*self.services.delivery, &order).await.unwrap();
        let plan = self.delivery(&order).await.flight.expect("a plan");
        (order, plan)
    }

    /// Saves the record that the scheduler saves when all steps are done.
    async fn record(&self, order: &Order) {
        let op = OperationKind::Schedule(order.request.clone());
        let operation = Operation { id: order.id.clone(), at: now(), trace: None, op };
        let mut workflow = Workflow::accepted(&operation, order.request.clone(), now());
        workflow.apply(Event::Started, now()).unwrap();
        for step in StepName::ALL {
            workflow.apply(Event::StepStarted(step), now()).unwrap();
            workflow.apply(Event::StepDone(step, Output::Nothing), now()).unwrap();
        }
        self.workflows.save(&mut [&mut Stored::new(workflow)]).await.unwrap();
    }

    async fn schedule(&self, id: &str) -> (Order, FlightPlan) {
        let (order, plan) = self.make(id).await;
        self.record(&order).await;
        (order, plan)
    }

    async fn delivery(&self, order: &Order) -> Delivery {
        self.services.delivery.get(&order.id).await.unwrap().expect("the delivery")
    }

    async fn status(&self, order: &Order) -> Status {
        self.workflows.get(&order.id).await.unwrap().expect("the record").workflow.status
    }

    async fn notices(&self) -> u64 {
        self.queues.depth(Queue::Notifications).await.unwrap()
    }

    async fn flights(&self) -> u64 {
        self.state.count("flights").await.unwrap()
    }
}

const PLANNER: Planner = Planner { time_factor: 60.0 };
const SECOND: Duration = Duration::from_secs(1);

fn stages(told: &[StatusEvent]) -> Vec<Stage> {
    told.iter().filter_map(|event| event.stage).collect()
}

/// Flies from take-off until after the landing, a second at a time.
async fn fly(pilot: &mut Pilot, plan: &FlightPlan) {
    let mut time = plan.takes_off_at;
    while time <= later(plan.lands_at, SECOND) {
        pilot.tick(time).await.unwrap();
        time = later(time, SECOND);
    }
}

async fn it_is_flown_to_its_end(state: SharedState) {
    let process = Process::start(&state).await;
    let (order, plan) = process.schedule("a").await;
    let mut pilot = process.pilot("p");
    pilot.tick(Timestamp::from_millisecond(plan.takes_off_at.as_millisecond() - 1_000).unwrap()).await.unwrap();
    assert_eq!((pilot.aloft(), process.status(&order).await), (0, Status::Scheduled), "its time has not come");
    fly(&mut pilot, &plan).await;
    let told = process.told.take();
    assert_eq!(stages(&told), STAGES);
    let last = told.iter().rposition(|event| event.kind == EventType::Status).unwrap();
    assert_eq!((told[last].status, last), (Some(Status::Completed), told.len() - 1), "nothing is told after the end");
    let places: Vec<Location> = told.iter().filter_map(|event| event.location).collect();
    assert!(places.len() > 5, "{places:?}");
    assert!(places.is_sorted_by(|a, b| a.longitude >= b.longitude || a.latitude >= b.latitude), "{places:?}");
    assert_eq!(process.status(&order).await, Status::Completed);
    let delivery = process.delivery(&order).await;
    assert_eq!(delivery.confirmations.len(), 1, "it asks for a picture");
    let position = process.services.position("d-1").await.unwrap().unwrap();
    assert_eq!((position.location, position.delivery_id), (HOME, None), "it is home again");
    assert_eq!((process.notices().await, process.flights().await, pilot.aloft()), (1, 0, 0));
}

async fn a_restart_goes_on_where_the_flight_is(state: SharedState) {
    let process = Process::start(&state).await;
    let (order, plan) = process.schedule("a").await;
    process.pilot("p").tick(later(plan.takes_off_at, SECOND)).await.unwrap();
    let position = process.services.position("d-1").await.unwrap().unwrap();
    assert_eq!(position.delivery_id, Some(order.id.clone()));
    let (before, process) = (process.told.take(), Process::without_fleet(&state, Some(PLANNER)));
    process.pilot("p").tick(later(plan.pickup_at, SECOND)).await.unwrap();
    assert_eq!(process.delivery(&order).await.stage, Stage::HeadedToDropOff);
    process.pilot("p").tick(later(plan.lands_at, SECOND)).await.unwrap();
    assert_eq!([stages(&before), stages(&process.told.take())].concat(), STAGES);
    assert_eq!((process.status(&order).await, process.flights().await), (Status::Completed, 0));
}

async fn two_who_fly_the_same_do_it_once(state: SharedState) {
    let process = Process::start(&state).await;
    let (order, plan) = process.schedule("a").await;
    // The same name, so that both have the lease: as when one has lost it and does not know yet.
    let (mut one, mut other) = (process.pilot("p"), process.pilot("p"));
    for time in [plan.takes_off_at, plan.pickup_at, plan.drop_off_at, plan.lands_at] {
        let (one, other) = tokio::join!(one.tick(later(time, SECOND)), other.tick(later(time, SECOND)));
        one.unwrap();
        other.unwrap();
    }
    assert_eq!(stages(&process.told.take()), STAGES);
    assert_eq!((process.status(&order).await, process.notices().await), (Status::Completed, 1));
    assert_eq!(process.flights().await, 0);
}

async fn only_one_process_flies_and_the_other_takes_over(state: SharedState) {
    let process = Process::start(&state).await;
    let (order, plan) = process.schedule("a").await;
    let (mut one, mut other) = (process.pilot("one"), process.pilot("other"));
    let aloft = later(plan.takes_off_at, SECOND);
    one.tick(aloft).await.unwrap();
    assert_eq!(one.aloft(), 1);
    drop(one);
    let landed = later(plan.lands_at, SECOND);
    soon(async {
        while process.status(&order).await != Status::Completed {
            other.tick(landed).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(stages(&process.told.take()), STAGES);
}

async fn cancelled_on_the_way_the_drone_turns_home(state: SharedState) {
    let process = Process::start(&state).await;
    let (order, plan) = process.schedule("a").await;
    let mut pilot = process.pilot("p");
    let turned = later(plan.pickup_at, 2 * SECOND);
    pilot.tick(turned).await.unwrap();
    cancel(&*process.services.delivery, &order).await.unwrap();
    assert_eq!(process.flights().await, 0);
    let place = async || process.services.position("d-1").await.unwrap().unwrap();
    pilot.tick(later(turned, SECOND)).await.unwrap();
    pilot.tick(later(turned, 2 * SECOND)).await.unwrap();
    let under_way = place().await;
    assert!(under_way.delivery_id.is_none() && under_way.location != HOME, "{under_way:?}");
    pilot.tick(later(plan.lands_at, 60 * SECOND)).await.unwrap();
    assert_eq!(place().await.location, HOME);
    assert_eq!(process.status(&order).await, Status::Scheduled, "the compensator ends it, not the pilot");
    let told = process.told.take();
    assert_eq!(stages(&told), [&STAGES[..3], &[Stage::Cancelled]].concat());
    assert!(told.iter().all(|event| event.kind != EventType::Status));
    assert_eq!((process.notices().await, pilot.aloft()), (0, 0));
}

async fn a_changed_delivery_is_flown_as_changed(state: SharedState) {
    let process = Process::start(&state).await;
    let (mut order, before) = process.schedule("a").await;
    let request = Arc::make_mut(&mut order.request);
    (request.drop_off_location, request.deadline) = (north(DROP_OFF, 1.0), later(request.deadline, 600 * SECOND));
    order.reservation = Some(process.services.drone.reschedule(&order).await.unwrap());
    for _ in 0..2 {
        process.services.delivery.amend(&order).await.unwrap();
    }
    let after = process.delivery(&order).await.flight.unwrap();
    assert_ne!(after, before);
    assert_eq!((after.pickup, after.drop_off), (PICKUP, north(DROP_OFF, 1.0)));
    assert_eq!(process.flights().await, 1);
    fly(&mut process.pilot("p"), &after).await;
    assert_eq!((process.status(&order).await, process.flights().await), (Status::Completed, 0));
}

async fn delivered_before_its_record_is_saved(state: SharedState) {
    let process = Process::start(&state).await;
    let (order, plan) = process.make("a").await;
    let mut pilot = process.pilot("p");
    pilot.tick(later(plan.lands_at, SECOND)).await.unwrap();
    assert_eq!((process.delivery(&order).await.stage, process.flights().await), (Stage::Delivered, 1));
    process.record(&order).await;
    pilot.tick(later(plan.lands_at, 2 * SECOND)).await.unwrap();
    assert_eq!((process.status(&order).await, process.flights().await), (Status::Completed, 0));
}

/// A delivery that cannot be read is not flown; a drone that cannot be is taken for a slow one.
async fn what_is_damaged_keeps_no_other_on_the_ground(state: SharedState) {
    let process = Process::start(&state).await;
    let (damaged, _) = process.schedule("a").await;
    let (order, plan) = process.schedule("b").await;
    for key in [format!("delivery/{}", damaged.id), format!("drone/{}", plan.drone_id)] {
        state.commit(vec![Txn::new().put(key, "neither delivery nor drone")]).await.unwrap();
    }
    let mut pilot = process.pilot("p");
    pilot.tick(later(plan.lands_at, SECOND)).await.unwrap();
    assert_eq!((process.status(&order).await, process.flights().await), (Status::Completed, 0));
    assert_eq!(process.status(&damaged).await, Status::Scheduled);
}

async fn what_is_late_is_caught_up_with_in_bounds(state: SharedState) {
    let process = Process::start(&state).await;
    let (template, _) = process.schedule("a").await;
    let orders: Vec<Order> = (0..pilot::MOST_ALOFT + 200)
        .map(|n| Order {
            id: drone_delivery::domain::DeliveryId::parse(&format!("b-{n}")).unwrap(),
            ..template.clone()
        })
        .collect();
    for made in process.services.delivery.execute(&orders).await {
        made.unwrap();
    }
    for order in &orders {
        process.record(order).await;
    }
    let mut pilot = process.pilot("p");
    let plan = process.delivery(&template).await.flight.unwrap();
    let aloft = later(plan.takes_off_at, 5 * SECOND);
    pilot.tick(aloft).await.unwrap();
    assert_eq!(pilot.aloft(), pilot::MOST_ALOFT);
    let landed = later(plan.lands_at, 60 * SECOND);
    for _ in 0..3 {
        pilot.tick(landed).await.unwrap();
    }
    assert_eq!((process.flights().await, pilot.aloft()), (0, 0));
    assert_eq!(process.notices().await, orders.len() as u64 + 1);
}

async fn a_drone_s_own_word_completes_it_too(state: SharedState) {
    let process = Process::without_fleet(&state, None);
    let mut order = order("a");
    order.reservation = None;
    execute(&*process.services.delivery, &order).await.unwrap();
    process.record(&order).await;
    for _ in 0..2 {
        process.services.delivery.advance(&order.id, Stage::Delivered).await.unwrap();
    }
    assert_eq!((process.status(&order).await, process.notices().await), (Status::Completed, 1));
    let told = process.told.take();
    assert_eq!(told.iter().filter(|event| event.status == Some(Status::Completed)).count(), 1);
}

async fn without_the_demo_nothing_is_planned(state: SharedState) {
    let process = Process::without_fleet(&state, None);
    process.services.drone.put_drones(&[drone("d-1", HOME)]).await.unwrap();
    let mut order = order("a");
    match execute(&*process.services.drone, &order).await {
        Ok(Output::Reservation(reservation)) => order.reservation = Some(reservation),
        other => panic!("no drone: {other:?}"),
    }
    execute(&*process.services.delivery, &order).await.unwrap();
    assert_eq!(process.delivery(&order).await.flight, None);
    assert_eq!(process.flights().await, 0);
}
