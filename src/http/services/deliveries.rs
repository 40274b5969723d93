//! `/api/deliveries`

use super::*;
use crate::domain::status::Stage;
use crate::domain::time::Timestamp;
use crate::domain::wire;
use crate::services::delivery::{Confirmed, Delivery, NotifyMe, Patch, StageEvent};
use crate::services::entities::Page;

pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(web::resource("/api/deliveries").route(web::get().to(list)))
        .service(
            web::resource("/api/deliveries/{id}")
                .route(web::get().to(get))
                .route(web::put().to(set))
                .route(web::patch().to(patch))
                .route(web::delete().to(delete)),
        )
        .service(web::resource("/api/deliveries/{id}/status").route(web::get().to(status)))
        .service(web::resource("/api/deliveries/{id}/events").route(web::get().to(events)))
        .service(web::resource("/api/deliveries/{id}/confirmations").route(web::post().to(confirm)))
        .service(web::resource("/api/deliveries/{id}/notifymerequests").route(web::post().to(notify_me)));
}

async fn list(calls: Shared, request: HttpRequest) -> Answer {
    let (part, limit) = Part::of(&request)?;
    let Some(owner) = &part.owner_id else {
        return Err(Problem::invalid(vec![Fault::new("", "ownerId must be given: the list is one owner's")]));
    };
    Ok(HttpResponse::Ok().json(calls.services.delivery.of_owner(owner, part.cursor, limit).await?))
}

/// The delivery, or why there is none.
async fn present(calls: &Calls, id: &DeliveryId, delivery: Option<Delivery>) -> Result<Delivery, Problem> {
    match delivery {
        Some(delivery) => Ok(delivery),
        None => Err(missing(calls.services.delivery.is_cancelled(id).await?, "delivery")),
    }
}

async fn existing(calls: &Calls, path: &str) -> Result<Delivery, Problem> {
    let id = delivery_id(path)?;
    present(calls, &id, calls.services.delivery.get(&id).await?).await
}

async fn get(calls: Shared, path: web::Path<String>) -> Answer {
    Ok(HttpResponse::Ok().json(existing(&calls, &path).await?))
}

/// Makes the delivery; one that is there takes over places, times and drone, and keeps its progress.
async fn set(
    calls: Shared,
    path: web::Path<String>,
    _how: web::Query<How>,
    request: HttpRequest,
    payload: Payload,
) -> Answer {
    let order = calls.order(&request, payload, delivery_id(&path)?).await?;
    let existed = calls.services.delivery.get(&order.id).await?.is_some();
    one(calls.services.delivery.execute(std::slice::from_ref(&order)).await)?;
    let delivery = if existed {
        calls.services.delivery.amend(&order).await?
    } else {
        calls.services.delivery.get(&order.id).await?
    };
    Ok(put(existed, &present(&calls, &order.id, delivery).await?))
}

async fn patch(calls: Shared, path: web::Path<String>, request: HttpRequest, payload: Payload) -> Answer {
    let id = delivery_id(&path)?;
    let changes = calls.read(&request, payload, changes).await?;
    let delivery = calls.services.delivery.patch(&id, &changes).await?;
    Ok(HttpResponse::Ok().json(present(&calls, &id, delivery).await?))
}

fn changes(fields: &mut Fields<'_, '_>) -> Option<Patch> {
    Some(Patch {
        stage: fields.optional("stage", STAGE, stage),
        pickup_location: place(fields, "pickupLocation", false),
        drop_off_location: place(fields, "dropOffLocation", false),
        pickup_time: fields.optional("pickupTime", wire::TIME, wire::time_of),
        deadline: fields.optional("deadline", wire::TIME, wire::time_of),
        drone_id: fields.optional("droneId", "the id of a drone", |value| text(value).filter(|id| is_name(id))),
    })
}

const STAGE: &str = "Created, HeadedToPickup, PickedUp, HeadedToDropOff or Delivered";

/// A stage that can be reached; a delivery is cancelled by deleting it.
fn stage(value: &Value) -> Option<Stage> {
    typed(value).filter(|stage| *stage != Stage::Cancelled)
}

async fn delete(calls: Shared, path: web::Path<String>) -> Answer {
    one(calls.services.delivery.withdraw(&[delivery_id(&path)?]).await)?;
    Ok(gone())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    delivery_id: DeliveryId,
    stage: Stage,
    updated_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    drone_id: Option<String>,
    /// Where the drone is, while it flies for this delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<Location>,
    /// When the package should be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    eta: Option<Timestamp>,
}

async fn status(calls: Shared, path: web::Path<String>) -> Answer {
    let delivery = existing(&calls, &path).await?;
    let (id, services) = (&delivery.id, &calls.services);
    let position = match &delivery.drone_id {
        Some(drone) => services.position(drone).await?.filter(|position| position.delivery_id.as_ref() == Some(id)),
        None => None,
    };
    let reservation = services.drone.reservation(id).await?;
    Ok(HttpResponse::Ok().json(Status {
        stage: delivery.stage,
        updated_at: delivery.updated_at,
        location: position.map(|position| position.location),
        eta: reservation.filter(|_| delivery.stage < Stage::Delivered).map(|reservation| reservation.drop_off_at),
        drone_id: delivery.drone_id,
        delivery_id: delivery.id,
    }))
}

async fn events(calls: Shared, path: web::Path<String>) -> Answer {
    let items: Vec<StageEvent> = existing(&calls, &path).await?.events;
    Ok(HttpResponse::Ok().json(Page { items, next: None }))
}

async fn confirm(calls: Shared, path: web::Path<String>, request: HttpRequest, payload: Payload) -> Answer {
    let id = delivery_id(&path)?;
    let confirmed = calls.read(&request, payload, confirmed).await?;
    let delivery = calls.services.delivery.confirm(&id, &confirmed).await?;
    present(&calls, &id, delivery).await?;
    Ok(HttpResponse::Created().json(confirmed))
}

fn confirmed(fields: &mut Fields<'_, '_>) -> Option<Confirmed> {
    let kind = fields.required("type", "None, FingerPrint, Picture or Voice", typed);
    let reference = fields.optional("reference", TEXT, text);
    Some(Confirmed { at: time::now(), kind: kind?, reference })
}

async fn notify_me(calls: Shared, path: web::Path<String>, request: HttpRequest, payload: Payload) -> Answer {
    let id = delivery_id(&path)?;
    let wish = calls.read(&request, payload, wish).await?;
    let delivery = calls.services.delivery.notify_me(&id, &wish).await?;
    present(&calls, &id, delivery).await?;
    Ok(HttpResponse::Created().json(wish))
}

fn wish(fields: &mut Fields<'_, '_>) -> Option<NotifyMe> {
    let email = fields.optional("email", "an e-mail address", |value| text(value).filter(|text| text.contains('@')));
    let webhook = fields.optional("webhook", "an http or https address", |value| {
        text(value).filter(|text| text.starts_with("http://") || text.starts_with("https://"))
    });
    let stage = fields.optional("stage", STAGE, stage);
    if email.is_none() && webhook.is_none() {
        fields.note(vec![Fault::new("", "email or webhook must be given")]);
    }
    Some(NotifyMe { email, webhook, stage })
}
