//! The workflow of one delivery as data: events are folded into a state by [`Workflow::apply`], which refuses every
//! event that does not fit the state it meets. No I/O, no clock.
//!
//! ```text
//! Accepted ─→ Scheduling ─→ Scheduled ─→ Completed
//!     │           │    └──────┐ │
//!     │           ↓           ↓ ↓
//!     │      Compensating   Cancelling ─→ Cancelled
//!     │        │   ↑  └────────↑ │ ↑
//!     │        ↓   └─── Stuck ───┘─┘        (redrive; abandon ends a stuck one as Failed)
//!     └─────→ Failed
//! ```
//!
//! A step that timed out is `Unknown`: it may have happened, so it is undone like one that is `Done`.

use std::sync::Arc;

use minicbor::{Decode, Encode};

use super::compact;
use super::operation::Operation;
use super::request::{DeliveryId, DeliveryRequest};
use super::time::Timestamp;

mod parts;

pub use parts::{Failure, Leg, Output, ReasonCode, Reservation, Route, Status, Step, StepName, StepState};

/// What happens to a workflow.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Started,
    StepStarted(StepName),
    /// An attempt failed for now and another follows.
    StepRetried(StepName, Failure),
    /// The last step's makes the workflow `Scheduled`.
    StepDone(StepName, Output),
    StepFailed(StepName, Failure),
    /// Its outcome is not known: a time-out, a lost answer.
    StepUnknown(StepName, Failure),
    /// It cannot be scheduled: what was done is undone.
    Failing(Failure),
    CancelRequested,
    StepUndone(StepName),
    /// Nothing is left to undo.
    Undone,
    UndoGaveUp(Failure),
    Redriven,
    Abandoned,
    /// The delivery was moved to other times or places.
    Rescheduled {
        change: String,
        request: Arc<DeliveryRequest>,
        route: Route,
        reservation: Reservation,
    },
    /// The change of plan was not possible; everything is as it was, but a drone that had been moved already may have
    /// come back to another time.
    ChangeRefused {
        change: String,
        failure: Failure,
        reservation: Option<Reservation>,
    },
    Completed,
}

/// An event met a state it does not fit.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("{event} does not fit a workflow that is {status:?}")]
pub struct Illegal {
    pub event: String,
    pub status: Status,
}

/// The record of one delivery's workflow: what the store keeps and the API shows.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Workflow {
    #[n(0)]
    pub delivery_id: DeliveryId,
    #[cbor(n(1), with = "compact::shared")]
    pub request: Arc<DeliveryRequest>,
    #[n(2)]
    pub status: Status,
    #[n(3)]
    pub reason: Option<Failure>,
    #[cbor(n(4), with = "compact::millis")]
    pub accepted_at: Timestamp,
    #[cbor(n(5), with = "compact::millis")]
    pub updated_at: Timestamp,
    /// When the scheduling must have come to an end; whoever finds it past this takes it over.
    #[cbor(n(6), with = "compact::millis")]
    pub complete_by: Timestamp,
    #[n(7)]
    pub trace: Option<String>,
    #[n(8)]
    pub route: Option<Route>,
    #[n(9)]
    pub reservation: Option<Reservation>,
    /// The changes of plan that were applied, newest last, so that a replay applies none twice.
    #[cbor(n(10), default)]
    pub changes: Vec<String>,
    /// Why the last change of plan was not possible, if it was not.
    #[n(11)]
    pub change_refused: Option<Failure>,
    #[n(12)]
    pub steps: [Step; 5],
}

/// How many applied changes a record remembers: far more than a replay window can hold of one delivery.
const CHANGES_KEPT: usize = 32;

impl Workflow {
    /// A workflow that was accepted and has not begun.
    #[must_use]
    pub fn accepted(operation: &Operation, request: Arc<DeliveryRequest>, complete_by: Timestamp) -> Self {
        Self {
            delivery_id: operation.id.clone(),
            request,
            status: Status::Accepted,
            reason: None,
            accepted_at: operation.at,
            updated_at: operation.at,
            complete_by,
            trace: operation.trace.clone(),
            route: None,
            reservation: None,
            changes: Vec::new(),
            change_refused: None,
            steps: Default::default(),
        }
    }

    #[must_use]
    pub fn step(&self, name: StepName) -> &Step {
        &self.steps[name.index()]
    }

    /// The step to run next, if scheduling is under way: the first that is not done.
    #[must_use]
    pub fn next_step(&self) -> Option<StepName> {
        let open = |s: &StepName| self.step(*s).state != StepState::Done;
        if self.status == Status::Scheduling { StepName::ALL.into_iter().find(open) } else { None }
    }

