//! What the status feed tells: one line of the status stream for every change of a delivery.

use serde::{Deserialize, Serialize};

use super::request::{DeliveryId, Location};
use super::time::Timestamp;
use super::workflow::{Status, StepName};

/// Where a delivery is on its way; told by the delivery service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    Created,
    HeadedToPickup,
    PickedUp,
    HeadedToDropOff,
    Delivered,
    Cancelled,
}

/// What kind of change an event tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventType {
    /// The workflow's status changed.
    Status,
    /// A step began, was tried again, ended or was undone.
    Step,
    /// The delivery reached another stage.
    Stage,
    /// The drone told where it is.
    Location,
}

/// One change. The `id` that readers see is its place on the stream, so it is not part of the line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusEvent {
    pub at: Timestamp,
    pub delivery_id: DeliveryId,
    pub owner_id: String,
    #[serde(rename = "type")]
    pub kind: EventType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl StatusEvent {
    /// An event that tells nothing yet but whose it is.
    #[must_use]
    pub fn new(kind: EventType, at: Timestamp, delivery_id: DeliveryId, owner_id: String) -> Self {
        Self { at, delivery_id, owner_id, kind, status: None, step: None, stage: None, location: None, detail: None }
    }
}

/// Takes events for the status feed. Never waits: an event that finds no room is the sink's to count.
pub trait StatusSink: Send + Sync {
    fn emit(&self, event: StatusEvent);
}
