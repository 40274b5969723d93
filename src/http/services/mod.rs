//! The services' own calls, which are also what another instance's agents call when a service has an address
//! ([`remote`](crate::services::remote)). A refusal carries its stable code in the problem's `code`.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::web::{self, Payload};
use actix_web::{HttpRequest, HttpResponse};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Routes;
use super::body::{self, Limits};
use super::problem::{Kind, Problem};
use crate::config::Settings;
use crate::domain::draft::{is_name, location_faults};
use crate::domain::fault::{Fields, Walk};
use crate::domain::workflow::Output;
use crate::domain::{DeliveryId, Draft, Fault, Location, ReasonCode, time};
use crate::services::{Local, Order, Service, StepError, one};

mod accounts;
mod bookings;
mod deliveries;
mod drones;
mod packages;

/// How many items a page has when the caller does not say, and at most.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// What the calls need.
pub struct Calls {
    services: Local,
    limits: Limits,
    deadline_after: Duration,
}

type Shared = web::Data<Calls>;
type Answer = Result<HttpResponse, Problem>;

/// The routes of all services.
#[must_use]
pub fn routes(services: Local, settings: &Settings) -> Routes {
    let limits = Limits { bytes: settings.http.max_body_bytes, time: settings.http.body_timeout };
    let calls = web::Data::new(Calls { services, limits, deadline_after: settings.ingestion.deadline });
    Arc::new(move |config| {
        config.app_data(calls.clone());
        for part in [accounts::routes, packages::routes, bookings::routes, drones::routes, deliveries::routes] {
            config.configure(part);
        }
    })
}

impl Calls {
    /// Reads a body as the object that `look` makes of its fields; names everything that is wrong with it.
    async fn read<T>(
        &self,
        request: &HttpRequest,
        payload: Payload,
        look: impl FnOnce(&mut Fields<'_, '_>) -> Option<T>,
    ) -> Result<T, Problem> {
        let tree = self.tree(request, payload).await?;
        let mut walk = Walk::default();
        let mut read = None;
        walk.object(&tree, "", |fields| read = look(fields));
        match (read, walk.into_faults()) {
            (Some(read), faults) if faults.is_empty() => Ok(read),
            (_, faults) => Err(Problem::invalid(faults)),
        }
    }

    async fn tree(&self, request: &HttpRequest, payload: Payload) -> Result<Value, Problem> {
        let bytes = body::json(request, payload, self.limits).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Problem::new(Kind::Malformed, format!("the body is not JSON: {error}")))
    }

    /// Reads the order of a workflow's step: a delivery request, and what the steps before have decided.
    async fn order(&self, request: &HttpRequest, payload: Payload, id: DeliveryId) -> Result<Order, Problem> {
        let mut tree = self.tree(request, payload).await?;
        let mut faults = Vec::new();
        let route = decided(&mut tree, "route", &mut faults);
        let reservation = decided(&mut tree, "reservation", &mut faults);
        let now = time::now();
        let draft = match Draft::read(tree.to_string().as_bytes(), now) {
            Ok(draft) if faults.is_empty() => draft,
            Ok(_) => return Err(Problem::invalid(faults)),
            Err(error) => {
                let mut problem = Problem::from(error);
                problem.errors.append(&mut faults);
                return Err(problem);
            }
        };
        let asked = Arc::new(draft.complete(&id, now, self.deadline_after));
        let trace = request.headers().get("traceparent").and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Order { id, request: asked, route, reservation, trace })
    }
}

/// How a step's `PUT` is meant.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct How {
    /// What the delivery has is changed to what the document says now; without it, a delivery keeps what it has.
    #[serde(default)]
    change: bool,
}

impl How {
    async fn run(&self, service: &dyn Service, order: &Order) -> Result<Output, Problem> {
        let orders = std::slice::from_ref(order);
        let answers = if self.change { service.change(orders).await } else { service.execute(orders).await };
        Ok(one(answers)?)
    }
}

