//! Looks after what nobody holds. Two holes are closed here that the order of writes alone leaves open: a message that
//! was settled against state which a crash then took back, and a workflow whose scheduler ended without a trace.
//!
//! A live scheduler is through with a workflow by its complete-by, and a live compensator saves every step; so a
//! record that has not moved long after either is nobody's. It is given up and undone, or handed to the compensator
//! once more; both are checked against the record as it was seen, so a late owner loses nothing.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;

use super::lifeline::Lifeline;
use super::notice::StatusLines;
use super::scheduler::failed_operation;
use super::writer::WriterHandle;
use crate::domain::time::{Timestamp, now};
use crate::domain::workflow::Event;
use crate::domain::{Failure, ReasonCode, Status, Workflow};
use crate::store::workflows::{Stored, Workflows};
use crate::store::{Outcome, StoreError};
use crate::stream::{Queue, Queues};

#[derive(Clone)]
pub struct Parts {
    pub workflows: Workflows,
    pub queues: Arc<dyn Queues>,
    pub status: WriterHandle,
    pub every: Duration,
    /// How long past its complete-by, or without a change, a workflow counts as nobody's.
    pub grace: Duration,
}

/// Records taken up in about one round, so that a round stays small whatever has piled up.
const ROUND: usize = 200;

pub struct Sweeper {
    parts: Parts,
    busy: bool,
    lifeline: Lifeline,
}

impl Sweeper {
    #[must_use]
    pub fn new(parts: Parts, lifeline: Lifeline) -> Self {
        Self { parts, busy: false, lifeline }
    }

    fn round(&mut self, ctx: &mut Context<Self>) {
        if self.busy {
            return;
        }
        self.busy = true;
        let parts = self.parts.clone();
        let sweep = async move { sweep(&parts).await };
        ctx.spawn(sweep.into_actor(self).map(|swept, me, _| {
            me.busy = false;
            match swept {
                Ok(0) => {}
                Ok(found) => tracing::warn!(found, "workflows that nobody held were taken up"),
                Err(error) => tracing::warn!(%error, "no look at overdue workflows this time"),
            }
        }));
    }
}

async fn sweep(parts: &Parts) -> Result<usize, StoreError> {
    let old = now() - jiff::SignedDuration::try_from(parts.grace).unwrap_or_default();
    let mut found = Vec::new();
    // What waits in the queue is held by it; only when it is empty is a record that does not move nobody's.
    let queued = parts.queues.depth(Queue::FailedOperations).await.map_err(away)?;
    let undoing: &[Status] = if queued == 0 { &[Status::Compensating, Status::Cancelling] } else { &[] };
    for status in [Status::Accepted, Status::Scheduling].iter().chain(undoing).copied() {
        found.extend(nobodys(&parts.workflows, status, old).await?);
    }
    let mut lines = StatusLines::default();
    // model: Sweep
    let undo = give_up(parts, &mut found, &mut lines).await?;
    lines.tell(&parts.status).await;
    let messages: Vec<_> = undo.iter().map(|r| failed_operation(&r.workflow)).collect();
    if !messages.is_empty() {
        parts.queues.publish(Queue::FailedOperations, messages).await.map_err(away)?;
    }
    Ok(undo.len())
}

/// The oldest of a status that nobody holds, as many as a round takes. What cannot be read, or is held, is passed by: it
/// must not hide those behind it.
async fn nobodys(workflows: &Workflows, status: Status, old: Timestamp) -> Result<Vec<Stored>, StoreError> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let (oldest, next) = workflows.oldest(status, old, after, ROUND).await?;
        found.extend(oldest.into_iter().filter(|r| is_nobodys(&r.workflow, old)));
        if next.is_none() || found.len() >= ROUND {
            return Ok(found);
        }
        after = next;
    }
}

fn away(error: impl std::fmt::Display) -> StoreError {
    StoreError { part: "queue", reason: error.to_string() }
}

fn is_nobodys(workflow: &Workflow, old: Timestamp) -> bool {
    match workflow.status {
        Status::Accepted | Status::Scheduling => workflow.complete_by < old,
        _ => workflow.updated_at < old,
    }
}

/// Marks what was being scheduled as failing; what remains is to be undone.
async fn give_up<'a>(
    parts: &Parts,
    found: &'a mut [Stored],
    lines: &mut StatusLines,
) -> Result<Vec<&'a Stored>, StoreError> {
    let at = now();
    let mut changed: Vec<&mut Stored> = Vec::new();
    let mut undo = Vec::new();
    for record in found {
        let failure = Failure::new(ReasonCode::ServiceUnavailable, "not finished in time, and nobody was at it");
        if matches!(record.workflow.status, Status::Compensating | Status::Cancelling) {
            undo.push(&*record);
        } else if record.workflow.apply(Event::Failing(failure), at).is_ok() {
            changed.push(record);
        }
    }
    if !changed.is_empty() {
        let outcomes = parts.workflows.save(&mut changed).await?;
        for (record, outcome) in changed.into_iter().zip(outcomes) {
            if outcome == Outcome::Done {
                lines.status(&record.workflow, record.workflow.status, at);
                undo.push(record);
            }
        }
    }
    Ok(undo)
}

impl Actor for Sweeper {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        ctx.run_interval(self.parts.every, Self::round);
    }
}
