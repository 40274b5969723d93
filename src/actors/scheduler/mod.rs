//! Runs the workflows of one share: as many at once as the reader's window lets in, never one waiting for another,
//! except that the operations on one delivery take effect one after the other (G9).
//!
//! The way of an operation: it waits behind others of its delivery; its record is loaded, together with those of all
//! that arrived meanwhile; its steps are ordered from the agents, each answer leading to the next step; when it is
//! through, its record is saved, together with all that are through by then ([`save`]); its changes go to the status
//! stream, a failed one to the failed-operations queue; only then is it told to the checkpointer.
//!
//! What a crash does: nothing of this is kept in memory alone. The operation is read again; a record that is settled
//! makes it a skip, one that is half-done is resumed at its first open step, and steps are idempotent. A record in the
//! store that somebody else changed meanwhile is loaded again and looked at anew.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::Serialize;

use super::agent::{Agents, Answer, Answers, Call, Orders};
use super::backoff::Backoff;
use super::checkpointer::Finished;
use super::dead_letters::park;
use super::lifeline::Lifeline;
use super::reader::{Offer, Work};
use super::writer::WriterHandle;
use crate::alerts::Alerts;
use crate::crashes::{self, Point};
use crate::domain::time::{Timestamp, later, now};
use crate::domain::workflow::Event;
use crate::domain::{DeliveryId, Map, OperationKind, Status, StepName, StepState, Workflow};
use crate::services::Order;
use crate::store::StoreError;
use crate::store::workflows::{Loaded, Stored, Unreadable, Workflows};
use crate::stream::{DeadLetter, Queue, Queues, Streams};

mod change;
mod save;

pub use save::failed_operation;

/// What a scheduler works with.
#[derive(Clone)]
pub struct Parts {
    pub workflows: Workflows,
    pub agents: Agents,
    pub queues: Arc<dyn Queues>,
    pub status: WriterHandle,
    /// Where what cannot be carried out is set aside.
    pub streams: Arc<dyn Streams>,
    pub alerts: Alerts,
    pub complete_by: Duration,
    /// Whether others make the records (mode `queue`): a cancel or a change then waits for its delivery's.
    pub patient: bool,
}

#[derive(Message)]
#[rtype(result = "Observed")]
pub struct Observe;

#[derive(Clone, Copy, Debug, Default, Serialize, MessageResponse)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    pub active: usize,
    pub scheduled: u64,
    pub failed: u64,
    pub skipped: u64,
}

/// A delivery with operations in hand.
struct Active {
    /// Its record; none while it is loaded or saved, or when there is none yet.
    record: Option<Stored>,
    /// Its operations, the first being carried out.
    works: VecDeque<Work>,
    /// What changed since the last save, for the status feed.
    changes: Vec<Change>,
    complete_by: Timestamp,
    arrived: Timestamp,
    /// The change of plan under way, if that is what the first operation is.
    changing: Option<change::Changing>,
}

/// One thing to tell the status feed.
struct Change {
    at: Timestamp,
    what: Told,
}

enum Told {
    Status(Status),
    Step(StepName, StepState),
    /// The delivery entity was made.
    Created,
}

pub struct Scheduler {
    parts: Parts,
    finished: Recipient<Finished>,
    /// Where the agents answer.
    reply: Option<Arc<Recipient<Answers>>>,
    active: Map<DeliveryId, Active>,
    /// Whose records are to be loaded next.
    arrivals: Vec<DeliveryId>,
    loading: bool,
    /// Who waits for others to make or finish its record.
    patience: Vec<DeliveryId>,
    /// Whether nothing waits in the work queue any more, whose record those could be waiting for.
    none_to_come: bool,
    /// Who is through and is to be saved next.
    through: Vec<DeliveryId>,
    saving: bool,
    failures: u32,
    seen: Observed,
    lifeline: Lifeline,
}

/// A step that an agent lost is ordered again after this pause.
const LOST_PAUSE: Duration = Duration::from_millis(100);
/// How often those are looked at that take their time.
const LOOK: Duration = Duration::from_millis(250);
/// The record of a workflow that takes longer than this shows how far it is. Under a full load all of them take a while,
/// and to save each of them twice would make it twice as long.
const PROGRESS: Duration = Duration::from_secs(1);

/// Orders by step and kind of call, gathered so that each agent gets one message of each.
#[derive(Default)]
struct Ready {
    execute: [Vec<(Order, Timestamp)>; 5],
    change: [Vec<(Order, Timestamp)>; 5],
}