/// Takes an earlier step's decision out of a document.
fn decided<T: DeserializeOwned>(tree: &mut Value, name: &str, faults: &mut Vec<Fault>) -> Option<T> {
    let value = tree.as_object_mut()?.remove(name).filter(|value| !value.is_null())?;
    match serde_json::from_value(value) {
        Ok(decided) => Some(decided),
        Err(error) => {
            faults.push(Fault::new(format!("/{name}"), error.to_string()));
            None
        }
    }
}

impl From<StepError> for Problem {
    fn from(error: StepError) -> Self {
        match error {
            StepError::Transient(reason) => Self::new(Kind::Unavailable, reason),
            StepError::Refused(failure) => {
                let kind = match failure.code {
                    ReasonCode::AlreadyCancelled | ReasonCode::Damaged => Kind::Conflict,
                    _ => Kind::Invalid,
                };
                Self::new(kind, failure.text).with("code", Value::from(failure.code.as_str()))
            }
        }
    }
}

/// A delivery's id in a path.
fn delivery_id(path: &str) -> Result<DeliveryId, Problem> {
    DeliveryId::parse(path).map_err(|error| Problem::invalid(vec![Fault::new("", error.to_string())]))
}

/// An account's, a package's or a drone's id in a path.
fn name(path: &str) -> Result<&str, Problem> {
    let rule = "an id is 1 to 64 characters out of A-Z, a-z, 0-9, '.', '_', '@' and '-'";
    if is_name(path) { Ok(path) } else { Err(Problem::invalid(vec![Fault::new("", rule)])) }
}

/// Whether there is something to replace. What is damaged is, and may be put anew.
fn existed<T>(found: Result<Option<T>, StepError>) -> Result<bool, Problem> {
    match found {
        Err(StepError::Refused(failure)) if failure.code == ReasonCode::Damaged => Ok(true),
        found => Ok(found?.is_some()),
    }
}

/// The answer to a `PUT`: made, or replaced.
fn put<T: Serialize>(existed: bool, entity: &T) -> HttpResponse {
    if existed { HttpResponse::NoContent().finish() } else { HttpResponse::Created().json(entity) }
}

fn found<T: Serialize>(entity: Option<T>, what: &str) -> Answer {
    match entity {
        Some(entity) => Ok(HttpResponse::Ok().json(entity)),
        None => Err(Problem::new(Kind::NotFound, format!("there is no such {what}"))),
    }
}

/// Why something of a delivery is not there.
fn missing(cancelled: bool, what: &str) -> Problem {
    if cancelled {
        return Problem::new(Kind::Other(StatusCode::GONE), format!("the {what} was cancelled"));
    }
    Problem::new(Kind::NotFound, format!("there is no such {what}"))
}

fn gone() -> HttpResponse {
    HttpResponse::NoContent().finish()
}

/// Which part of a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Part {
    limit: Option<usize>,
    cursor: Option<String>,
    owner_id: Option<String>,
}

impl Part {
    fn of(request: &HttpRequest) -> Result<(Self, usize), Problem> {
        let fault = |detail: String| Problem::invalid(vec![Fault::new("", detail)]);
        let part = web::Query::<Self>::from_query(request.query_string())
            .map_err(|error| fault(format!("the query cannot be read: {error}")))?
            .into_inner();
        let limit = part.limit.unwrap_or(PAGE);
        if !(1..=LARGEST_PAGE).contains(&limit) {
            return Err(fault(format!("limit must be between 1 and {LARGEST_PAGE}")));
        }
        Ok((part, limit))
    }
}

/// A field's value, if it is one of its type's.
fn typed<T: DeserializeOwned>(value: &Value) -> Option<T> {
    T::deserialize(value).ok()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| text.len() <= 2048).map(str::to_owned)
}

const TEXT: &str = "a text of at most 2048 characters";

/// A point that must be there and be on the earth; faults of its numbers are told like any other.
fn place(fields: &mut Fields<'_, '_>, field: &'static str, required: bool) -> Option<Location> {
    let place = fields.location(field, required)?;
    let faults = location_faults(&format_args!("/{field}"), place);
    let sound = faults.is_empty();
    fields.note(faults);
    sound.then_some(place)
}
