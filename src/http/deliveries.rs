//! Reads delivery requests back, cancels them and changes their plan. Cancel and change travel on the delivery's
//! partition like the request itself, so they take effect in the order they were accepted (G9).

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::body;
use super::ingestion::{Ingestion, detached, trace};
use super::problem::{Kind, Problem};
use crate::domain::draft::location_faults;
use crate::domain::fault::{Fault, Walk};
use crate::domain::operation::Reschedule;
use crate::domain::time::{Timestamp, now};
use crate::domain::workflow::Step;
use crate::domain::{DeliveryId, DeliveryRequest, Failure, Operation, OperationKind, Status, StepName, Workflow, wire};
use crate::store::workflows::Filter;

/// A workflow as the API shows it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View<'a> {
    delivery_id: &'a DeliveryId,
    owner_id: &'a str,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a Failure>,
    accepted_at: Timestamp,
    updated_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    drone_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change_refused: Option<&'a Failure>,
    steps: Vec<StepView<'a>>,
    request: &'a DeliveryRequest,
}

#[derive(Serialize)]
struct StepView<'a> {
    name: StepName,
    #[serde(flatten)]
    step: &'a Step,
}

impl<'a> View<'a> {
    #[must_use]
    pub fn of(workflow: &'a Workflow) -> Self {
        let steps = StepName::ALL.into_iter().map(|name| StepView { name, step: workflow.step(name) });
        Self {
            delivery_id: &workflow.delivery_id,
            owner_id: &workflow.request.owner_id,
            status: workflow.status,
            reason: workflow.reason.as_ref(),
            accepted_at: workflow.accepted_at,
            updated_at: workflow.updated_at,
            drone_id: workflow.reservation.as_ref().map(|r| &*r.drone_id),
            change_refused: workflow.change_refused.as_ref(),
            steps: steps.collect(),
            request: &workflow.request,
        }
    }
}

/// The id in the path.
fn id_of(path: &str) -> Result<DeliveryId, Problem> {
    DeliveryId::parse(path).map_err(|error| Problem::new(Kind::Malformed, error.to_string()))
}

impl Ingestion {
    /// The workflow of a delivery: its record, or what was accepted here and nobody has taken up yet.
    async fn find(&self, id: &DeliveryId) -> Result<Workflow, Problem> {
        if let Some(stored) = self.workflows.get(id).await? {
            return Ok(*stored.workflow);
        }
        let accepted = self.intake.recent(id).await.into_iter().find_map(|operation| match &operation.op {
            OperationKind::Schedule(request) => Some(Workflow::accepted(&operation, request.clone(), operation.at)),
            _ => None,
        });
        accepted.ok_or_else(|| Problem::new(Kind::NotFound, format!("there is no delivery request {id}")))
    }

    async fn append(&self, id: DeliveryId, op: OperationKind, trace: Option<String>) -> Result<HttpResponse, Problem> {
        let operation = Operation { id, at: now(), trace, op };
        self.write(self.partition(&operation.id), operation.to_line(), 1).await?;
        Ok(HttpResponse::Accepted().json(json!({"deliveryId": operation.id, "status": "Accepted"})))
    }
}