impl Ready {
    fn execute(&mut self, step: StepName, order: Order, complete_by: Timestamp) {
        self.execute[step.index()].push((order, complete_by));
    }

    fn change(&mut self, step: StepName, order: Order, complete_by: Timestamp) {
        self.change[step.index()].push((order, complete_by));
    }
}

impl Scheduler {
    #[must_use]
    pub fn new(parts: Parts, finished: Recipient<Finished>, lifeline: Lifeline) -> Self {
        Self {
            parts,
            finished,
            reply: None,
            active: Map::default(),
            arrivals: Vec::new(),
            loading: false,
            patience: Vec::new(),
            none_to_come: false,
            through: Vec::new(),
            saving: false,
            failures: 0,
            seen: Observed::default(),
            lifeline,
        }
    }

    /// Loads the records of all that arrived, in one round trip.
    fn load(&mut self, ctx: &mut Context<Self>) {
        if self.loading || self.arrivals.is_empty() {
            return;
        }
        self.loading = true;
        let ids = std::mem::take(&mut self.arrivals);
        let workflows = self.parts.workflows.clone();
        // model: LoadRecord
        let load = async move { (workflows.load(ids.iter()).await, ids) };
        ctx.spawn(load.into_actor(self).map(|(records, ids), me, ctx| {
            me.loading = false;
            me.loaded(records, ids, ctx);
        }));
    }

    fn loaded(&mut self, records: Result<Vec<Loaded>, StoreError>, ids: Vec<DeliveryId>, ctx: &mut Context<Self>) {
        match records {
            Ok(records) => {
                self.failures = 0;
                let mut ready = Ready::default();
                for (id, loaded) in ids.into_iter().zip(records) {
                    match (self.active.get_mut(&id), loaded) {
                        (Some(active), Ok(record)) => {
                            active.record = record;
                            self.begin(&id, &mut ready);
                        }
                        (Some(_), Err(unreadable)) => self.set_aside(id, &unreadable, ctx),
                        (None, _) => {}
                    }
                }
                self.order(ready, ctx);
                self.save(ctx);
                self.load(ctx);
            }
            Err(error) => {
                self.failures += 1;
                if self.failures == 1 {
                    tracing::warn!(%error, "records not loaded; trying until it works");
                }
                self.arrivals.extend(ids);
                ctx.run_later(Backoff::ENGINE.pause(self.failures), Self::load);
            }
        }
    }

    /// Nothing can be done for a delivery whose record nobody can read: what is wanted of it is set aside, and holds up
    /// nobody else.
    fn set_aside(&mut self, id: DeliveryId, unreadable: &Unreadable, ctx: &mut Context<Self>) {
        let Some(work) = self.active.get(&id).and_then(|active| active.works.front()) else { return };
        let letter = DeadLetter {
            at: now(),
            source: format!("requests/{id}"),
            reason: unreadable.to_string(),
            body: String::from_utf8_lossy(work.operation.to_line().trim_ascii_end()).into_owned(),
        };
        let (streams, alerts) = (self.parts.streams.clone(), self.parts.alerts.clone());
        let park = async move { park(&*streams, &alerts, &[letter]).await };
        ctx.spawn(park.into_actor(self).map(move |(), me, ctx| {
            me.finish(&[id]);
            me.load(ctx);
        }));
    }

    /// Begins the first operation of a delivery whose record is known.
    fn begin(&mut self, id: &DeliveryId, ready: &mut Ready) {
        let Some(active) = self.active.get_mut(id) else { return };
        let Some(work) = active.works.front() else { return };
        let at = now();
        if self.parts.patient && active.waits_for_others(at, self.parts.complete_by, self.none_to_come) {
            self.patience.push(id.clone());
            return;
        }
        active.complete_by = later(at, self.parts.complete_by);
        match &work.operation.op {
            OperationKind::Schedule(request) => {
                let record = active.record.get_or_insert_with(|| {
                    active.changes.push(Change { at: work.operation.at, what: Told::Status(Status::Accepted) });
                    let complete_by = active.complete_by;
                    Stored::new(Workflow::accepted(&work.operation, request.clone(), complete_by))
                });
                record.workflow.complete_by = active.complete_by;
                if record.workflow.status == Status::Accepted {
                    active.apply(Event::Started, at);
                }
            }
            OperationKind::Cancel => active.apply_if_legal(Event::CancelRequested, at),
            OperationKind::Reschedule(wish) => {
                let wish = wish.clone();
                active.begin_change(&wish);
            }
        }
        if active.changing.is_some() { self.go_on_changing(id, ready) } else { self.go_on(id, ready) }
    }

