//! What the services will not do, and the code they say it with; and what carriers do where drones do not fly.

use drone_delivery::config::Settings;
use drone_delivery::domain::workflow::{Output, Route};
use drone_delivery::domain::{DeliveryRequest, Location, PackageSize, ReasonCode, StepName};
use drone_delivery::services::account::AccountStatus;
use drone_delivery::services::geography::distance_km;
use drone_delivery::services::package::{Package, PackageService};
use drone_delivery::services::{Local, SharedState};

use super::{DROP_OFF, PICKUP, account, cancel, code, execute, on_every_store, order, order_with, services};

on_every_store!(
    accounts_must_be_known_and_active,
    packages_must_fit_the_fleet,
    the_last_delivery_has_the_package,
    ways_are_flown_or_carried,
    places_that_nobody_serves_are_refused,
);

async fn accounts_must_be_known_and_active(state: SharedState) {
    let services = services(&state);
    let step = services.of(StepName::Account);
    assert_eq!(code(execute(&*step, &order("a")).await), ReasonCode::AccountUnknown);
    services.account.put(&[("contoso".into(), account(AccountStatus::Suspended))]).await.unwrap();
    assert_eq!(code(execute(&*step, &order("a")).await), ReasonCode::AccountSuspended);
    services.account.put(&[("contoso".into(), account(AccountStatus::Active))]).await.unwrap();
    assert_eq!(execute(&*step, &order("a")).await, Ok(Output::Nothing));
    services.account.delete("contoso").await.unwrap();
    assert_eq!(code(execute(&*step, &order("a")).await), ReasonCode::AccountUnknown);
}

async fn packages_must_fit_the_fleet(state: SharedState) {
    let mut settings = Settings::builtin().unwrap();
    settings.services.max_size = PackageSize::Medium;
    let service = PackageService::new(state, &settings);
    let heavy = order_with("heavy", |request| request.package_info.weight = settings.services.max_weight_kg + 0.1);
    let large = order_with("large", |request| request.package_info.size = PackageSize::Large);
    assert_eq!(code(execute(&service, &heavy).await), ReasonCode::PackageTooHeavy);
    assert_eq!(code(execute(&service, &large).await), ReasonCode::PackageTooLarge);
    let just = order_with("just", |request| request.package_info.weight = settings.services.max_weight_kg);
    assert_eq!(execute(&service, &just).await, Ok(Output::Nothing));
}

async fn the_last_delivery_has_the_package(state: SharedState) {
    let service = services(&state).package;
    let shared = |request: &mut DeliveryRequest| request.package_info.package_id = "shared".into();
    let (first, second) = (order_with("first", shared), order_with("second", shared));
    execute(&*service, &first).await.unwrap();
    execute(&*service, &second).await.unwrap();
    cancel(&*service, &first).await.unwrap();
    let expected = Package::of(&second.id, &second.request.package_info);
    assert_eq!(service.get("shared").await.unwrap(), Some(expected));
    cancel(&*service, &second).await.unwrap();
    assert_eq!(service.get("shared").await.unwrap(), None);
}

async fn route(services: &Local, id: &str, pickup: Location, drop_off: Location) -> Route {
    let order = order_with(id, |request| {
        request.pickup_location = pickup;
        request.drop_off_location = drop_off;
    });
    match execute(&*services.transport, &order).await {
        Ok(Output::Route(route)) => route,
        other => panic!("no route: {other:?}"),
    }
}

async fn ways_are_flown_or_carried(state: SharedState) {
    let services = services(&state);
    let direct = route(&services, "direct", PICKUP, DROP_OFF).await;
    assert_eq!(direct, Route { pickup: PICKUP, drop_off: DROP_OFF, legs: vec![] });
    assert_eq!(services.transport.get(&order("direct").id).await.unwrap(), None);

    let renton = Location { latitude: 47.48, longitude: -122.20 };
    let fetched = route(&services, "fetched", renton, DROP_OFF).await;
    assert_eq!((fetched.legs.len(), fetched.legs[0].from, fetched.legs[0].to), (1, renton, fetched.pickup));
    assert!(distance_km(renton, fetched.pickup) < 10.0, "handed over at the near edge");
    assert_eq!(services.transport.get(&order("fetched").id).await.unwrap().unwrap().route, fetched);

    let brought = route(&services, "brought", DROP_OFF, renton).await;
    assert_eq!((brought.legs.len(), brought.legs[0].from, brought.legs[0].to), (1, brought.drop_off, renton));

    let (corner, opposite) =
        (Location { latitude: 47.733, longitude: -122.43 }, Location { latitude: 47.56, longitude: -122.11 });
    let shortened = route(&services, "shortened", corner, opposite).await;
    assert_eq!((shortened.legs.len(), shortened.legs[0].from), (1, corner));
    assert!(distance_km(shortened.pickup, opposite) <= 25.0 && distance_km(corner, opposite) > 25.0);
}

async fn places_that_nobody_serves_are_refused(state: SharedState) {
    let transport = services(&state).transport;
    let portland = Location { latitude: 45.52, longitude: -122.68 };
    let from = order_with("from", |request| request.pickup_location = portland);
    let to = order_with("to", |request| request.drop_off_location = portland);
    assert_eq!(code(execute(&*transport, &from).await), ReasonCode::OutOfArea);
    assert_eq!(code(execute(&*transport, &to).await), ReasonCode::OutOfArea);
}
