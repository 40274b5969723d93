//! Forgets what is long over, a little at a time: finished deliveries with what the services keep for them, and
//! drones' time in the past. What ends by itself (tombstones, idempotency keys, the streams) is not its business.
//!
//! **When a delivery may go.** A request that is read again must find what became of it, or it would be carried out a
//! second time. Its record and its tombstones are therefore kept for longer than the streams keep requests; the
//! settings are refused otherwise. A stream drops whole files and may keep a request for longer than it says; so a
//! delivery stays until its deadline is as long past, too: should it be read again after that, no drone can be
//! reserved for it any more and it ends as `Failed` with nothing left behind.
//!
//! **In which order.** First the entities, then the record, on condition that it is what was seen. After a crash in
//! between the record is found again. Several processes may do this at once: whoever is second finds nothing.

use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;

use super::lifeline::Lifeline;
use crate::config;
use crate::domain::time::{Timestamp, now};
use crate::domain::{DeliveryId, Status, Workflow};
use crate::services::{Local, StepError};
use crate::store::Outcome;
use crate::store::workflows::{Stored, Workflows};

#[derive(Clone)]
pub struct Parts {
    pub workflows: Workflows,
    pub services: Local,
    pub settings: config::Retention,
}

/// The statuses that nothing follows by itself.
const ENDED: [Status; 4] = [Status::Failed, Status::Cancelled, Status::Completed, Status::Scheduled];

/// A walk over all there is, a small step at a time. Who is not due yet is passed by.
pub struct Walk {
    parts: Parts,
    workflows: [Option<Bytes>; ENDED.len()],
    drones: Option<String>,
}

/// What a step found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    pub deliveries: usize,
    /// Pieces of drones' calendars.
    pub buckets: usize,
}

impl Walk {
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self { parts, workflows: Default::default(), drones: None }
    }

    /// Purges some of each kind, at most `batch`.
    ///
    /// # Errors
    /// When the store does not answer; the walk then begins anew.
    pub async fn step(&mut self) -> Result<Purged, StepError> {
        let mut purged = Purged::default();
        for (status, place) in ENDED.into_iter().zip(&mut self.workflows) {
            purged.deliveries += purge_workflows(&self.parts, status, place).await?;
        }
        let Parts { services, settings, .. } = &self.parts;
        let before = earlier(now(), settings.calendars).as_second();
        let drones = self.drones.take();
        (purged.buckets, self.drones) = services.drone.forget_before(before, drones, settings.batch).await?;
        Ok(purged)
    }
}

async fn purge_workflows(parts: &Parts, status: Status, place: &mut Option<Bytes>) -> Result<usize, StepError> {
    let keep = if status == Status::Scheduled { parts.settings.scheduled } else { parts.settings.finished };
    let before = earlier(now(), keep);
    let found = parts.workflows.oldest(status, before, place.take(), parts.settings.batch);
    let (mut due, next) = found.await?;
    *place = next;
    due.retain(|record| over_since(&record.workflow) < before);
    if due.is_empty() {
        return Ok(0);
    }
    forget_entities(&parts.services, &due).await?;
    let outcomes = parts.workflows.remove(&due).await?;
    Ok(outcomes.into_iter().filter(|outcome| *outcome == Outcome::Done).count())
}

/// What the services keep for the deliveries. Reservations are time in the past by now and go with it.
async fn forget_entities(services: &Local, due: &[Stored]) -> Result<(), StepError> {
    let ids: Vec<&DeliveryId> = due.iter().map(|record| &record.workflow.delivery_id).collect();
    let package = |record: &Stored| record.workflow.request.package_info.package_id.clone();
    let names: Vec<String> = due.iter().map(package).collect();
    let packages: Vec<(&str, &DeliveryId)> = names.iter().map(String::as_str).zip(ids.iter().copied()).collect();
    services.delivery.forget(&ids).await?;
    services.transport.forget(&ids).await?;
    services.package.forget(&packages).await
}

/// From when on nothing can happen to a delivery any more.
fn over_since(workflow: &Workflow) -> Timestamp {
    workflow.updated_at.max(workflow.request.deadline)
}

fn earlier(time: Timestamp, by: Duration) -> Timestamp {
    time.checked_sub(by).unwrap_or(Timestamp::MIN)
}

pub struct Purger {
    every: Duration,
    /// None while a step is under way.
    walk: Option<Walk>,
    lifeline: Lifeline,
}

impl Purger {
    #[must_use]
    pub fn new(parts: Parts, lifeline: Lifeline) -> Self {
        Self { every: parts.settings.every, walk: Some(Walk::new(parts)), lifeline }
    }

    fn step(&mut self, ctx: &mut Context<Self>) {
        let Some(mut walk) = self.walk.take() else { return };
        let step = async move { (walk.step().await, walk) };
        ctx.spawn(step.into_actor(self).map(|(purged, walk), me, _| {
            me.walk = Some(walk);
            match purged {
                Ok(Purged { deliveries: 0, buckets: 0 }) => {}
                Ok(Purged { deliveries, buckets }) => tracing::info!(deliveries, buckets, "forgot what is long over"),
                Err(error) => tracing::warn!(%error, "nothing more forgotten this time"),
            }
        }));
    }
}

impl Actor for Purger {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        ctx.run_interval(self.every, Self::step);
    }
}
