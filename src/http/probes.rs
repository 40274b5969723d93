//! What an orchestrator asks: is the process alive, can it do its work, what has it counted.

use actix_web::http::header::ContentType;
use actix_web::{HttpResponse, web};
use serde_json::json;

use super::problem::{Kind, Problem};
use crate::health::Health;
use crate::metrics;

pub fn routes(config: &mut web::ServiceConfig) {
    config
        .service(web::resource("/livez").get(livez))
        .service(web::resource("/readyz").get(readyz))
        .service(web::resource("/metrics").get(counted));
}

/// Answering is all there is to it: a part that is away does not get better by killing the process.
async fn livez() -> HttpResponse {
    HttpResponse::Ok().json(json!({"status": "alive"}))
}

async fn readyz(health: web::Data<Health>) -> Result<HttpResponse, Problem> {
    let parts = health.report().await;
    let away: Vec<_> = parts.iter().filter(|part| !part.up).map(|part| part.name).collect();
    if away.is_empty() {
        return Ok(HttpResponse::Ok().json(json!({"status": "ready", "parts": parts})));
    }
    Err(Problem::new(Kind::Unavailable, format!("not available: {}", away.join(", "))).with("parts", json!(parts)))
}

async fn counted() -> HttpResponse {
    HttpResponse::Ok().content_type(ContentType::plaintext()).body(metrics::render())
}
