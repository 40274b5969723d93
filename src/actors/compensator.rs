//! Undoes what failed: consumes the failed-operations queue and has the agents cancel the steps in reverse order.
//!
//! - **Every step is cancelled**, also one that never ran: the tombstone it leaves refuses a late call, be it an answer
//!   lost in a time-out or a reader that does not know yet that it lost its partition. Only what was done, or may have
//!   been, is marked `Undone`.
//! - **Resumable.** The record is saved after each undone step, and the message is settled only after the end is saved,
//!   told and notified. A crash anywhere redelivers the message; cancelling again what was cancelled changes nothing.
//! - **Never alone.** Two compensators, or a compensator and a scheduler that takes a cancel, may hold one delivery: a
//!   save that meets a changed record loads it and goes on from there.
//! - **It ends.** A step that cannot be undone after all tries leaves the delivery `Stuck`, with an alert; an operator
//!   redrives or abandons it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use serde::Serialize;

use super::agent::{Agents, Answer, Answers, Call, Orders};
use super::backoff::Backoff;
use super::consumer::{self, Arrived};
use super::lifeline::Lifeline;
use super::notice::{Notice, StatusLines};
use super::scheduler::order_of;
use super::writer::WriterHandle;
use crate::alerts::{AlertKind, Alerts};
use crate::config;
use crate::crashes::{self, Point};
use crate::domain::time::{later, now};
use crate::domain::workflow::Event;
use crate::domain::{DeliveryId, Failure, Status, StepName, StepState, Workflow};
use crate::store::workflows::{Loaded, Stored, Unreadable, Workflows};
use crate::store::{Outcome, StoreError};
use crate::stream::{Message as Delivery, Queue, Queues, Settle, Settler};

#[derive(Clone)]
pub struct Parts {
    pub workflows: Workflows,
    pub agents: Agents,
    pub queues: Arc<dyn Queues>,
    pub status: WriterHandle,
    pub settings: config::Compensation,
    pub alerts: Alerts,
}

#[derive(Message)]
#[rtype(result = "Observed")]
pub struct Observe;

#[derive(Clone, Copy, Debug, Default, Serialize, MessageResponse)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    pub active: usize,
    pub undone: u64,
    pub stuck: u64,
}

/// One delivery that is being undone.
struct Job {
    /// None while it is loaded or saved.
    record: Option<Stored>,
    /// The step being cancelled.
    step: StepName,
    tries: u32,
    tags: Vec<u64>,
    /// Whether somebody had its message before.
    redelivered: bool,
    told: StatusLines,
}

pub struct Compensator {
    parts: Parts,
    settler: Option<Arc<dyn Settler>>,
    jobs: HashMap<DeliveryId, Job>,
    arrivals: Vec<DeliveryId>,
    loading: bool,
    changed: Vec<DeliveryId>,
    saving: bool,
    failures: u32,
    seen: Observed,
    lifeline: Lifeline,
}

impl Compensator {
    #[must_use]
    pub fn new(parts: Parts, lifeline: Lifeline) -> Self {
        Self {
            parts,
            settler: None,
            jobs: HashMap::new(),
            arrivals: Vec::new(),
            loading: false,
            changed: Vec::new(),
            saving: false,
            failures: 0,
            seen: Observed::default(),
            lifeline,
        }
    }

    fn load(&mut self, ctx: &mut Context<Self>) {
        if self.loading || self.arrivals.is_empty() {
            return;
        }
        self.loading = true;
        let ids = std::mem::take(&mut self.arrivals);
        let workflows = self.parts.workflows.clone();
        // model: LoadToUndo
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
                for (id, loaded) in ids.into_iter().zip(records) {
                    match loaded {
                        Ok(record) => self.begin(&id, record, ctx),
                        Err(unreadable) => self.set_aside(&id, &unreadable, ctx),
                    }
                }
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

    /// Begins to undo, or settles at once when there is nothing to undo (any more): another one did it, or the record
    /// was taken back by a crash and the replay will hand it over again.
    fn begin(&mut self, id: &DeliveryId, record: Option<Stored>, ctx: &mut Context<Self>) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let undoing = |r: &Stored| matches!(r.workflow.status, Status::Compensating | Status::Cancelling);
        if job.redelivered
            && let Some(notice) = record.as_ref().and_then(|r| Notice::of(&r.workflow))
        {
            // Whoever had the message before may have died between saving the end and telling the owner of it.
            let (id, queues) = (id.clone(), self.parts.queues.clone());
            let tell = async move { super::notice::publish(&*queues, vec![notice]).await };
            ctx.spawn(tell.into_actor(self).map(move |(), me, ctx| me.settle(&id, ctx)));
            return;
        }
        job.record = record.filter(undoing);
        if job.record.is_some() {
            job.step = StepName::Delivery;
            self.cancel(id, ctx);
        } else {
            self.settle(id, ctx);
        }
    }

