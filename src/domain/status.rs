//! What the status feed tells: every change of a delivery. On the status stream a line holds the changes of one
//! delivery that were told together, so that what they have in common is written once.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::request::{DeliveryId, Location};
use super::time::Timestamp;
use super::workflow::{Status, StepName};

/// Where a delivery is on its way; told by the delivery service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Encode, Decode)]
#[cbor(index_only)]
pub enum Stage {
    #[n(0)]
    Created,
    #[n(1)]
    HeadedToPickup,
    #[n(2)]
    PickedUp,
    #[n(3)]
    HeadedToDropOff,
    #[n(4)]
    Delivered,
    #[n(5)]
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

/// An event's place on the status stream: which entry, and which of the entry's events; told as `<offset>-<number>`.
/// Later events have greater ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId {
    pub offset: u64,
    pub number: u32,
}

/// Why a text is not an event's id.
#[derive(Debug, thiserror::Error)]
#[error("an event's id is two numbers with a hyphen between them, as the feed tells it: 17-3")]
pub struct InvalidEventId;

impl EventId {
    /// Where an entry begins.
    #[must_use]
    pub fn start_of(offset: u64) -> Self {
        Self { offset, number: 0 }
    }

    /// The first place after this event.
    #[must_use]
    pub fn after(self) -> Self {
        let next = |number| Self { number, ..self };
        self.number.checked_add(1).map_or(Self::start_of(self.offset.saturating_add(1)), next)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.offset, self.number)
    }
}

impl FromStr for EventId {
    type Err = InvalidEventId;
    fn from_str(text: &str) -> Result<Self, InvalidEventId> {
        let (offset, number) = text.split_once('-').ok_or(InvalidEventId)?;
        let id = Self {
            offset: offset.parse().map_err(|_| InvalidEventId)?,
            number: number.parse().map_err(|_| InvalidEventId)?,
        };
        // One event, one id: no leading zeros, no signs.
        if id.to_string() == text { Ok(id) } else { Err(InvalidEventId) }
    }
}

/// One change. The `id` that readers see is its place on the stream, and whose change it is stands once in its line.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusEvent<'a> {
    pub at: Timestamp,
    #[serde(skip)]
    pub delivery_id: DeliveryId,
    #[serde(skip)]
    pub owner_id: Cow<'a, str>,
    #[serde(rename = "type")]
    pub kind: EventType,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<StepName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<Cow<'static, str>>,
}

/// One line of the status stream: the changes of one delivery, as they are written. Event `n` of an entry is the n-th
/// over all of its lines.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Line<'a> {
    #[serde(borrow)]
    pub delivery_id: Cow<'a, str>,
    #[serde(borrow)]
    pub owner_id: Cow<'a, str>,
    #[serde(borrow)]
    pub events: Vec<&'a RawValue>,
}

impl<'a> StatusEvent<'a> {
    /// An event that tells nothing yet but whose it is.
    #[must_use]
    pub fn new(kind: EventType, at: Timestamp, delivery_id: DeliveryId, owner_id: impl Into<Cow<'a, str>>) -> Self {
        let owner_id = owner_id.into();
        Self { at, delivery_id, owner_id, kind, status: None, step: None, stage: None, location: None, detail: None }
    }
}

/// Takes events for the status feed. Never waits: an event that finds no room is the sink's to count.
pub trait StatusSink: Send + Sync {
    fn emit(&self, event: StatusEvent<'static>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_back_and_keep_their_order() {
        let ids = ["0-0", "0-1", "0-10", "7-2", "18446744073709551615-4294967295"].map(|text| {
            let id: EventId = text.parse().unwrap();
            assert_eq!(id.to_string(), text);
            id
        });
        assert!(ids.is_sorted());
        assert!(ids.iter().take(4).all(|id| id.after() > *id));
        for bad in ["", "7", "7-", "-7", "+7-0", "07-0", "7-0 ", "7-x", "7-0-0", "7-4294967296"] {
            assert!(bad.parse::<EventId>().is_err(), "{bad:?}");
        }
    }
}
