//! `/api/thirdpartydeliveries/{deliveryId}`

use super::*;
use crate::services::transport::Booking;

pub fn routes(config: &mut web::ServiceConfig) {
    config.service(
        web::resource("/api/thirdpartydeliveries/{id}")
            .route(web::get().to(get))
            .route(web::put().to(set))
            .route(web::delete().to(delete)),
    );
}

async fn get(calls: Shared, path: web::Path<String>) -> Answer {
    let id = delivery_id(&path)?;
    match calls.services.transport.get(&id).await? {
        Some(booking) => Ok(HttpResponse::Ok().json(booking)),
        None => Err(missing(calls.services.transport.is_cancelled(&id).await?, "booking")),
    }
}

/// Answers with the route. `201` when it takes a carrier that was not booked before; `200` when it was, or when the
/// drone flies all of it and nothing is to be booked.
async fn set(
    calls: Shared,
    path: web::Path<String>,
    how: web::Query<How>,
    request: HttpRequest,
    payload: Payload,
) -> Answer {
    let order = calls.order(&request, payload, delivery_id(&path)?).await?;
    let existed = calls.services.transport.get(&order.id).await?.is_some();
    let Output::Route(route) = how.run(&*calls.services.transport, &order).await? else {
        return Err(Problem::new(Kind::Internal, "the transport service decided nothing"));
    };
    let made = !existed && !route.legs.is_empty();
    let status = if made { StatusCode::CREATED } else { StatusCode::OK };
    Ok(HttpResponse::build(status).json(Booking { delivery_id: order.id, route }))
}

async fn delete(calls: Shared, path: web::Path<String>) -> Answer {
    calls.services.transport.withdraw(&[delivery_id(&path)?]).await?;
    Ok(gone())
}