    /// The step to undo next, if undoing is under way: the last that was done or may have been.
    #[must_use]
    pub fn next_undo(&self) -> Option<StepName> {
        let done =
            |s: &StepName| matches!(self.step(*s).state, StepState::Done | StepState::Unknown | StepState::Running);
        let undoing = matches!(self.status, Status::Compensating | Status::Cancelling);
        if undoing { StepName::ALL.into_iter().rev().find(done) } else { None }
    }

    /// Folds one event in.
    ///
    /// # Errors
    /// When the event does not fit; the workflow is then as it was.
    pub fn apply(&mut self, event: Event, at: Timestamp) -> Result<(), Illegal> {
        use Status as S;
        let illegal = |event: &Event| Err(Illegal { event: format!("{event:?}"), status: self.status });
        match (self.status, &event) {
            (S::Accepted, Event::Started) => self.status = S::Scheduling,
            (
                S::Scheduling,
                Event::StepStarted(name)
                | Event::StepRetried(name, _)
                | Event::StepDone(name, _)
                | Event::StepFailed(name, _)
                | Event::StepUnknown(name, _),
            ) => {
                if self.next_step() != Some(*name) {
                    return illegal(&event);
                }
                self.apply_step(event, at);
            }
            (S::Accepted | S::Scheduling, Event::Failing(failure)) => {
                self.reason = Some(failure.clone());
                self.status = S::Compensating;
            }
            (S::Accepted | S::Scheduling | S::Scheduled | S::Compensating, Event::CancelRequested) => {
                self.reason = Some(Failure::new(ReasonCode::CancelledByClient, "cancelled on request"));
                self.status = S::Cancelling;
            }
            (S::Compensating | S::Cancelling, Event::StepUndone(name)) => {
                if self.next_undo() != Some(*name) {
                    return illegal(&event);
                }
                let step = &mut self.steps[name.index()];
                step.state = StepState::Undone;
                step.finished_at = Some(at);
            }
            (S::Compensating | S::Cancelling, Event::Undone) => {
                if self.next_undo().is_some() {
                    return illegal(&event);
                }
                self.status = if self.status == S::Compensating { S::Failed } else { S::Cancelled };
                self.route = None;
                self.reservation = None;
            }
            (S::Compensating | S::Cancelling, Event::UndoGaveUp(failure)) => {
                self.reason = Some(failure.clone());
                self.status = S::Stuck;
            }
            (S::Stuck, Event::Redriven) => self.status = S::Compensating,
            (S::Stuck, Event::CancelRequested) => self.status = S::Cancelling,
            (S::Stuck, Event::Abandoned) => {
                self.reason = Some(Failure::new(ReasonCode::Abandoned, "an operator gave up on undoing it"));
                self.status = S::Failed;
            }
            (S::Scheduled, Event::Rescheduled { .. } | Event::ChangeRefused { .. }) => self.apply_change(event),
            (S::Scheduled, Event::Completed) => self.status = S::Completed,
            _ => return illegal(&event),
        }
        self.updated_at = at;
        Ok(())
    }

    fn apply_step(&mut self, event: Event, at: Timestamp) {
        let finish = |step: &mut Step, state: StepState, error: Option<Failure>| {
            step.state = state;
            step.finished_at = Some(at);
            step.error = error;
        };
        match event {
            Event::StepStarted(name) => {
                let step = &mut self.steps[name.index()];
                step.state = StepState::Running;
                step.attempts += 1;
                step.started_at.get_or_insert(at);
                step.finished_at = None;
            }
            Event::StepRetried(name, failure) => {
                let step = &mut self.steps[name.index()];
                step.attempts += 1;
                step.error = Some(failure);
            }
            Event::StepDone(name, output) => {
                finish(&mut self.steps[name.index()], StepState::Done, None);
                match output {
                    Output::Nothing => {}
                    Output::Route(route) => self.route = Some(route),
                    Output::Reservation(reservation) => self.reservation = Some(reservation),
                }
                if name.next().is_none() {
                    self.status = Status::Scheduled;
                }
            }
            Event::StepFailed(name, failure) => finish(&mut self.steps[name.index()], StepState::Failed, Some(failure)),
            Event::StepUnknown(name, failure) => {
                finish(&mut self.steps[name.index()], StepState::Unknown, Some(failure));
            }
            _ => {}
        }
    }

    fn apply_change(&mut self, event: Event) {
        let (change, refused) = match event {
            Event::Rescheduled { change, request, route, reservation } => {
                self.request = request;
                self.route = Some(route);
                self.reservation = Some(reservation);
                (change, None)
            }
            Event::ChangeRefused { change, failure, reservation } => {
                self.reservation = reservation.or(self.reservation.take());
                (change, Some(failure))
            }
            _ => return,
        };
        self.change_refused = refused;
        if self.changes.len() == CHANGES_KEPT {
            self.changes.remove(0);
        }
        self.changes.push(change);
    }
}

#[cfg(test)]
mod tests;
