//! Many requests in one call: each is judged for itself, and those of one partition are written together.

use std::collections::BTreeMap;

use actix_web::{HttpRequest, HttpResponse, web};
use futures_util::future::join_all;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use uuid::Uuid;

use super::body::{self, MediaType};
use super::ingestion::{Caller, Ingestion, detached};
use super::problem::{Kind, Problem};
use crate::actors::writer::WriteError;
use crate::domain::time::{self, Timestamp};
use crate::domain::{DeliveryId, Fault};

pub const MAX_ITEMS: usize = 1000;

/// What became of each item, in their order.
type Results = Vec<Result<DeliveryId, Problem>>;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Item<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Value>,
}

/// Requests of one partition.
#[derive(Default)]
struct Group {
    lines: Vec<u8>,
    indices: Vec<usize>,
}

pub(super) async fn post(
    request: HttpRequest,
    payload: web::Payload,
    ingestion: web::Data<Ingestion>,
) -> Result<HttpResponse, Problem> {
    let media = body::media_type(&request)?;
    let caller = ingestion.caller(request.headers())?;
    let body = body::read(&request, payload, ingestion.many).await?;
    detached(async move {
        let items = split(media, &body)?;
        match caller.derived {
            Some(key) => keyed(&ingestion, &items, &body, key, &caller).await,
            None => answer(&take_in(&ingestion, &items, &caller).await),
        }
    })
    .await
}

/// With a key, the items' ids follow from it: however often it is repeated, each item is one delivery.
async fn keyed(
    ingestion: &Ingestion,
    items: &[&[u8]],
    body: &[u8],
    key: Uuid,
    caller: &Caller,
) -> Result<HttpResponse, Problem> {
    let key = format!("idempotency/batch/{key}");
    let fingerprint = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(body));
    ingestion.claim(&key, &fingerprint).await?;
    let results = take_in(ingestion, items, caller).await;
    let unsure = results
        .iter()
        .any(|result| matches!(result, Err(p) if p.kind == Kind::Unavailable || p.kind == Kind::Overloaded));
    let outcome = if unsure { Err(WriteError::Unavailable("a part of the batch".to_owned())) } else { Ok(()) };
    ingestion.settle(&key, &fingerprint, &outcome).await;
    answer(&results)
}

fn split(media: MediaType, body: &[u8]) -> Result<Vec<&[u8]>, Problem> {
    let items = match media {
        MediaType::NdJson => body.split(|b| *b == b'\n').filter(|line| !line.trim_ascii().is_empty()).collect(),
        MediaType::Json => {
            let items: Vec<&RawValue> = serde_json::from_slice(body).map_err(|error| {
                if error.is_data() {
                    Problem::invalid(vec![Fault::new("", "must be an array of requests")])
                } else {
                    Problem::new(Kind::Malformed, format!("the body is not JSON: {error}"))
                }
            })?;
            items.into_iter().map(|item| item.get().as_bytes()).collect::<Vec<_>>()
        }
    };
    match items.len() {
        0 => Err(Problem::invalid(vec![Fault::new("", "must hold at least one request")])),
        count if count > MAX_ITEMS => {
            Err(Problem::new(Kind::TooLarge, format!("a batch is at most {MAX_ITEMS} requests; this one has {count}")))
        }
        _ => Ok(items),
    }
}

async fn take_in(ingestion: &Ingestion, items: &[&[u8]], caller: &Caller) -> Results {
    let now = time::now();
    let mut groups = BTreeMap::<u32, Group>::new();
    let mut results: Results = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        results.push(one(ingestion, item, index, now, caller).map(|(id, partition, line)| {
            let group = groups.entry(partition).or_default();
            group.lines.extend_from_slice(&line);
            group.indices.push(index);
            id
        }));
    }
    let writes = groups.into_iter().map(|(partition, group)| async move {
        (ingestion.write(partition, group.lines, group.indices.len()).await, group.indices)
    });
    for (outcome, indices) in join_all(writes).await {
        if let Err(error) = outcome {
            for index in indices {
                results[index] = Err(error.clone().into());
            }
        }
    }
    results
}

fn one(
    ingestion: &Ingestion,
    item: &[u8],
    index: usize,
    now: Timestamp,
    caller: &Caller,
) -> Result<(DeliveryId, u32, Vec<u8>), Problem> {
    let draft = Ingestion::read_draft(item, now)?;
    let id = match caller.derived {
        Some(key) => Uuid::new_v5(&key, &index.to_be_bytes()).into(),
        None => DeliveryId::generate(),
    };
    let ready = ingestion.ready(id, draft, now, caller.trace.clone());
    Ok((ready.id, ready.partition, ready.line))
}

/// `202` when at least one item was accepted, otherwise what kept all of them out.
fn answer(results: &Results) -> Result<HttpResponse, Problem> {
    let accepted = results.iter().filter(|result| result.is_ok()).count();
    if accepted == 0 {
        return Err(none_accepted(results));
    }
    let items: Vec<_> = results
        .iter()
        .enumerate()
        .map(|(index, result)| Item {
            index,
            delivery_id: result.as_ref().ok().map(DeliveryId::as_str),
            problem: result.as_ref().err().map(|problem| problem.to_value(None)),
        })
        .collect();
    Ok(HttpResponse::Accepted().json(json!({
        "accepted": accepted, "rejected": results.len() - accepted, "results": items
    })))
}

fn none_accepted(results: &Results) -> Problem {
    let problems = || results.iter().enumerate().filter_map(|(index, result)| Some((index, result.as_ref().err()?)));
    let of_input = |problem: &Problem| matches!(problem.kind, Kind::Invalid | Kind::Malformed);
    if let Some((_, away)) = problems().find(|(_, problem)| !of_input(problem)) {
        return away.clone();
    }
    let faults = problems().flat_map(|(index, problem)| {
        let whole = problem.errors.is_empty().then(|| Fault::new(format!("/{index}"), problem.detail.clone()));
        let parts = problem.errors.iter().map(move |f| Fault::new(format!("/{index}{}", f.pointer), f.detail.clone()));
        whole.into_iter().chain(parts)
    });
    Problem::invalid(faults.collect())
}
