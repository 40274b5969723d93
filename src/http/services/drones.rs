//! `/api/drones` and `/api/dronedeliveries`

use super::*;
use crate::domain::status::Stage;
use crate::domain::time::now_millis;
use crate::domain::workflow::Reservation;
use crate::services::drone::{Drone, DroneStatus};
use crate::services::telemetry::{Position, Telemetry};

pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(
            web::resource("/api/dronedeliveries/{id}")
                .route(web::get().to(reservation))
                .route(web::put().to(reserve))
                .route(web::delete().to(release)),
        )
        .service(web::resource("/api/drones").route(web::get().to(list)))
        .service(
            web::resource("/api/drones/{id}")
                .route(web::get().to(get))
                .route(web::put().to(set))
                .route(web::delete().to(delete)),
        )
        .service(web::resource("/api/drones/{id}/reservations").route(web::get().to(reservations)))
        .service(web::resource("/api/drones/{id}/telemetry").route(web::post().to(telemetry)));
}

async fn reservation(calls: Shared, path: web::Path<String>) -> Answer {
    let id = delivery_id(&path)?;
    match calls.services.drone.reservation(&id).await? {
        Some(reservation) => Ok(HttpResponse::Ok().json(reservation)),
        None => Err(missing(calls.services.drone.is_cancelled(&id).await?, "reservation")),
    }
}

/// Answers with the reservation: `201` when it is new, `200` when the delivery had it.
async fn reserve(
    calls: Shared,
    path: web::Path<String>,
    how: web::Query<How>,
    request: HttpRequest,
    payload: Payload,
) -> Answer {
    let order = calls.order(&request, payload, delivery_id(&path)?).await?;
    let before: Option<Reservation> = calls.services.drone.reservation(&order.id).await?;
    let Output::Reservation(reservation) = how.run(&*calls.services.drone, &order).await? else {
        return Err(Problem::new(Kind::Internal, "the drone service reserved nothing"));
    };
    let status = if before.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    Ok(HttpResponse::build(status).json(reservation))
}

async fn release(calls: Shared, path: web::Path<String>) -> Answer {
    one(calls.services.drone.withdraw(&[delivery_id(&path)?]).await)?;
    Ok(gone())
}

async fn list(calls: Shared, request: HttpRequest) -> Answer {
    let (part, limit) = Part::of(&request)?;
    Ok(HttpResponse::Ok().json(calls.services.drone.drones(part.cursor, limit).await?))
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    drone: Drone,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<Position>,
}

async fn get(calls: Shared, path: web::Path<String>) -> Answer {
    let id = name(&path)?;
    let drone = existing(&calls, id).await?;
    let position = calls.services.position(id).await?;
    Ok(HttpResponse::Ok().json(Shown { drone, position }))
}

async fn existing(calls: &Calls, id: &str) -> Result<Drone, Problem> {
    let drone = calls.services.drone.drone(id).await?;
    drone.ok_or_else(|| Problem::new(Kind::NotFound, format!("there is no drone {id}")))
}

async fn set(calls: Shared, path: web::Path<String>, request: HttpRequest, payload: Payload) -> Answer {
    let id = name(&path)?;
    let drone = calls.read(&request, payload, |fields| drone(fields, id)).await?;
    let existed = existed(calls.services.drone.drone(id).await)?;
    calls.services.drone.put_drones(std::slice::from_ref(&drone)).await?;
    Ok(put(existed, &drone))
}

fn drone(fields: &mut Fields<'_, '_>, id: &str) -> Option<Drone> {
    let positive = |value: &Value| value.as_f64().filter(|number| number.is_finite() && *number > 0.0);
    // What was read may be written back, but where a drone is, only the drone says.
    fields.optional("position", "a position", Some);
    fields.optional("id", "the id in the path", |value| (value.as_str() == Some(id)).then_some(()));
    let home = place(fields, "home", true);
    let speed_kmh = fields.required("speedKmh", "a number above 0", positive);
    let range_km = fields.required("rangeKm", "a number above 0", positive);
    let payload_kg = fields.required("payloadKg", "a number above 0", positive);
    let status = fields.optional("status", "Active or Grounded", typed).unwrap_or(DroneStatus::Active);
    let (home, speed_kmh, range_km, payload_kg) = (home?, speed_kmh?, range_km?, payload_kg?);
    Some(Drone { id: id.into(), home, speed_kmh, range_km, payload_kg, status })
}

/// A drone that somebody counts on stays: it has to be grounded and its deliveries moved or flown first.
async fn delete(calls: Shared, path: web::Path<String>) -> Answer {
    let id = name(&path)?;
    let (now, day) = (now_millis() / 1000, 24 * 60 * 60);
    let after = Some(format!("{:012}.", now - day));
    let booked = calls.services.drone.reservations(id, after, LARGEST_PAGE).await?.items;
    if booked.iter().any(|booked| booked.until.as_millisecond() / 1000 > now) {
        let detail = "the drone has reservations; ground it and delete it when they are over";
        return Err(Problem::new(Kind::Conflict, detail));
    }
    calls.services.drone.delete_drone(id).await?;
    Ok(gone())
}

async fn reservations(calls: Shared, path: web::Path<String>, request: HttpRequest) -> Answer {
    let id = name(&path)?;
    let (part, limit) = Part::of(&request)?;
    let page = calls.services.drone.reservations(id, part.cursor, limit).await?;
    if page.items.is_empty() {
        existing(&calls, id).await?;
    }
    Ok(HttpResponse::Ok().json(page))
}

async fn telemetry(calls: Shared, path: web::Path<String>, request: HttpRequest, payload: Payload) -> Answer {
    let id = name(&path)?;
    let told = calls.read(&request, payload, told).await?;
    existing(&calls, id).await?;
    calls.services.report(id, &told).await?;
    Ok(gone())
}

fn told(fields: &mut Fields<'_, '_>) -> Option<Telemetry> {
    let stage = |value: &Value| typed::<Stage>(value).filter(|stage| *stage != Stage::Cancelled);
    let location = place(fields, "location", true);
    let delivery_id = fields.optional("deliveryId", "the id of a delivery", typed);
    let stage = fields.optional("stage", "a stage of a delivery", stage);
    Some(Telemetry { location: location?, delivery_id, stage })
}