    /// Has the agent cancel the step in hand.
    fn cancel(&mut self, id: &DeliveryId, ctx: &mut Context<Self>) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let Some(record) = &job.record else { return };
        let orders = Orders {
            step: job.step,
            call: Call::Cancel,
            orders: vec![order_of(&record.workflow)],
            complete_by: later(now(), self.parts.settings.try_for),
            reply: Arc::new(ctx.address().recipient()),
        };
        // model: CancelStep
        self.parts.agents.send(orders);
    }

    fn answered(&mut self, id: &DeliveryId, step: StepName, answer: Answer, ctx: &mut Context<Self>) {
        let Some(job) = self.jobs.get_mut(id).filter(|j| j.step == step && j.record.is_some()) else { return };
        match answer {
            Answer::Done(_) => {
                crashes::at(Point::undone(step));
                job.tries = 0;
                self.undone(id, ctx);
            }
            Answer::Retrying(_) | Answer::Held => {}
            Answer::Lost => self.retry_later(id, Duration::from_millis(100), ctx),
            Answer::Refused(failure) | Answer::GaveUp(failure) => {
                job.tries += 1;
                if job.tries < self.parts.settings.attempts {
                    let backoff =
                        Backoff { first: self.parts.settings.backoff, longest: self.parts.settings.max_backoff };
                    let pause = backoff.pause(job.tries);
                    self.retry_later(id, pause, ctx);
                } else {
                    self.give_up(id, &failure, ctx);
                }
            }
        }
    }

    fn retry_later(&mut self, id: &DeliveryId, pause: Duration, ctx: &mut Context<Self>) {
        let id = id.clone();
        ctx.run_later(pause, move |me, ctx| me.cancel(&id, ctx));
    }

    /// A step is cancelled: mark it, if there was something to undo, and go on to the one before it.
    fn undone(&mut self, id: &DeliveryId, ctx: &mut Context<Self>) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let Some(record) = &mut job.record else { return };
        let step = job.step;
        let marked = record.workflow.next_undo() == Some(step);
        if marked {
            apply(&mut record.workflow, Event::StepUndone(step), &mut job.told);
        }
        match StepName::ALL[..step.index()].last() {
            Some(before) => job.step = *before,
            None => {
                apply(&mut record.workflow, Event::Undone, &mut job.told);
                self.seen.undone += 1;
            }
        }
        if marked || step == StepName::Account {
            self.changed.push(id.clone());
            self.save(ctx);
        } else {
            self.cancel(id, ctx);
        }
    }

    fn give_up(&mut self, id: &DeliveryId, failure: &Failure, ctx: &mut Context<Self>) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        let Some(record) = &mut job.record else { return };
        let text = format!("the {} step could not be undone: {}", job.step.as_str(), failure.text);
        self.parts.alerts.raise(AlertKind::WorkflowStuck, id.as_str(), &text);
        let failure = Failure::new(failure.code, text);
        apply(&mut record.workflow, Event::UndoGaveUp(failure), &mut job.told);
        self.seen.stuck += 1;
        self.changed.push(id.clone());
        self.save(ctx);
    }

    /// Saves all that changed, together, and tells those that came to their end.
    fn save(&mut self, ctx: &mut Context<Self>) {
        if self.saving || self.changed.is_empty() {
            return;
        }
        let mut batch = Vec::new();
        for id in std::mem::take(&mut self.changed) {
            if let Some(job) = self.jobs.get_mut(&id)
                && let Some(record) = job.record.take()
            {
                batch.push((id, record, std::mem::take(&mut job.told), false));
            }
        }
        self.saving = true;
        let parts = self.parts.clone();
        let save = async move {
            let commit = async || {
                let mut records: Vec<&mut Stored> = batch.iter_mut().map(|(_, record, ..)| record).collect();
                parts.workflows.save(&mut records).await
            };
            // model: SaveUndone
            let outcomes = Backoff::ENGINE.until_ok("saving records", commit).await;
            let mut lines = StatusLines::default();
            let mut notices = Vec::new();
            for ((_, record, told, saved), outcome) in batch.iter_mut().zip(outcomes) {
                *saved = outcome == Outcome::Done;
                if *saved {
                    lines.append(told);
                    notices.extend(Notice::of(&record.workflow));
                }
            }
            if !notices.is_empty() {
                crashes::at(Point::EndSaved);
            }
            lines.tell(&parts.status).await;
            super::notice::publish(&*parts.queues, notices).await;
            batch
        };
        ctx.spawn(save.into_actor(self).map(|batch, me, ctx| {
            me.saving = false;
            for (id, record, _, saved) in batch {
                me.saved(&id, record, saved, ctx);
            }
            me.load(ctx);
            me.save(ctx);
        }));
    }

    fn saved(&mut self, id: &DeliveryId, record: Stored, saved: bool, ctx: &mut Context<Self>) {
        if !saved {
            self.arrivals.push(id.clone());
        } else if matches!(record.workflow.status, Status::Compensating | Status::Cancelling) {
            if let Some(job) = self.jobs.get_mut(id) {
                job.record = Some(record);
            }
            self.cancel(id, ctx);
        } else {
            self.settle(id, ctx);
        }
    }

    /// The delivery's messages are done with.
    fn settle(&mut self, id: &DeliveryId, ctx: &mut Context<Self>) {
        if let Some(job) = self.jobs.remove(id) {
            crashes::at(Point::SettleDue);
            // model: Settle
            self.settle_tags(job.tags, Settle::Done, ctx);
        }
    }

    /// What nobody can undo, because its record is unreadable, goes the way of what is no message: it is put back until
    /// the queue's limit sends it to the dead letters.
    fn set_aside(&mut self, id: &DeliveryId, unreadable: &Unreadable, ctx: &mut Context<Self>) {
        let Some(job) = self.jobs.remove(id) else { return };
        tracing::error!(delivery = %id, error = %unreadable, "a failed operation was put back");
        self.settle_tags(job.tags, Settle::Again, ctx);
    }

    fn give_back(&mut self, tag: u64, ctx: &mut Context<Self>) {
        tracing::error!(tag, "a failed operation without a delivery id was put back");
        self.settle_tags(vec![tag], Settle::Again, ctx);
    }

    fn settle_tags(&mut self, tags: Vec<u64>, how: Settle, ctx: &mut Context<Self>) {
        if let Some(settler) = self.settler.clone() {
            consumer::settle(settler, tags, how, ctx, |_, _| {});
        }
    }
}

