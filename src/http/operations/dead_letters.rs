//! The dead letters: what could not be parsed or processed, with the reason. Looking changes nothing. A redrive puts
//! the letter back to where it came from; the letter itself stays on its stream, so that nothing is lost by a
//! redrive that fails again.

use std::time::Duration;

use actix_web::{HttpResponse, web};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Operations;
use crate::domain::{Operation, partition_of};
use crate::http::problem::{Kind, Problem};
use crate::stream::{DeadLetter, Entry, From, Queue, ReadError, Stream};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    limit: Option<usize>,
    cursor: Option<String>,
}

/// One letter and its place on the stream.
#[derive(Serialize)]
struct Item {
    id: String,
    #[serde(flatten)]
    letter: DeadLetter,
}

const PAGE: usize = 50;
const LARGEST_PAGE: usize = 500;
/// An entry that is there comes at once; more than this means that the engine is away.
const PATIENCE: Duration = Duration::from_secs(5);

/// A place: the entry's offset and the line in it.
fn place(text: &str) -> Option<(u64, usize)> {
    let (offset, line) = text.split_once('-')?;
    Some((offset.parse().ok()?, line.parse().ok()?))
}

fn bad_place(text: &str) -> Problem {
    Problem::new(Kind::Malformed, format!("{text:?} is not the id of a dead letter"))
}

pub async fn list(
    query: Result<web::Query<Query>, actix_web::Error>,
    operations: web::Data<Operations>,
) -> Result<HttpResponse, Problem> {
    let query = query.map_err(|error| Problem::new(Kind::Malformed, format!("the query cannot be read: {error}")))?.0;
    let limit = query.limit.unwrap_or(PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(Problem::new(Kind::Malformed, format!("limit must be between 1 and {LARGEST_PAGE}")));
    }
    let after = match &query.cursor {
        Some(cursor) => Some(place(cursor).ok_or_else(|| bad_place(cursor))?),
        None => None,
    };
    let mut items = read(&operations, after, limit + 1).await?;
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|item| item.id.clone());
    Ok(HttpResponse::Ok().json(json!({"items": items, "next": next})))
}

/// Letters strictly after a place, oldest first.
async fn read(operations: &Operations, after: Option<(u64, usize)>, limit: usize) -> Result<Vec<Item>, Problem> {
    let streams = &operations.engine.streams;
    let bounds = match streams.bounds(Stream::DeadLetters).await {
        Err(ReadError::Missing(_)) => return Ok(Vec::new()),
        bounds => bounds?,
    };
    let mut next = after.map_or(bounds.first, |(offset, _)| offset).max(bounds.first);
    let mut items = Vec::new();
    if next >= bounds.next {
        return Ok(items);
    }
    let mut reader = streams.read(Stream::DeadLetters, From::Offset(next)).await?;
    while next < bounds.next && items.len() < limit {
        let entries = tokio::time::timeout(PATIENCE, reader.next()).await.map_err(|_| {
            let reason = format!("no answer within {PATIENCE:?}");
            Problem::from(ReadError::Unavailable { part: "stream", reason })
        })??;
        for entry in entries {
            next = entry.offset + 1;
            items.extend(
                letters(&entry)
                    .filter(|(at, _)| after.is_none_or(|after| *at > after))
                    .map(|((offset, line), letter)| Item { id: format!("{offset}-{line}"), letter }),
            );
        }
    }
    items.truncate(limit);
    Ok(items)
}

fn letters(entry: &Entry) -> impl Iterator<Item = ((u64, usize), DeadLetter)> + '_ {
    let lines = entry.body.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines.map(|(index, line)| {
        let unreadable = |error: serde_json::Error| DeadLetter {
            at: entry.at,
            source: "unknown".to_owned(),
            reason: format!("not a dead letter: {error}"),
            body: String::from_utf8_lossy(line).into_owned(),
        };
        ((entry.offset, index), serde_json::from_slice(line).unwrap_or_else(unreadable))
    })
}

pub async fn redrive(path: web::Path<String>, operations: web::Data<Operations>) -> Result<HttpResponse, Problem> {
    let (offset, line) = place(&path).ok_or_else(|| bad_place(&path))?;
    let before = if line > 0 { Some((offset, line - 1)) } else { offset.checked_sub(1).map(|o| (o, usize::MAX)) };
    let found = read(&operations, before, 1).await?.into_iter().next().filter(|item| item.id == *path);
    let Item { id, letter } =
        found.ok_or_else(|| Problem::new(Kind::NotFound, format!("there is no dead letter {path}")))?;
    let to = put_back(&operations, &letter).await?;
    Ok(HttpResponse::Accepted().json(json!({"id": id, "to": to})))
}

async fn put_back(operations: &Operations, letter: &DeadLetter) -> Result<String, Problem> {
    let unavailable = |error: crate::stream::AppendError| Problem::new(Kind::Unavailable, error.to_string());
    let body = Bytes::copy_from_slice(letter.body.as_bytes());
    if letter.source.starts_with("requests") {
        let operation: Operation = serde_json::from_str(&letter.body).map_err(|error| {
            let detail = format!("it still is not an operation ({error}); send it again as a request instead");
            Problem::new(Kind::Conflict, detail)
        })?;
        let partition = partition_of(operation.id.as_str(), operations.settings.partitions.count);
        let mut line = body.to_vec();
        line.push(b'\n');
        operations.engine.streams.append(Stream::Requests(partition), line.into()).await.map_err(unavailable)?;
        return Ok(format!("partition {partition}"));
    }
    let queue = match letter.source.as_str() {
        source if source.contains("notifications") => Queue::Notifications,
        source if source.contains("work") => Queue::Work,
        source if source.contains("failed-operations") => Queue::FailedOperations,
        other => {
            return Err(Problem::new(Kind::Conflict, format!("nobody knows how to put back what came from {other}")));
        }
    };
    operations.engine.queues.publish(queue, vec![body]).await.map_err(unavailable)?;
    Ok(format!("queue {queue:?}"))
}
