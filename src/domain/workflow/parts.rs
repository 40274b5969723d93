//! What a workflow is made of: its steps and their states, the reasons things end, and what steps give to each other.

use std::sync::Arc;

use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::domain::compact;
use crate::domain::request::Location;
use crate::domain::time::Timestamp;

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
    /// What a service keeps for it cannot be read.
    #[n(12)]
    Damaged,
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
            Self::Damaged => "Damaged",
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
    #[cbor(n(0), with = "compact::text")]
    pub drone_id: Arc<str>,
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