/// Folds an event in and notes what it changed for the status feed.
fn apply(workflow: &mut Workflow, event: Event, told: &mut StatusLines) {
    let (at, before) = (now(), workflow.status);
    let step = if let Event::StepUndone(step) = &event { Some(*step) } else { None };
    if let Err(error) = workflow.apply(event, at) {
        tracing::error!(delivery = %workflow.delivery_id, %error, "event refused");
        return;
    }
    if let Some(step) = step {
        told.step(workflow, step, StepState::Undone, at);
    }
    if workflow.status != before {
        told.status(workflow, workflow.status, at);
    }
}

impl Actor for Compensator {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        let (queues, most) = (self.parts.queues.clone(), self.parts.settings.in_flight);
        consumer::consume(queues, Queue::FailedOperations, most, ctx);
    }
}

impl Handler<Arrived> for Compensator {
    type Result = ();
    fn handle(&mut self, Arrived { delivery, settler }: Arrived, ctx: &mut Context<Self>) {
        self.settler = Some(settler);
        let Delivery { tag, body, redelivered } = delivery;
        let Some(id) = parse(&body) else {
            // Put back until the queue's limit sends it to the dead letters.
            return self.give_back(tag, ctx);
        };
        // model: Receive
        let fresh = || Job {
            record: None,
            step: StepName::Delivery,
            tries: 0,
            tags: Vec::new(),
            redelivered: false,
            told: StatusLines::default(),
        };
        if !self.jobs.contains_key(&id) {
            self.arrivals.push(id.clone());
        }
        let job = self.jobs.entry(id).or_insert_with(fresh);
        job.redelivered |= redelivered > 0;
        job.tags.push(tag);
        self.load(ctx);
    }
}

fn parse(body: &Bytes) -> Option<DeliveryId> {
    DeliveryId::parse(std::str::from_utf8(body).ok()?).ok()
}

impl Handler<Answers> for Compensator {
    type Result = ();
    fn handle(&mut self, Answers { step, answers, .. }: Answers, ctx: &mut Context<Self>) {
        for (id, answer) in answers {
            self.answered(&id, step, answer, ctx);
        }
    }
}

impl Handler<Observe> for Compensator {
    type Result = Observed;
    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Observed {
        Observed { active: self.jobs.len(), ..self.seen }
    }
}