    /// Orders the next step, or counts the operation as through when there is none.
    fn go_on(&mut self, id: &DeliveryId, ready: &mut Ready) {
        let Some(active) = self.active.get_mut(id) else { return };
        let step = active.record.as_ref().and_then(|r| r.workflow.next_step());
        match (step, &mut active.record) {
            (Some(step), Some(record)) => {
                let order = order_of(&record.workflow);
                active.apply(Event::StepStarted(step), now());
                ready.execute(step, order, active.complete_by);
            }
            _ => self.through.push(id.clone()),
        }
    }

    fn order(&mut self, ready: Ready, ctx: &mut Context<Self>) {
        for (call, by_step) in [(Call::Execute, ready.execute), (Call::Change, ready.change)] {
            for (step, orders) in StepName::ALL.into_iter().zip(by_step) {
                if let Some(complete_by) = orders.iter().map(|(_, by)| *by).max() {
                    let orders = orders.into_iter().map(|(order, _)| order).collect();
                    let reply = self.reply.get_or_insert_with(|| Arc::new(ctx.address().recipient())).clone();
                    self.parts.agents.send(Orders { step, call, orders, complete_by, reply });
                }
            }
        }
    }

    fn answered(&mut self, id: &DeliveryId, step: StepName, answer: Answer, ready: &mut Ready) -> Option<DeliveryId> {
        let active = self.active.get_mut(id)?;
        // An answer that comes late, for a step that is not the one under way, is of no use any more.
        if active.record.as_ref()?.workflow.next_step() != Some(step) {
            return None;
        }
        let at = now();
        match answer {
            // model: Execute
            Answer::Done(output) => {
                crashes::at(Point::done(step));
                active.apply(Event::StepDone(step, output), at);
            }
            Answer::Retrying(failure) => {
                active.apply(Event::StepRetried(step, failure), at);
                return None;
            }
            Answer::Held => {
                active.begin_anew(later(at, self.parts.complete_by));
                // The record is saved with its new time, so that the sweeper knows that somebody is at it.
                active.changes.push(Change { at, what: Told::Step(step, StepState::Running) });
                return None;
            }
            // model: Refuse
            Answer::Refused(failure) => {
                active.apply(Event::StepFailed(step, failure.clone()), at);
                active.apply(Event::Failing(failure), at);
            }
            // model: TimeOut, and LateEffect whenever the call is carried out after all
            Answer::GaveUp(failure) => {
                active.apply(Event::StepUnknown(step, failure.clone()), at);
                active.apply(Event::Failing(failure), at);
            }
            Answer::Lost => return Some(id.clone()),
        }
        self.go_on(id, ready);
        None
    }

    /// Looks at the records that deliveries wait for. The queue is asked first: who has left it has its record by then.
    fn look_again(&mut self, ctx: &mut Context<Self>) {
        let (waiting, queues) = (std::mem::take(&mut self.patience), self.parts.queues.clone());
        let depth = async move { queues.depth(Queue::Work).await };
        ctx.spawn(depth.into_actor(self).map(|depth, me, ctx| {
            me.none_to_come = matches!(depth, Ok(0));
            me.arrivals.extend(waiting);
            me.load(ctx);
        }));
    }

    fn is_changing(&self, id: &DeliveryId, step: StepName) -> bool {
        self.active.get(id).and_then(|a| a.changing.as_ref()).is_some_and(|c| c.step() == step)
    }

    /// Orders the lost step of deliveries once more, where it is still the one to be done: a record that was loaded anew
    /// meanwhile has begun anew, or is through.
    fn again(&mut self, ids: &[DeliveryId], step: StepName, ctx: &mut Context<Self>) {
        let mut ready = Ready::default();
        for id in ids {
            let record = self.active.get(id).and_then(|active| active.record.as_ref());
            if record.is_some_and(|record| record.workflow.next_step() == Some(step)) {
                self.go_on(id, &mut ready);
            }
        }
        self.order(ready, ctx);
    }
}

impl Active {
    /// Whether a cancel or a change must wait for the worker that has its delivery in hand, or will have it. Not for ever,
    /// since that one's request may be among the dead letters; but as long as any waits in the queue, it may be that one.
    fn waits_for_others(&self, at: Timestamp, patience: Duration, none_to_come: bool) -> bool {
        let Some(work) = self.works.front() else { return false };
        let in_hand = match (&work.operation.op, &self.record) {
            (OperationKind::Schedule(_), _) => false,
            (_, None) => true,
            (OperationKind::Reschedule(_), Some(r)) => {
                matches!(r.workflow.status, Status::Accepted | Status::Scheduling)
            }
            (OperationKind::Cancel, Some(_)) => false,
        };
        in_hand && !(none_to_come && at >= later(self.arrived, patience.saturating_mul(2)))
    }

