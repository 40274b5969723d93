//! The five services on both stores: what each step does and undoes, how often it may be repeated, and that two who
//! reserve on one store never get in each other's way.

mod deliveries;
mod drones;
mod processes;
mod races;
mod refusals;
mod remote;
mod rest;
mod steps;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use drone_delivery::config::Settings;
use drone_delivery::domain::status::{StatusEvent, StatusSink};
use drone_delivery::domain::time::{Timestamp, later, now};
use drone_delivery::domain::workflow::{Output, Reservation};
use drone_delivery::domain::{
    Confirmation, DeliveryId, DeliveryRequest, Location, PackageInfo, PackageSize, ReasonCode,
};
use drone_delivery::services::account::{Account, AccountStatus};
use drone_delivery::services::drone::{Drone, DroneStatus};
use drone_delivery::services::{Local, Order, Service, SharedState, StepError};

/// Makes one test of every named function for every store.
macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {
        mod embedded {
            use crate::conformance::{embedded::Embedded, state::StateFixture};
            $(#[tokio::test]
            async fn $test() {
                let store = Embedded::start();
                super::$test(store.state()).await;
            })*
        }
        mod redis {
            use crate::conformance::{cluster::OnRedis, state::StateFixture};
            $(#[tokio::test]
            async fn $test() {
                let store = OnRedis::start().await;
                super::$test(store.state()).await;
            })*
        }
    };
}
pub(crate) use on_every_store;

/// Keeps what the services told.
#[derive(Default)]
pub struct Told(Mutex<Vec<StatusEvent<'static>>>);

impl StatusSink for Told {
    fn emit(&self, event: StatusEvent<'static>) {
        self.0.lock().unwrap().push(event);
    }
}

impl Told {
    pub fn take(&self) -> Vec<StatusEvent<'static>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// The services as another process would have them: on the same store, with memories of their own.
pub fn services(state: &SharedState) -> Local {
    Local::new(state, Arc::new(Told::default()), &Settings::builtin().unwrap()).unwrap()
}

/// The same with an account and a drone, so that the example can be scheduled.
pub async fn furnished(state: &SharedState) -> Local {
    let services = services(state);
    services.account.put(&[("contoso".into(), account(AccountStatus::Active))]).await.unwrap();
    services.drone.put_drones(&[drone("d-1", PICKUP)]).await.unwrap();
    services
}

pub fn account(status: AccountStatus) -> Account {
    Account { status, name: None, email: None, webhook: None }
}

pub const PICKUP: Location = Location { latitude: 47.6101, longitude: -122.2015 };
pub const DROP_OFF: Location = Location { latitude: 47.6205, longitude: -122.3493 };

pub fn drone(id: &str, home: Location) -> Drone {
    Drone { id: id.into(), home, speed_kmh: 60.0, range_km: 60.0, payload_kg: 5.0, status: DroneStatus::Active }
}

/// A place so many kilometres to the north.
pub fn north(of: Location, km: f64) -> Location {
    Location { latitude: of.latitude + km / 111.2, ..of }
}

/// So many minutes after this time tomorrow.
pub fn minutes(minutes: u64) -> Timestamp {
    later(now(), Duration::from_secs(24 * 60 * 60 + minutes * 60))
}

pub fn order(id: &str) -> Order {
    let package_info =
        PackageInfo { package_id: format!("package-{id}"), size: PackageSize::Small, weight: 1.5, tag: None };
    let request = DeliveryRequest {
        owner_id: "contoso".into(),
        pickup_location: PICKUP,
        drop_off_location: DROP_OFF,
        pickup_time: minutes(0),
        deadline: minutes(120),
        expedited: false,
        confirmation_required: Confirmation::Picture,
        package_info,
    };
    let id = DeliveryId::parse(id).unwrap();
    Order { id, request: Arc::new(request), route: None, reservation: None, trace: None }
}

/// An order with its request changed.
pub fn order_with(id: &str, change: impl FnOnce(&mut DeliveryRequest)) -> Order {
    let mut order = order(id);
    change(Arc::make_mut(&mut order.request));
    order
}

pub async fn execute(service: &dyn Service, order: &Order) -> Result<Output, StepError> {
    service.execute(std::slice::from_ref(order)).await.remove(0)
}

pub async fn cancel(service: &dyn Service, order: &Order) -> Result<(), StepError> {
    service.cancel(std::slice::from_ref(order)).await.remove(0)
}

pub fn code<T: std::fmt::Debug>(answer: Result<T, StepError>) -> ReasonCode {
    match answer {
        Err(StepError::Refused(failure)) => failure.code,
        other => panic!("not refused: {other:?}"),
    }
}

pub fn reserved(answer: Result<Output, StepError>) -> Reservation {
    match answer {
        Ok(Output::Reservation(reservation)) => reservation,
        other => panic!("nothing reserved: {other:?}"),
    }
}
