//! Who reads which partition, and how far behind it is. The lag tells the truth when one request is stuck: it is
//! counted from the checkpoint and from the oldest unfinished entry, not from the last one read.

use actix_web::{HttpResponse, web};
use serde::Serialize;
use serde_json::json;

use super::Operations;
use crate::actors::partitions::{Held, Running};
use crate::actors::switches::Switch;
use crate::actors::{checkpointer, reader};
use crate::domain::time::now;
use crate::http::problem::{Kind, Problem};
use crate::store::checkpoints::{Checkpoints, Ownership, Share};
use crate::stream::{Bounds, ReadError, Stream};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    #[serde(flatten)]
    share: Share,
    owner: Option<String>,
    epoch: u64,
    paused: bool,
    checkpoint: Option<u64>,
    /// The offset that the next entry will get.
    end: u64,
    /// Entries after the checkpoint.
    pub lag_entries: u64,
    /// Requests in them, by the mean size of the entries read so far; known where the partition is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_requests: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_unfinished: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_flight: Option<usize>,
}

pub async fn list(operations: web::Data<Operations>) -> Result<HttpResponse, Problem> {
    Ok(HttpResponse::Ok().json(json!({"items": read(&operations).await?})))
}

/// Every share of every partition.
///
/// # Errors
/// When the engine is away.
pub async fn read(operations: &Operations) -> Result<Vec<View>, Problem> {
    let settings = &operations.settings.partitions;
    let shares: Vec<Share> = (0..settings.count)
        .flat_map(|partition| (0..settings.readers).map(move |reader| Share { partition, reader }))
        .collect();
    let switches: Vec<Switch> = shares.iter().map(|s| Switch::Partition(s.partition)).collect();
    let paused = Switch::are_paused(&*operations.engine.state, &switches).await?;
    let checkpoints = Checkpoints::new(operations.engine.state.clone(), &operations.engine.instance, settings.lease);
    let owners = checkpoints.owners(&shares).await?;
    let held = match operations.partitions.get() {
        Some(partitions) => partitions.send(Held).await.unwrap_or_default(),
        None => Vec::new(),
    };
    let mut views = Vec::with_capacity(shares.len());
    for ((share, owner), paused) in shares.into_iter().zip(owners).zip(paused) {
        let bounds = match operations.engine.streams.bounds(Stream::Requests(share.partition)).await {
            Err(ReadError::Missing(_)) => Bounds { first: 0, next: 0 },
            bounds => bounds?,
        };
        let running = held.iter().find(|(s, _)| *s == share).map(|(_, running)| running);
        views.push(View::of(share, owner, bounds, paused).seen_by(running).await);
    }
    Ok(views)
}

impl View {
    fn of(share: Share, owner: Ownership, bounds: Bounds, paused: bool) -> Self {
        let unread = owner.checkpoint.map_or(bounds.first, |done| done + 1).max(bounds.first);
        Self {
            share,
            owner: owner.owner,
            epoch: owner.epoch,
            paused,
            checkpoint: owner.checkpoint,
            end: bounds.next,
            lag_entries: bounds.next.saturating_sub(unread),
            lag_requests: None,
            lag_seconds: None,
            oldest_unfinished: None,
            in_flight: None,
        }
    }

    /// Adds what only the instance that reads the partition knows.
    async fn seen_by(mut self, running: Option<&Running>) -> Self {
        let Some(Running { reader, checkpointer }) = running else { return self };
        let (Some(reader), Some(checkpointer)) = (reader.get(), checkpointer.get()) else { return self };
        let (Ok(read), Ok(done)) = (reader.send(reader::Observe).await, checkpointer.send(checkpointer::Observe).await)
        else {
            return self;
        };
        // The saved checkpoint is a little behind; what is finished is known here.
        let unread = done.checkpoint.map(|c| c + 1).unwrap_or(self.end - self.lag_entries.min(self.end));
        self.lag_entries = self.end.saturating_sub(unread);
        let unread_entries = self.end.saturating_sub(read.next_offset);
        let mean = if read.entries == 0 { 1 } else { read.read.div_ceil(read.entries) };
        self.lag_requests = Some(read.in_flight as u64 + unread_entries * mean);
        let waiting = if unread_entries > 0 { read.last_entry_at } else { None };
        let since = done.oldest_open_at.or(waiting);
        self.lag_seconds = Some(since.map_or(0.0, |at| (now() - at).total(jiff::Unit::Second).unwrap_or(0.0).max(0.0)));
        self.oldest_unfinished = done.oldest_open;
        self.in_flight = Some(read.in_flight);
        self
    }
}

pub async fn pause(path: web::Path<String>, operations: web::Data<Operations>) -> Result<HttpResponse, Problem> {
    switch(&path, &operations, true).await
}

pub async fn resume(path: web::Path<String>, operations: web::Data<Operations>) -> Result<HttpResponse, Problem> {
    switch(&path, &operations, false).await
}

async fn switch(path: &str, operations: &Operations, paused: bool) -> Result<HttpResponse, Problem> {
    let count = operations.settings.partitions.count;
    let Some(partition) = path.parse::<u32>().ok().filter(|p| *p < count) else {
        let detail = format!("there is no partition {path}; there are 0 to {}", count - 1);
        return Err(Problem::new(Kind::NotFound, detail));
    };
    Switch::Partition(partition).set(&*operations.engine.state, paused).await?;
    Ok(HttpResponse::Ok().json(json!({"partition": partition, "paused": paused})))
}
