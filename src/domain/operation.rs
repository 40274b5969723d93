//! What travels on a partition: one operation on one delivery. Schedule, reschedule and cancel of one delivery are
//! on one partition, so the stream's order is their order (G9).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::request::{DeliveryId, DeliveryRequest, Location};
use super::time::Timestamp;

/// One line of a stream entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    pub id: DeliveryId,
    /// When it was accepted.
    pub at: Timestamp,
    /// The W3C `traceparent` the client sent, so that the steps show up in its trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    pub op: OperationKind,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OperationKind {
    Schedule(Arc<DeliveryRequest>),
    Reschedule(Reschedule),
    Cancel,
}

/// What is to change of a delivery; what is left out stays. `change` tells one change from its own replay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reschedule {
    pub change: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pickup_time: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pickup_location: Option<Location>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_off_location: Option<Location>,
}

impl Reschedule {
    /// The request as it is after the change.
    #[must_use]
    pub fn applied_to(&self, request: &DeliveryRequest) -> DeliveryRequest {
        DeliveryRequest {
            pickup_time: self.pickup_time.unwrap_or(request.pickup_time),
            deadline: self.deadline.unwrap_or(request.deadline),
            pickup_location: self.pickup_location.unwrap_or(request.pickup_location),
            drop_off_location: self.drop_off_location.unwrap_or(request.drop_off_location),
            ..request.clone()
        }
    }
}

impl Operation {
    /// The operation as one line, newline included. JSON escapes newlines, so a line is never broken inside.
    #[must_use]
    pub fn to_line(&self) -> Vec<u8> {
        let mut line = Vec::with_capacity(512);
        // Writing plain data to memory cannot fail: no map keys that are not strings, no writer that errs.
        if serde_json::to_writer(&mut line, self).is_err() {
            line.clear();
        }
        line.push(b'\n');
        line
    }
}

/// The partition of a delivery: xxh3-64 of the id's bytes, modulo the count. Fixed for ever: another hash would
/// send a cancel to another partition than the schedule it cancels.
#[must_use]
pub fn partition_of(id: &str, count: u32) -> u32 {
    let hash = xxhash_rust::xxh3::xxh3_64(id.as_bytes());
    u32::try_from(hash % u64::from(count.max(1))).unwrap_or(0)
}

/// Which of several readers of one partition a delivery belongs to: the hash's upper half, so that it does not
/// follow from the partition.
#[must_use]
pub fn reader_of(id: &str, readers: u32) -> u32 {
    let hash = xxhash_rust::xxh3::xxh3_64(id.as_bytes()) >> 32;
    u32::try_from(hash % u64::from(readers.max(1))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::request::samples;
    use crate::domain::time::from_millis;

    #[test]
    fn the_hash_is_the_documented_one() {
        // Written down: a build that hashes otherwise must not pass.
        assert_eq!(xxhash_rust::xxh3::xxh3_64(b"delivery-1"), 18_425_430_262_538_455_591);
        assert_eq!(partition_of("delivery-1", 8), 7);
    }

    #[test]
    fn an_operation_is_one_line_and_comes_back() {
        for op in [OperationKind::Schedule(Arc::new(samples::request())), OperationKind::Cancel] {
            let operation = Operation {
                id: DeliveryId::parse("a-1").unwrap(),
                at: from_millis(1),
                trace: Some("00-\n".into()),
                op,
            };
            let line = operation.to_line();
            assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
            assert_eq!(serde_json::from_slice::<Operation>(&line).unwrap(), operation);
        }
    }
}
