//! Takes delivery requests in. `202` is sent only after the partition's writer has said that the request is durable
//! (G1). A request with a key, or with the caller's id, goes on when its client has gone: what became of it is then
//! known when the client asks again.

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header::{self, HeaderMap, HeaderName};
use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use uuid::Uuid;

use super::body::{self, Limits};
use super::deliveries;
use super::intake::Intake;
use super::problem::{Kind, Problem};
use crate::actors::writer::WriteError;
use crate::config::Settings;
use crate::domain::time::{self, Timestamp};
use crate::domain::{DeliveryId, Draft, Operation, OperationKind, partition_of};
use crate::metrics;
use crate::store::State;
use crate::store::idempotency::{Claimed, Claims};
use crate::store::workflows::Workflows;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const MAX_KEY: usize = 255;
/// Ids of keyed requests are derived in this name space. Fixed for ever: with another one, a repeat would be a second
/// delivery.
const NAMESPACE: Uuid = Uuid::from_u128(0x0d2f_5c1e_7b1a_5e52_9a3c_64e0_83a1_90d4);

/// What the calls need; each thread of the server has its own.
pub struct Ingestion {
    pub(super) intake: Intake,
    pub(super) workflows: Workflows,
    claims: Claims,
    partitions: u32,
    deadline_after: Duration,
    /// How long a keyed request may be under way.
    hold: Duration,
    /// How long the body of a `PUT` is remembered.
    keep: Duration,
    client_header: String,
    pub(super) one: Limits,
    pub(super) many: Limits,
    limit_route: bool,
}

/// A request that is ready to be written.
pub(super) struct Ready {
    pub id: DeliveryId,
    pub partition: u32,
    pub line: Vec<u8>,
}

/// What a call is told by its headers.
pub(super) struct Caller {
    pub trace: Option<String>,
    /// The id derived from client and key, when there is a key.
    pub derived: Option<Uuid>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Accepted<'a> {
    delivery_id: &'a str,
    status: &'static str,
}

impl Ingestion {
    #[must_use]
    pub fn new(settings: &Settings, intake: Intake, state: Arc<dyn State>) -> Self {
        let limits = |bytes| Limits { bytes, time: settings.http.body_timeout };
        Self {
            claims: Claims::new(Arc::clone(&state), settings.ingestion.idempotency_ttl),
            intake,
            workflows: Workflows::new(state),
            partitions: settings.partitions.count,
            deadline_after: settings.ingestion.deadline,
            hold: settings.ingestion.claim_ttl,
            keep: settings.ingestion.idempotency_ttl,
            client_header: settings.http.client_header.clone(),
            one: limits(settings.http.max_body_bytes),
            many: limits(settings.http.max_batch_bytes),
            limit_route: settings.http.limit_route,
        }
    }

    /// The routes; they find this by its `Data`.
    pub fn routes(ingestion: &web::Data<Self>, config: &mut web::ServiceConfig) {
        config
            .app_data(ingestion.clone())
            .service(web::resource("/api/deliveryrequests").post(post).get(deliveries::list))
            .service(web::resource("/api/deliveryrequests/batch").post(super::batch::post));
        // Before the pattern, so that what the others are measured against is not compared with it.
        if ingestion.limit_route {
            config.service(web::resource("/api/limit").post(limit));
        }
        config.service(
            web::resource("/api/deliveryrequests/{deliveryId}")
                .get(deliveries::get)
                .put(put)
                .patch(deliveries::patch)
                .delete(deliveries::delete),
        );
    }

    pub(super) fn read_draft(body: &[u8], now: Timestamp) -> Result<Draft, Problem> {
        Draft::read(body, now).map_err(|error| {
            metrics::refused("invalid", 1);
            error.into()
        })
    }

    /// One request, and when it came.
    async fn receive(&self, request: &HttpRequest, payload: web::Payload) -> Result<(Draft, Timestamp), Problem> {
        let body = body::json(request, payload, self.one).await?;
        let now = time::now();
        Ok((Self::read_draft(&body, now)?, now))
    }

