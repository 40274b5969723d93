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
use serde::{Deserialize, Serialize};

use super::compact;
use super::operation::Operation;
use super::request::{DeliveryId, DeliveryRequest, Location};
use super::time::Timestamp;

/// The five steps, in the order they run; they are undone in the opposite order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StepName {
    Account,
    Package,
    Transport,
    Drone,
    Delivery,
}

impl StepName {
    pub const ALL: [Self; 5] = [Self::Account, Self::Package, Self::Transport, Self::Drone, Self::Delivery];

    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    #[must_use]
    pub fn next(self) -> Option<Self> {
        Self::ALL.get(self.index() + 1).copied()
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::Package => "package",
            Self::Transport => "transport",
            Self::Drone => "drone",
            Self::Delivery => "delivery",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Encode, Decode)]
#[cbor(index_only)]
pub enum Status {
    #[n(0)]
    Accepted,
    #[n(1)]
    Scheduling,
    #[n(2)]
    Scheduled,
    #[n(3)]
    Compensating,
    #[n(4)]
    Failed,
    #[n(5)]
    Stuck,
    #[n(6)]
    Cancelling,
    #[n(7)]
    Cancelled,
    #[n(8)]
    Completed,
}

impl Status {
    pub const ALL: [Self; 9] = [
        Self::Accepted,
        Self::Scheduling,
        Self::Scheduled,
        Self::Compensating,
        Self::Failed,
        Self::Stuck,
        Self::Cancelling,
        Self::Cancelled,
        Self::Completed,
    ];

    /// Whether a replayed schedule has nothing left to do.
    #[must_use]
    pub fn is_settled(self) -> bool {
        !matches!(self, Self::Accepted | Self::Scheduling | Self::Compensating | Self::Cancelling)
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Scheduling => "Scheduling",
            Self::Scheduled => "Scheduled",
            Self::Compensating => "Compensating",
            Self::Failed => "Failed",
            Self::Stuck => "Stuck",
            Self::Cancelling => "Cancelling",
            Self::Cancelled => "Cancelled",
            Self::Completed => "Completed",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[cbor(index_only)]
pub enum StepState {
    #[default]
    #[n(0)]
    Pending,
    #[n(1)]
    Running,
    #[n(2)]
    Done,
    #[n(3)]
    Failed,
    #[n(4)]
    Unknown,
    #[n(5)]
    Undone,
}

impl StepState {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Done => "Done",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
            Self::Undone => "Undone",
        }
    }
}

/// Why something did not work: a stable code for programs, a text for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
pub struct Failure {
    #[n(0)]
    pub code: ReasonCode,
    #[n(1)]
    pub text: String,
}

impl Failure {
    pub fn new(code: ReasonCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// The stable codes. A code never changes its meaning; new ones may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Encode, Decode)]
#[cbor(index_only)]
pub enum ReasonCode {
    #[n(0)]
    AccountUnknown,
    #[n(1)]
    AccountSuspended,
    #[n(2)]
    PackageTooHeavy,
    #[n(3)]
    PackageTooLarge,
    #[n(4)]
    OutOfArea,
    #[n(5)]
    NoCarrier,
    #[n(6)]
    NoDroneBeforeDeadline,
    /// A service was away or failing for longer than the step may take.
    #[n(7)]
    ServiceUnavailable,
    /// A service answered with a refusal of its own.
    #[n(8)]
    ServiceRefused,
    /// A call came for a delivery that was cancelled before.
    #[n(9)]
    AlreadyCancelled,
    /// The client asked for it.
    #[n(10)]
    CancelledByClient,
    /// An operator gave up on undoing it.
    #[n(11)]
    Abandoned,
}

impl ReasonCode {
    /// The code as the API spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AccountUnknown => "AccountUnknown",
            Self::AccountSuspended => "AccountSuspended",
            Self::PackageTooHeavy => "PackageTooHeavy",
            Self::PackageTooLarge => "PackageTooLarge",
            Self::OutOfArea => "OutOfArea",
            Self::NoCarrier => "NoCarrier",
            Self::NoDroneBeforeDeadline => "NoDroneBeforeDeadline",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::ServiceRefused => "ServiceRefused",
            Self::AlreadyCancelled => "AlreadyCancelled",
            Self::CancelledByClient => "CancelledByClient",
            Self::Abandoned => "Abandoned",
        }
    }
}

/// A carrier's part of the way: it brings the package to where the drone can take over, or from where it stops.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct Leg {
    #[n(0)]
    pub carrier: String,
    #[n(1)]
    pub from: Location,
    #[n(2)]
    pub to: Location,
}

/// What the transport step decided: which part of the way the drone flies, and what carriers do of the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    #[n(0)]
    pub pickup: Location,
    #[n(1)]
    pub drop_off: Location,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cbor(n(2), default)]
    pub legs: Vec<Leg>,
}

/// The time one drone is kept for one delivery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    #[n(0)]
    pub drone_id: String,
    /// From leaving its home to being back there.
    #[cbor(n(1), with = "compact::millis")]
    pub from: Timestamp,
    #[cbor(n(2), with = "compact::millis")]
    pub until: Timestamp,
    #[cbor(n(3), with = "compact::millis")]
    pub pickup_at: Timestamp,
    #[cbor(n(4), with = "compact::millis")]
    pub drop_off_at: Timestamp,
}

/// What a step gives to those after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Output {
    #[default]
    Nothing,
    Route(Route),
    Reservation(Reservation),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    #[n(0)]
    pub state: StepState,
    #[n(1)]
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cbor(n(2), with = "compact::maybe_millis", has_nil)]
    pub started_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cbor(n(3), with = "compact::maybe_millis", has_nil)]
    pub finished_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(4)]
    pub error: Option<Failure>,
}

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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct Workflow {
    #[n(0)]
    pub delivery_id: DeliveryId,
    #[cbor(n(1), with = "compact::shared")]
    pub request: Arc<DeliveryRequest>,
    #[n(2)]
    pub status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(3)]
    pub reason: Option<Failure>,
    #[cbor(n(4), with = "compact::millis")]
    pub accepted_at: Timestamp,
    #[cbor(n(5), with = "compact::millis")]
    pub updated_at: Timestamp,
    /// When the scheduling must have come to an end; whoever finds it past this takes it over.
    #[cbor(n(6), with = "compact::millis")]
    pub complete_by: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(7)]
    pub trace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(8)]
    pub route: Option<Route>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(9)]
    pub reservation: Option<Reservation>,
    /// The changes of plan that were applied, newest last, so that a replay applies none twice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cbor(n(10), default)]
    pub changes: Vec<String>,
    /// Why the last change of plan was not possible, if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
