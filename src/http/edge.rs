//! What every call goes through: each answer carries an `x-request-id`, each error is a problem with the path it
//! happened at, a panic is a 500 and not a closed connection, and each call is counted.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error, HttpRequest, HttpResponse, ResponseError};
use futures_util::FutureExt;

use super::problem::{CONTENT_TYPE, Kind, Problem};
use crate::metrics;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID: usize = 128;

/// The outermost layer of the server.
///
/// # Errors
/// Only for calls that came to no answer of their own; actix turns it into one.
pub async fn edge<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, Error> {
    let started = Instant::now();
    let request_id = request_id(request.headers());
    let uri = request.uri().clone();
    let failed = |problem, id| Err(Failed { problem, path: uri.path().to_owned(), id }.into());
    let mut response = match AssertUnwindSafe(next.call(request)).catch_unwind().await {
        Ok(Ok(response)) => finish(response),
        Ok(Err(error)) => return failed(problem_of(&error), request_id),
        Err(panic) => {
            let reason = panic.downcast_ref::<&str>().map(ToString::to_string);
            let reason = reason.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            tracing::error!(path = uri.path(), reason, "a call panicked");
            return failed(Problem::new(Kind::Internal, "the call could not be carried out"), request_id);
        }
    };
    response.headers_mut().insert(REQUEST_ID, request_id);
    metrics::http_call(response.request(), response.status(), started.elapsed());
    Ok(response)
}

/// A call that came to no answer of its own. The request is gone by then (it cannot be held beside its handler), so
/// what the answer needs of it is kept here.
#[derive(Debug, thiserror::Error)]
#[error("{}", .problem.detail)]
struct Failed {
    problem: Problem,
    path: String,
    id: HeaderValue,
}

impl ResponseError for Failed {
    fn status_code(&self) -> StatusCode {
        self.problem.kind.told().0
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = self.problem.respond(Some(&self.path));
        response.headers_mut().insert(REQUEST_ID, self.id.clone());
        response
    }
}

/// The client's id for the call when it is sane, or a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let sane = |value: &&HeaderValue| {
        (1..=MAX_REQUEST_ID).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if let Some(value) = headers.get(REQUEST_ID).filter(sane) {
        return value.clone();
    }
    let mut buffer = uuid::Uuid::encode_buffer();
    let text = uuid::Uuid::now_v7().hyphenated().encode_lower(&mut buffer);
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

fn finish<B: MessageBody + 'static>(response: ServiceResponse<B>) -> ServiceResponse<EitherBody<B>> {
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) {
        return response.map_into_left_body();
    }
    let problem = match response.response().error() {
        Some(error) => problem_of(error),
        None if is_problem(response.headers()) => return response.map_into_left_body(),
        None => Problem::new(status.into(), status.canonical_reason().unwrap_or("error").to_lowercase()),
    };
    let allow = response.headers().get(header::ALLOW).cloned();
    let mut response = respond(response.request().clone(), &problem);
    if let Some(allow) = allow {
        response.headers_mut().insert(header::ALLOW, allow);
    }
    response
}

fn is_problem(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes() == CONTENT_TYPE.as_bytes())
}

/// What an error is to the client. What went wrong inside is logged, not told.
fn problem_of(error: &Error) -> Problem {
    if let Some(problem) = error.as_error::<Problem>() {
        return problem.clone();
    }
    let status = error.as_response_error().status_code();
    if status.is_server_error() {
        tracing::error!(%error, "a call failed");
        return Problem::new(status.into(), "the call could not be carried out");
    }
    Problem::new(status.into(), error.to_string())
}

fn respond<B>(request: HttpRequest, problem: &Problem) -> ServiceResponse<EitherBody<B>> {
    let response = problem.respond(Some(request.path()));
    ServiceResponse::new(request, response).map_into_right_body()
}