    pub(super) fn ready(&self, id: DeliveryId, draft: Draft, now: Timestamp, trace: Option<String>) -> Ready {
        let request = draft.complete(&id, now, self.deadline_after);
        let op = OperationKind::Schedule(Arc::new(request));
        let line = Operation { id: id.clone(), at: now, trace, op }.to_line();
        Ready { partition: self.partition(&id), id, line }
    }

    pub(super) fn partition(&self, id: &DeliveryId) -> u32 {
        partition_of(id.as_str(), self.partitions)
    }

    pub(super) async fn write(&self, partition: u32, lines: Vec<u8>, count: usize) -> Result<(), WriteError> {
        let outcome = self.intake.accept(partition, lines, count).await;
        match &outcome {
            Ok(()) => metrics::accepted(count),
            Err(WriteError::Full) => metrics::refused("full", count),
            Err(WriteError::Unavailable(_)) => metrics::refused("unavailable", count),
        }
        outcome
    }

    /// Claims a keyed request; whatever is not to be carried out is a problem.
    pub(super) async fn claim(&self, key: &str, fingerprint: &str) -> Result<Claimed, Problem> {
        match self.claims.claim(key, fingerprint, self.hold).await? {
            Claimed::OtherBody => {
                Err(Problem::new(Kind::KeyReused, "this Idempotency-Key came with another body before"))
            }
            Claimed::UnderWay => {
                Err(Problem::new(Kind::UnderWay, "the first request with this Idempotency-Key is under way"))
            }
            claimed => Ok(claimed),
        }
    }

    /// Notes what became of a claim. When that does not work the claim ends by itself, and a repeat is the same delivery.
    pub(super) async fn settle(&self, key: &str, fingerprint: &str, outcome: &Result<(), WriteError>) {
        let settled = match outcome {
            Ok(()) => self.claims.done(key, fingerprint).await,
            Err(WriteError::Full) => self.claims.give_up(key, fingerprint).await,
            Err(_) => self.claims.leave_open(key, fingerprint).await,
        };
        if let Err(error) = settled {
            tracing::warn!(key, %error, "a claim was left to end by itself");
        }
    }

    pub(super) fn caller(&self, headers: &HeaderMap) -> Result<Caller, Problem> {
        let derived = match headers.get(IDEMPOTENCY_KEY) {
            None => None,
            Some(key) => {
                let client = headers.get(self.client_header.as_str()).map_or(&[][..], |value| value.as_bytes());
                let sane = |b: &u8| b.is_ascii_graphic() || *b == b' ';
                if !(1..=MAX_KEY).contains(&key.len()) || !key.as_bytes().iter().all(sane) {
                    let detail = format!("an Idempotency-Key is 1 to {MAX_KEY} visible ASCII characters");
                    return Err(Problem::new(Kind::Malformed, detail));
                }
                Some(Uuid::new_v5(&NAMESPACE, &[client, b"\0", key.as_bytes()].concat()))
            }
        };
        Ok(Caller { trace: trace(headers), derived })
    }

    /// A request with a key: carried out once, answered as often as it is asked.
    async fn keyed(
        &self,
        uuid: Uuid,
        draft: Draft,
        now: Timestamp,
        trace: Option<String>,
    ) -> Result<HttpResponse, Problem> {
        let id = DeliveryId::from(uuid);
        let (key, fingerprint) = (format!("idempotency/post/{id}"), draft.fingerprint());
        if self.claim(&key, &fingerprint).await? == Claimed::Done {
            return Ok(accepted(&id, true));
        }
        let Ready { id, partition, line } = self.ready(id, draft, now, trace);
        let outcome = self.write(partition, line, 1).await;
        self.settle(&key, &fingerprint, &outcome).await;
        outcome.map(|()| accepted(&id, false)).map_err(Problem::from)
    }

