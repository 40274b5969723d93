//! Redrive and abandon, for one stuck delivery or for many by filter. Many are done one page at a time, and the answer
//! counts what really happened: matched, done, and each that was not with the reason.

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Operations;
use crate::actors::notice::{self, Notice, StatusLines};
use crate::actors::scheduler::failed_operation;
use crate::alerts::AlertKind;
use crate::domain::time::now;
use crate::domain::workflow::Event;
use crate::domain::{DeliveryId, ReasonCode, Status};
use crate::http::deliveries::View;
use crate::http::problem::{Kind, Problem};
use crate::store::Outcome;
use crate::store::workflows::{Filter, Stored};
use crate::stream::Queue;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Has it undone once more.
    Redrive,
    /// Gives up on undoing it: what stands is left to the operator.
    Abandon,
}

impl Action {
    fn event(self) -> Event {
        match self {
            Self::Redrive => Event::Redriven,
            Self::Abandon => Event::Abandoned,
        }
    }
}

fn action(text: &str) -> Result<Action, Problem> {
    match text {
        "redrive" => Ok(Action::Redrive),
        "abandon" => Ok(Action::Abandon),
        _ => Err(Problem::new(Kind::NotFound, format!("there is no action {text}; there are redrive and abandon"))),
    }
}

pub async fn one(
    path: web::Path<(String, String)>,
    operations: web::Data<Operations>,
) -> Result<HttpResponse, Problem> {
    let (id, what) = path.into_inner();
    let action = action(&what)?;
    let id = DeliveryId::parse(&id).map_err(|error| Problem::new(Kind::Malformed, error.to_string()))?;
    let record = operations.workflows.get(&id).await?;
    let record = record.ok_or_else(|| Problem::new(Kind::NotFound, format!("there is no delivery request {id}")))?;
    let record = act(&operations, record, action).await?;
    Ok(HttpResponse::Accepted().json(View::of(&record.workflow)))
}

/// Which of the stuck ones: `{}` is all of them up to the limit, while a body that is left out is refused.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wish {
    #[serde(default)]
    owner_id: Option<String>,
    #[serde(default)]
    reason: Option<ReasonCode>,
    #[serde(default = "most")]
    limit: usize,
}

fn most() -> usize {
    1_000
}

const LARGEST: usize = 10_000;
const PAGE: usize = 200;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NotDone {
    delivery_id: DeliveryId,
    detail: String,
}

pub async fn many(
    path: web::Path<String>,
    wish: Result<web::Json<Wish>, actix_web::Error>,
    operations: web::Data<Operations>,
) -> Result<HttpResponse, Problem> {
    let action = action(&path)?;
    let wish = wish.map_err(|error| Problem::new(Kind::Invalid, format!("the filter cannot be read: {error}")))?.0;
    if !(1..=LARGEST).contains(&wish.limit) {
        return Err(Problem::new(Kind::Invalid, format!("limit must be between 1 and {LARGEST}")));
    }
    let filter = Filter { status: Some(Status::Stuck), owner: wish.owner_id.clone() };
    let (mut matched, mut done, mut not_done, mut cursor) = (0_usize, 0_usize, Vec::new(), None);
    loop {
        let page = operations.workflows.list(&filter, cursor.as_deref(), PAGE).await?;
        let fits = |code: Option<ReasonCode>| wish.reason.is_none() || wish.reason == code;
        let found = page.items.into_iter().filter(|w| fits(w.reason.as_ref().map(|r| r.code)));
        for workflow in found.take(wish.limit - matched) {
            matched += 1;
            let id = workflow.delivery_id.clone();
            let acted = match operations.workflows.get(&id).await? {
                Some(record) => act(&operations, record, action).await.map(drop),
                None => Err(Problem::new(Kind::NotFound, "it is gone")),
            };
            match acted {
                Ok(()) => done += 1,
                Err(problem) => not_done.push(NotDone { delivery_id: id, detail: problem.detail }),
            }
        }
        cursor = page.next;
        if cursor.is_none() || matched == wish.limit {
            break;
        }
    }
    Ok(HttpResponse::Ok().json(json!({"action": action, "matched": matched, "done": done, "notDone": not_done})))
}

/// Does it to one record, unless it is not stuck or somebody else changed it meanwhile.
async fn act(operations: &Operations, mut record: Stored, action: Action) -> Result<Stored, Problem> {
    let id = record.workflow.delivery_id.clone();
    let (status, at) = (record.workflow.status, now());
    if record.workflow.apply(action.event(), at).is_err() {
        let detail = format!("the delivery {id} is {}; only a stuck one can be redriven or abandoned", status.as_str());
        return Err(Problem::new(Kind::Conflict, detail));
    }
    if operations.workflows.save(&mut [&mut record]).await? != [Outcome::Done] {
        return Err(Problem::new(Kind::Conflict, format!("the delivery {id} was changed meanwhile; look again")));
    }
    operations.alerts.clear(AlertKind::WorkflowStuck, id.as_str());
    let mut lines = StatusLines::default();
    lines.status(&record.workflow, record.workflow.status, at);
    lines.tell(&operations.status).await;
    if record.workflow.status == Status::Compensating {
        let message = vec![failed_operation(&record.workflow)];
        let published = operations.engine.queues.publish(Queue::FailedOperations, message).await;
        // The record says that it is to be undone, so the sweeper hands it over if this did not.
        published.map_err(|error| Problem::new(Kind::Unavailable, error.to_string()))?;
    }
    notice::publish(&*operations.engine.queues, Notice::of(&record.workflow).into_iter().collect()).await;
    Ok(record)
}
