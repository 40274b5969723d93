//! What drones tell of themselves: where they are and how far they are with a delivery.

use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::entities::{encode, read};
use super::{Local, StepError};
use crate::domain::status::{EventType, Stage, StatusEvent};
use crate::domain::time::{Timestamp, now};
use crate::domain::{DeliveryId, Location, compact};
use crate::store::Txn;

/// Where a drone was last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct Position {
    #[cbor(n(0), with = "compact::millis")]
    pub at: Timestamp,
    #[n(1)]
    pub location: Location,
    /// What it is flying for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(2)]
    pub delivery_id: Option<DeliveryId>,
}

/// One message of a drone.
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    pub location: Location,
    pub delivery_id: Option<DeliveryId>,
    /// The stage that the delivery has reached.
    pub stage: Option<Stage>,
}

#[must_use]
pub fn key(drone: &str) -> String {
    format!("position/{drone}")
}

impl Local {
    /// Keeps a drone's position, and tells the status feed of it and of the stage its delivery has reached.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn report(&self, drone: &str, telemetry: &Telemetry) -> Result<(), StepError> {
        let Telemetry { location, delivery_id, stage } = telemetry;
        let position = Position { at: now(), location: *location, delivery_id: delivery_id.clone() };
        self.state.commit(vec![Txn::new().put(key(drone), encode(&position))]).await?;
        let Some(id) = delivery_id else { return Ok(()) };
        let delivery = match stage {
            Some(stage) => self.delivery.advance(id, *stage).await?,
            None => self.delivery.get(id).await?,
        };
        if let Some(delivery) = delivery {
            let event = StatusEvent::new(EventType::Location, position.at, id.clone(), delivery.owner_id);
            self.sink.emit(StatusEvent { location: Some(*location), ..event });
        }
        Ok(())
    }

    /// Where a drone was last.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn position(&self, drone: &str) -> Result<Option<Position>, StepError> {
        read(&*self.state, key(drone)).await
    }
}