pub(super) async fn get(path: web::Path<String>, ingestion: web::Data<Ingestion>) -> Result<HttpResponse, Problem> {
    let workflow = ingestion.find(&id_of(&path)?).await?;
    Ok(HttpResponse::Ok().json(View::of(&workflow)))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct List {
    status: Option<Status>,
    owner_id: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// What a page holds unless the caller says otherwise, and at most.
const PAGE: usize = 50;
const LARGEST_PAGE: usize = 500;

pub(super) async fn list(
    query: Result<web::Query<List>, actix_web::Error>,
    ingestion: web::Data<Ingestion>,
) -> Result<HttpResponse, Problem> {
    let List { status, owner_id, limit, cursor } =
        query.map_err(|error| Problem::new(Kind::Malformed, format!("the query cannot be read: {error}")))?.0;
    let limit = limit.unwrap_or(PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        let detail = format!("must be between 1 and {LARGEST_PAGE}");
        return Err(Problem::new(Kind::Malformed, format!("limit {detail}")));
    }
    let page = ingestion.workflows.list(&Filter { status, owner: owner_id }, cursor.as_deref(), limit).await?;
    let items: Vec<View<'_>> = page.items.iter().map(View::of).collect();
    Ok(HttpResponse::Ok().json(json!({"items": items, "next": page.next})))
}

pub(super) async fn delete(
    request: HttpRequest,
    path: web::Path<String>,
    ingestion: web::Data<Ingestion>,
) -> Result<HttpResponse, Problem> {
    let id = id_of(&path)?;
    if ingestion.find(&id).await?.status == Status::Completed {
        return Err(Problem::new(Kind::Conflict, format!("the delivery {id} is completed and cannot be cancelled")));
    }
    let trace = trace(request.headers());
    detached(async move { ingestion.append(id, OperationKind::Cancel, trace).await }).await
}

pub(super) async fn patch(
    request: HttpRequest,
    payload: web::Payload,
    path: web::Path<String>,
    ingestion: web::Data<Ingestion>,
) -> Result<HttpResponse, Problem> {
    let id = id_of(&path)?;
    let body = body::json(&request, payload, ingestion.one).await?;
    let tree = serde_json::from_slice::<Value>(&body)
        .map_err(|error| Problem::new(Kind::Malformed, format!("the body is not JSON: {error}")))?;
    let change = read_change(&tree).map_err(Problem::invalid)?;
    let workflow = ingestion.find(&id).await?;
    let open = matches!(workflow.status, Status::Accepted | Status::Scheduling | Status::Scheduled);
    if !open {
        let status = workflow.status.as_str();
        return Err(Problem::new(Kind::Conflict, format!("the delivery {id} is {status}; its plan cannot be changed")));
    }
    let after = change.applied_to(&workflow.request);
    if after.deadline <= after.pickup_time {
        return Err(Problem::invalid(vec![Fault::new("/deadline", "must be after the pickup")]));
    }
    let trace = trace(request.headers());
    detached(async move { ingestion.append(id, OperationKind::Reschedule(change), trace).await }).await
}

/// Reads what is to change, or names everything that is wrong with it.
fn read_change(tree: &Value) -> Result<Reschedule, Vec<Fault>> {
    let mut walk = Walk::default();
    let mut change = Reschedule {
        change: uuid::Uuid::now_v7().to_string(),
        pickup_time: None,
        deadline: None,
        pickup_location: None,
        drop_off_location: None,
    };
    walk.object(tree, "", |fields| {
        change.pickup_time = fields.optional("pickupTime", wire::TIME, wire::time_of);
        change.deadline = fields.optional("deadline", wire::TIME, wire::time_of);
        change.pickup_location = fields.location("pickupLocation", false);
        change.drop_off_location = fields.location("dropOffLocation", false);
    });
    let mut faults = walk.into_faults();
    for (name, location) in
        [("/pickupLocation", change.pickup_location), ("/dropOffLocation", change.drop_off_location)]
    {
        faults.extend(location.into_iter().flat_map(|location| location_faults(&name, location)));
    }
    let asks = change.pickup_time.is_some()
        || change.deadline.is_some()
        || change.pickup_location.is_some()
        || change.drop_off_location.is_some();
    if faults.is_empty() && !asks {
        let fields = "at least one of pickupTime, deadline, pickupLocation and dropOffLocation";
        faults.push(Fault::new("", format!("must change {fields}")));
    }
    if faults.is_empty() { Ok(change) } else { Err(faults) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_change_names_all_that_is_wrong() {
        let faults = read_change(&json!({"pickupTime": 3, "deadline": "soon", "pickupLocation": "91,0", "weight": 1}));
        let mut pointers: Vec<String> = faults.unwrap_err().into_iter().map(|f| f.pointer).collect();
        pointers.sort();
        assert_eq!(pointers, ["/deadline", "/pickupLocation/latitude", "/pickupTime", "/weight"]);
        assert!(read_change(&json!({})).is_err());
        assert!(read_change(&json!({"deadline": "2026-12-01T12:00:00Z"})).is_ok());
    }

    #[test]
    fn a_view_names_its_steps() {
        let request = Arc::new(crate::domain::request::samples::request());
        let operation = Operation {
            id: DeliveryId::parse("d-1").unwrap(),
            at: crate::domain::time::from_millis(1),
            trace: None,
            op: OperationKind::Cancel,
        };
        let workflow = Workflow::accepted(&operation, request, operation.at);
        let view = serde_json::to_value(View::of(&workflow)).unwrap();
        assert_eq!(view["steps"][3]["name"], "drone");
        assert_eq!(view["ownerId"], "contoso");
        assert!(view.get("reason").is_none());
    }
}
