//! The scheduler's end of the way: records are saved together, then told, then counted as finished. The order of the
//! three is what a crash relies on: what is told is in the store, and what the checkpoint passes is told.

use std::collections::HashMap;
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;

use super::{Active, Change, PROGRESS, Scheduler, Told};
use crate::actors::backoff::Backoff;
use crate::actors::checkpointer::Finished;
use crate::actors::notice::StatusLines;
use crate::actors::reader::Work;
use crate::actors::writer::WriterHandle;
use crate::crashes::{self, Point};
use crate::domain::time::{Timestamp, later, now};
use crate::domain::{DeliveryId, OperationKind, Status, Workflow};
use crate::store::Outcome;
use crate::store::workflows::{Stored, Workflows};
use crate::stream::{Queue, Queues};

/// One record on its way to the store.
struct Saving {
    id: DeliveryId,
    record: Stored,
    changes: Vec<Change>,
    /// Whether its operation is through; otherwise it is a look at a workflow under way.
    through: bool,
    saved: bool,
}

impl Scheduler {
    /// Saves all that are through, unless a save is under way: then they go out with the next.
    pub(super) fn save(&mut self, ctx: &mut Context<Self>) {
        if self.saving || self.through.is_empty() {
            return;
        }
        let mut batch = Vec::with_capacity(self.through.len());
        let mut skipped = Vec::new();
        for id in std::mem::take(&mut self.through) {
            let Some(active) = self.active.get_mut(&id) else { continue };
            match active.record.take_if(|_| !active.changes.is_empty()) {
                Some(record) => {
                    let changes = std::mem::take(&mut active.changes);
                    batch.push(Saving { id, record, changes, through: true, saved: false });
                }
                None => skipped.push(id),
            }
        }
        self.seen.skipped += skipped.len() as u64;
        metrics::counter!(crate::metrics::REPLAYED).increment(skipped.len() as u64);
        // What was left half-undone by a crash is handed over once more; the compensator does nothing twice.
        let again =
            skipped.iter().filter_map(|id| self.active.get(id)?.record.as_ref()).filter(|r| to_undo(&r.workflow));
        let again: Vec<Bytes> = again.map(|r| failed_operation(&r.workflow)).collect();
        self.start(batch, skipped, again, ctx);
    }

    /// Saves how far those are that take their time.
    pub(super) fn save_progress(&mut self, ctx: &mut Context<Self>) {
        if self.saving {
            return;
        }
        let at = now();
        let mut batch = Vec::new();
        for (id, active) in self.active.iter_mut().filter(|(_, active)| active.is_slow(at)) {
            if let Some(record) = active.record.clone() {
                let changes = std::mem::take(&mut active.changes);
                batch.push(Saving { id: id.clone(), record, changes, through: false, saved: false });
            }
        }
        // model: SaveProgress
        if !batch.is_empty() {
            self.start(batch, Vec::new(), Vec::new(), ctx);
        }
    }

    fn start(&mut self, mut batch: Vec<Saving>, skipped: Vec<DeliveryId>, again: Vec<Bytes>, ctx: &mut Context<Self>) {
        self.saving = true;
        let (workflows, status, queues) =
            (self.parts.workflows.clone(), self.parts.status.clone(), self.parts.queues.clone());
        let work = async move {
            // model: SaveRecord
            save_records(&workflows, &mut batch).await;
            tell(&status, &batch).await;
            let undo = batch.iter().filter(|s| s.saved && s.through && to_undo(&s.record.workflow));
            let undo: Vec<Bytes> = undo.map(|s| failed_operation(&s.record.workflow)).chain(again).collect();
            // model: HandOver
            if !undo.is_empty() {
                hand_over(&*queues, undo).await;
                crashes::at(Point::HandedOver);
            }
            (batch, skipped)
        };
        ctx.spawn(work.into_actor(self).map(|(batch, skipped), me, ctx| {
            me.saving = false;
            me.saved(batch, skipped, ctx);
        }));
    }

    fn saved(&mut self, batch: Vec<Saving>, skipped: Vec<DeliveryId>, ctx: &mut Context<Self>) {
        let mut through = skipped;
        for saving in batch {
            let Some(active) = self.active.get_mut(&saving.id) else { continue };
            match (saving.through, saving.saved) {
                (true, true) => {
                    // A change of plan leaves the workflow where it is, and is none of its own.
                    let is_change = |work: &Work| matches!(work.operation.op, OperationKind::Reschedule(_));
                    if !active.works.front().is_some_and(is_change) {
                        self.count(&saving.record.workflow);
                    }
                    through.push(saving.id);
                }
                (false, true) => {
                    if let Some(record) = &mut active.record {
                        record.seen = saving.record.seen;
                    }
                }
                // Somebody else changed it: look again.
                (_, false) => {
                    active.record = None;
                    active.changes.clear();
                    self.through.retain(|id| *id != saving.id);
                    self.arrivals.push(saving.id);
                }
            }
        }
        self.finish(&through);
        self.load(ctx);
        self.save(ctx);
    }

