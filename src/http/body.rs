//! Reads bodies within bounds: a sender that is too slow or sends too much is told so and holds nothing.

use std::time::Duration;

use actix_web::HttpRequest;
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::web::{Bytes, BytesMut, Payload};
use futures_util::StreamExt;

use super::problem::{Kind, Problem};

/// What a body may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: usize,
    pub time: Duration,
}

/// The content types the calls know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaType {
    Json,
    NdJson,
}

/// What the body says it is; a body that does not say is JSON.
///
/// # Errors
/// When it is something else.
pub fn media_type(request: &HttpRequest) -> Result<MediaType, Problem> {
    let Some(value) = request.headers().get(header::CONTENT_TYPE) else { return Ok(MediaType::Json) };
    let text = value.to_str().unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/json" => Ok(MediaType::Json),
        "application/x-ndjson" => Ok(MediaType::NdJson),
        other if other.starts_with("application/") && other.ends_with("+json") => Ok(MediaType::Json),
        _ => Err(Problem::new(Kind::UnsupportedMediaType, format!("{text:?} is not supported; send application/json"))),
    }
}

/// Reads a JSON body.
///
/// # Errors
/// When it is not JSON by its type, too large, too slow or cut off.
pub async fn json(request: &HttpRequest, payload: Payload, limits: Limits) -> Result<Bytes, Problem> {
    match media_type(request)? {
        MediaType::Json => read(request, payload, limits).await,
        MediaType::NdJson => {
            Err(Problem::new(Kind::UnsupportedMediaType, "this call takes one request; send application/json"))
        }
    }
}

/// Reads a body of any type.
///
/// # Errors
/// When it is too large, too slow or cut off.
pub async fn read(request: &HttpRequest, payload: Payload, limits: Limits) -> Result<Bytes, Problem> {
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|bytes| bytes > limits.bytes) {
        return Err(too_large(limits));
    }
    match tokio::time::timeout(limits.time, gather(payload, limits)).await {
        Ok(body) => body,
        Err(_) => {
            let detail = format!("the body must be here {} ms after its head", limits.time.as_millis());
            Err(Problem::new(Kind::BodyTimeout, detail))
        }
    }
}

async fn gather(mut payload: Payload, limits: Limits) -> Result<Bytes, Problem> {
    // Most bodies are one piece, which is taken as it is.
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(piece) = payload.next().await {
        let piece = piece.map_err(|error| broken(&error, limits))?;
        if first.len() + whole.len() + piece.len() > limits.bytes {
            return Err(too_large(limits));
        }
        if first.is_empty() && whole.is_empty() {
            first = piece;
        } else {
            whole.extend_from_slice(&std::mem::take(&mut first));
            whole.extend_from_slice(&piece);
        }
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}

fn too_large(limits: Limits) -> Problem {
    Problem::new(Kind::TooLarge, format!("a body is at most {} bytes", limits.bytes))
}

fn broken(error: &PayloadError, limits: Limits) -> Problem {
    match error {
        PayloadError::Overflow => too_large(limits),
        _ => Problem::new(Kind::Malformed, format!("the body was cut off: {error}")),
    }
}