    /// A request with the caller's id. Its body is remembered from the start, so that another body is refused even
    /// when this process dies before the write is known to be done.
    async fn put(
        &self,
        id: DeliveryId,
        draft: Draft,
        now: Timestamp,
        trace: Option<String>,
    ) -> Result<HttpResponse, Problem> {
        let (key, fingerprint) = (format!("idempotency/put/{id}"), draft.fingerprint());
        let claimed = self.claims.claim(&key, &fingerprint, self.keep).await?;
        let other = || Problem::new(Kind::Conflict, format!("the delivery {id} is there already, with another body"));
        match claimed {
            Claimed::Done => return Ok(accepted(&id, true)),
            Claimed::OtherBody => return Err(other()),
            Claimed::UnderWay => {}
            // Forgotten by now, or made by a call without a key: the workflow knows.
            Claimed::Ours => match self.workflows.get(&id).await? {
                Some(stored) if draft.became(&id, &stored.workflow.request) => {
                    self.settle(&key, &fingerprint, &Ok(())).await;
                    return Ok(accepted(&id, true));
                }
                Some(_) => {
                    self.settle(&key, &fingerprint, &Err(WriteError::Full)).await;
                    return Err(other());
                }
                None => {}
            },
        }
        let Ready { id, partition, line } = self.ready(id, draft, now, trace);
        let outcome = self.write(partition, line, 1).await;
        if claimed == Claimed::Ours || outcome.is_ok() {
            self.settle(&key, &fingerprint, &outcome).await;
        }
        outcome.map(|()| accepted(&id, false)).map_err(Problem::from)
    }
}

async fn post(
    request: HttpRequest,
    payload: web::Payload,
    ingestion: web::Data<Ingestion>,
) -> Result<HttpResponse, Problem> {
    let caller = ingestion.caller(request.headers())?;
    let (draft, now) = ingestion.receive(&request, payload).await?;
    match caller.derived {
        Some(uuid) => detached(async move { ingestion.keyed(uuid, draft, now, caller.trace).await }).await,
        None => {
            let Ready { id, partition, line } = ingestion.ready(DeliveryId::generate(), draft, now, caller.trace);
            ingestion.write(partition, line, 1).await?;
            Ok(accepted(&id, false))
        }
    }
}

async fn put(
    request: HttpRequest,
    payload: web::Payload,
    path: web::Path<String>,
    ingestion: web::Data<Ingestion>,
) -> Result<HttpResponse, Problem> {
    let id = DeliveryId::parse(&path).map_err(|error| Problem::new(Kind::Malformed, error.to_string()))?;
    let (draft, now) = ingestion.receive(&request, payload).await?;
    let trace = trace(request.headers());
    detached(async move { ingestion.put(id, draft, now, trace).await }).await
}

/// Does everything but keep the request: what the rest is measured against.
async fn limit(
    request: HttpRequest,
    payload: web::Payload,
    ingestion: web::Data<Ingestion>,
) -> Result<HttpResponse, Problem> {
    let caller = ingestion.caller(request.headers())?;
    let (draft, now) = ingestion.receive(&request, payload).await?;
    Ok(accepted(&ingestion.ready(DeliveryId::generate(), draft, now, caller.trace).id, false))
}

/// Runs to its end even when the client goes away and the handler's future is dropped.
pub(super) async fn detached<F>(call: F) -> Result<HttpResponse, Problem>
where
    F: Future<Output = Result<HttpResponse, Problem>> + 'static,
{
    actix_web::rt::spawn(call).await.unwrap_or_else(|error| {
        tracing::error!(%error, "a call ended early");
        Err(Problem::new(Kind::Internal, "the call could not be carried out"))
    })
}

fn accepted(id: &DeliveryId, replayed: bool) -> HttpResponse {
    let mut response = HttpResponse::Accepted();
    response.insert_header((header::LOCATION, format!("/api/deliveryrequests/{id}")));
    if replayed {
        response.insert_header((REPLAYED, "true"));
    }
    response.json(Accepted { delivery_id: id.as_str(), status: "Accepted" })
}

/// The W3C `traceparent`, when it is one: version, trace, parent and flags in lower-case hex.
pub(super) fn trace(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let parts: Vec<_> = text.split('-').collect();
    let hex =
        |part: &str, len: usize| part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let nonzero = |part: &str| part.bytes().any(|b| b != b'0');
    match parts.as_slice() {
        [version, trace, parent, flags]
            if hex(version, 2) && *version != "ff" && hex(trace, 32) && hex(parent, 16) && hex(flags, 2) =>
        {
            (nonzero(trace) && nonzero(parent)).then(|| text.to_owned())
        }
        _ => None,
    }
}
