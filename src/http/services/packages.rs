//! `/api/packages/{id}`

use super::*;
use crate::services::package::Package;

pub fn routes(config: &mut web::ServiceConfig) {
    config.service(
        web::resource("/api/packages/{id}")
            .route(web::get().to(get))
            .route(web::put().to(set))
            .route(web::delete().to(delete)),
    );
}

async fn get(calls: Shared, path: web::Path<String>) -> Answer {
    found(calls.services.package.get(name(&path)?).await?, "package")
}

async fn set(calls: Shared, path: web::Path<String>, request: HttpRequest, payload: Payload) -> Answer {
    let id = name(&path)?;
    let package = calls.read(&request, payload, package).await?;
    let existed = existed(calls.services.package.get(id).await)?;
    calls.services.package.put(id, &package).await?;
    Ok(put(existed, &package))
}

fn package(fields: &mut Fields<'_, '_>) -> Option<Package> {
    let weight = |value: &Value| value.as_f64().filter(|weight| weight.is_finite() && *weight > 0.0);
    let tag = |value: &Value| text(value).filter(|tag| tag.chars().count() <= 128);
    let delivery_id = fields.required("deliveryId", "the id of a delivery", typed);
    let size = fields.required("size", "Small, Medium or Large", typed);
    let weight = fields.required("weight", "a number of kilograms above 0", weight);
    let tag = fields.optional("tag", "a text of at most 128 characters", tag);
    Some(Package { delivery_id: delivery_id?, size: size?, weight: weight?, tag })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Whose {
    delivery_id: Option<DeliveryId>,
}

/// With `deliveryId` the package goes only if it is that delivery's, and the delivery's packages are refused from then
/// on: this is how a workflow's step is undone.
async fn delete(calls: Shared, path: web::Path<String>, whose: web::Query<Whose>) -> Answer {
    let id = name(&path)?;
    match &whose.delivery_id {
        Some(delivery) => calls.services.package.withdraw(id, delivery).await?,
        None => calls.services.package.delete(id).await?,
    }
    Ok(gone())
}