    /// The first operation of each of these deliveries is finished; the next one begins with the next load.
    pub(super) fn finish(&mut self, through: &[DeliveryId]) {
        let mut finished: HashMap<u64, u32> = HashMap::new();
        for id in through {
            let Some(active) = self.active.get_mut(id) else { continue };
            if let Some(work) = active.works.pop_front() {
                *finished.entry(work.offset).or_default() += 1;
            }
            if active.works.is_empty() {
                self.active.remove(id);
            } else {
                // Loaded anew: the compensator may have changed it meanwhile.
                active.record = None;
                active.arrived = now();
                self.arrivals.push(id.clone());
            }
        }
        if !finished.is_empty() {
            self.finished.do_send(Finished(finished.into_iter().collect()));
        }
    }

    fn count(&mut self, workflow: &Workflow) {
        if workflow.status == Status::Scheduled {
            self.seen.scheduled += 1;
            let took = workflow.updated_at.as_millisecond() - workflow.accepted_at.as_millisecond();
            let took = Duration::from_millis(u64::try_from(took).unwrap_or(0));
            metrics::histogram!(crate::metrics::ACCEPT_TO_SCHEDULED).record(took.as_secs_f64());
        } else {
            self.seen.failed += 1;
        }
        metrics::counter!(crate::metrics::WORKFLOWS, "status" => workflow.status.as_str()).increment(1);
    }
}

impl Active {
    /// Whether it has had something to tell for a while. How long it waited before it came here does not count: behind a
    /// backlog that is long for all of them.
    fn is_slow(&self, at: Timestamp) -> bool {
        self.changes.first().is_some_and(|change| later(change.at.max(self.arrived), PROGRESS) < at)
    }
}

fn to_undo(workflow: &Workflow) -> bool {
    matches!(workflow.status, Status::Compensating | Status::Cancelling)
}

/// The message that has a workflow undone: its id is all the compensator needs.
#[must_use]
pub fn failed_operation(workflow: &Workflow) -> Bytes {
    Bytes::copy_from_slice(workflow.delivery_id.as_str().as_bytes())
}

async fn save_records(workflows: &Workflows, batch: &mut [Saving]) {
    if batch.is_empty() {
        return;
    }
    let save = async || {
        let mut records: Vec<&mut Stored> = batch.iter_mut().map(|s| &mut s.record).collect();
        workflows.save(&mut records).await
    };
    let outcomes = Backoff::ENGINE.until_ok("saving records", save).await;
    crashes::at(Point::RecordSaved);
    for (saving, outcome) in batch.iter_mut().zip(outcomes) {
        saving.saved = outcome == Outcome::Done;
    }
}

async fn tell(status: &WriterHandle, batch: &[Saving]) {
    let mut lines = StatusLines::default();
    for saving in batch.iter().filter(|s| s.saved) {
        for change in &saving.changes {
            match change.what {
                Told::Status(status) => lines.status(&saving.record.workflow, status, change.at),
                Told::Step(step, state) => lines.step(&saving.record.workflow, step, state, change.at),
                Told::Created => lines.created(&saving.record.workflow, change.at),
            }
        }
    }
    lines.tell(status).await;
}

async fn hand_over(queues: &dyn Queues, messages: Vec<Bytes>) {
    let publish = async || queues.publish(Queue::FailedOperations, messages.clone()).await;
    Backoff::ENGINE.until_ok("handing failed operations over", publish).await;
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::domain::time::from_millis;

    #[test]
    fn what_waited_long_before_it_came_is_not_slow_for_that() {
        let second = |second: i64| from_millis(second * 1_000);
        let accepted = Change { at: second(0), what: Told::Status(Status::Accepted) };
        let mut active = Active {
            record: None,
            works: VecDeque::new(),
            changes: vec![accepted],
            complete_by: second(160),
            arrived: second(100),
            changing: None,
        };
        assert!(!active.is_slow(second(101)));
        assert!(active.is_slow(second(102)));
        active.changes = vec![Change { at: second(102), what: Told::Created }];
        assert!(!active.is_slow(second(103)), "a moment ago it was saved");
        active.changes.clear();
        assert!(!active.is_slow(second(200)), "there is nothing to save");
    }
}