    /// Folds an event in and notes what it changed. The callers check what is legal; what is not is a bug that must
    /// not take the record with it.
    fn apply(&mut self, event: Event, at: Timestamp) {
        let Some(record) = &mut self.record else { return };
        let before = record.workflow.status;
        let step = match &event {
            Event::StepStarted(step)
            | Event::StepRetried(step, _)
            | Event::StepDone(step, _)
            | Event::StepFailed(step, _)
            | Event::StepUnknown(step, _) => Some(*step),
            _ => None,
        };
        if let Err(error) = record.workflow.apply(event, at) {
            tracing::error!(delivery = %record.workflow.delivery_id, %error, "event refused");
            return;
        }
        if let Some(step) = step {
            let state = record.workflow.step(step).state;
            // That a step began is told only when somebody could have seen it run.
            let began = matches!(self.changes.last(), Some(Change { what: Told::Step(s, StepState::Running), .. }) if *s == step);
            if began && state != StepState::Running {
                self.changes.pop();
            }
            self.changes.push(Change { at, what: Told::Step(step, state) });
            if (step, state) == (StepName::Delivery, StepState::Done) {
                self.changes.push(Change { at, what: Told::Created });
            }
        }
        if record.workflow.status != before {
            self.changes.push(Change { at, what: Told::Status(record.workflow.status) });
        }
    }

    /// Its time begins anew.
    fn begin_anew(&mut self, complete_by: Timestamp) {
        self.complete_by = complete_by;
        if let Some(record) = &mut self.record {
            record.workflow.complete_by = complete_by;
        }
    }

    fn apply_if_legal(&mut self, event: Event, at: Timestamp) {
        let legal = self.record.as_ref().is_some_and(|r| r.workflow.clone().apply(event.clone(), at).is_ok());
        if legal {
            self.apply(event, at);
        }
    }
}

/// What a service needs to know of a delivery.
#[must_use]
pub fn order_of(workflow: &Workflow) -> Order {
    Order {
        id: workflow.delivery_id.clone(),
        request: workflow.request.clone(),
        route: workflow.route.clone(),
        reservation: workflow.reservation.clone(),
        trace: workflow.trace.clone(),
    }
}

impl Actor for Scheduler {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        ctx.run_interval(LOOK, |me, ctx| {
            me.save_progress(ctx);
            if !me.patience.is_empty() {
                me.look_again(ctx);
            }
        });
    }
}

impl Handler<Offer> for Scheduler {
    type Result = ();
    fn handle(&mut self, Offer(works): Offer, ctx: &mut Context<Self>) {
        for work in works {
            let id = work.operation.id.clone();
            if let Some(active) = self.active.get_mut(&id) {
                active.works.push_back(work);
                continue;
            }
            let active = Active {
                record: None,
                works: VecDeque::from([work]),
                changes: Vec::new(),
                complete_by: now(),
                arrived: now(),
                changing: None,
            };
            self.active.insert(id.clone(), active);
            self.arrivals.push(id);
        }
        self.load(ctx);
    }
}

impl Handler<Answers> for Scheduler {
    type Result = ();
    fn handle(&mut self, Answers { step, call, answers }: Answers, ctx: &mut Context<Self>) {
        let mut ready = Ready::default();
        if call == Call::Change {
            let mine = answers.into_iter().filter(|(id, _)| self.is_changing(id, step)).collect::<Vec<_>>();
            let again = mine.into_iter().filter_map(|(id, answer)| self.change_answered(&id, answer, &mut ready));
            let again = again.collect();
            Self::change_again(again, ctx);
            self.order(ready, ctx);
            self.save(ctx);
            return;
        }
        let lost: Vec<DeliveryId> =
            answers.into_iter().filter_map(|(id, answer)| self.answered(&id, step, answer, &mut ready)).collect();
        if !lost.is_empty() {
            ctx.run_later(LOST_PAUSE, move |me, ctx| me.again(&lost, step, ctx));
        }
        self.order(ready, ctx);
        self.save(ctx);
    }
}

impl Handler<Observe> for Scheduler {
    type Result = Observed;
    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Observed {
        Observed { active: self.active.len(), ..self.seen }
    }
}
