//! Step 3: which part of the way the drone flies, and who brings the rest. An end outside the service areas, or
//! farther than a drone flies, is a carrier's: it takes the package to or from a hand-over point inside the area, and
//! the booking is the entity that this step makes. The decision is a pure function of the request and the settings,
//! so a replay books the same again.

use std::time::Duration;

use async_trait::async_trait;
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::entities::{self, all, already_cancelled, bury, encode, exists, tomb};
use super::geography::{AreaError, Areas, Carrier, along, distance_km};
use super::{Order, Service, SharedState, StepError};
use crate::config::{Services, Settings};
use crate::domain::workflow::{Leg, Output, Route};
use crate::domain::{DeliveryId, DeliveryRequest, Failure, Location, ReasonCode, StepName};
use crate::store::{Expect, Outcome, StoreError, Txn};

/// What was booked with carriers for one delivery, or for none of its way if `legs` is empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Booking {
    #[n(0)]
    pub delivery_id: DeliveryId,
    #[n(1)]
    pub route: Route,
}

fn key(id: &DeliveryId) -> String {
    ["thirdparty/", id.as_str()].concat()
}

pub struct TransportService {
    state: SharedState,
    tombstones: Duration,
    areas: Areas,
    carriers: Vec<Carrier>,
    max_flight_km: f64,
}

impl TransportService {
    /// # Errors
    /// When the settings' areas or carriers cannot be read.
    pub fn new(state: SharedState, settings: &Settings) -> Result<Self, AreaError> {
        let Services { areas, carriers, max_flight_km, .. } = &settings.services;
        let (areas, carriers) = (Areas::load(areas)?, Carrier::load(carriers)?);
        Ok(Self { state, tombstones: settings.retention.tombstones, areas, carriers, max_flight_km: *max_flight_km })
    }

    /// # Errors
    /// When the store does not answer, or what it has is damaged.
    pub async fn get(&self, id: &DeliveryId) -> Result<Option<Booking>, StepError> {
        entities::read(&*self.state, key(id)).await
    }

    /// Whether the delivery's booking was cancelled.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn is_cancelled(&self, id: &DeliveryId) -> Result<bool, StoreError> {
        exists(&*self.state, tomb(StepName::Transport, id)).await
    }

    /// Cancels the deliveries' bookings.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn withdraw(&self, ids: &[DeliveryId]) -> Result<(), StoreError> {
        let undo = |id: &DeliveryId| bury(Txn::new().delete(key(id)), StepName::Transport, id, self.tombstones);
        self.state.commit(ids.iter().map(undo).collect()).await.map(drop)
    }

    /// Deletes the bookings of deliveries that are long over.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn forget(&self, ids: &[&DeliveryId]) -> Result<(), StoreError> {
        let txns = ids.iter().map(|id| Txn::new().delete(key(id))).collect();
        self.state.commit(txns).await.map(drop)
    }

    /// Decides who brings the package which part of the way.
    ///
    /// # Errors
    /// When an end is out of reach and no carrier serves it.
    pub fn route(&self, request: &DeliveryRequest) -> Result<Route, StepError> {
        let (pickup, drop_off) = (request.pickup_location, request.drop_off_location);
        let mut route = Route { pickup, drop_off, legs: Vec::new() };
        if !self.areas.contains(pickup) {
            route.pickup = self.areas.nearest(pickup);
            route.legs.push(self.leg(pickup, pickup, route.pickup, ReasonCode::OutOfArea)?);
        }
        if !self.areas.contains(drop_off) {
            route.drop_off = self.areas.nearest(drop_off);
            route.legs.push(self.leg(drop_off, route.drop_off, drop_off, ReasonCode::OutOfArea)?);
        }
        if distance_km(route.pickup, route.drop_off) > self.max_flight_km {
            self.shorten(&mut route, pickup)?;
        }
        Ok(route)
    }

    /// Has a carrier bring the package so near to the drop-off that a drone can take over.
    fn shorten(&self, route: &mut Route, pickup: Location) -> Result<(), StepError> {
        let near = along(route.drop_off, route.pickup, self.max_flight_km * 0.999);
        let meeting = if self.areas.contains(near) { near } else { self.areas.nearest(near) };
        if distance_km(meeting, route.drop_off) > self.max_flight_km {
            let text = "no hand-over point is within a drone's flight of the drop-off";
            return Err(StepError::Refused(Failure::new(ReasonCode::NoCarrier, text)));
        }
        let leg = self.leg(pickup, pickup, meeting, ReasonCode::NoCarrier)?;
        route.legs.retain(|leg| leg.from != pickup);
        route.legs.insert(0, leg);
        route.pickup = meeting;
        Ok(())
    }

    fn leg(&self, place: Location, from: Location, to: Location, code: ReasonCode) -> Result<Leg, StepError> {
        match self.carriers.iter().find(|carrier| carrier.areas.contains(place)) {
            Some(carrier) => Ok(Leg { carrier: carrier.name.clone(), from, to }),
            None => {
                let text = format!("no drone and no carrier serves {},{}", place.latitude, place.longitude);
                Err(StepError::Refused(Failure::new(code, text)))
            }
        }
    }

    /// A booking is written only where a carrier has a part; the other orders merely must not be cancelled.
    async fn book(&self, orders: &[Order], answers: &mut [Result<Output, StepError>]) -> Result<(), StoreError> {
        let (mut booked, mut txns, mut direct, mut tombs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (i, order) in orders.iter().enumerate() {
            let Ok(Output::Route(route)) = &answers[i] else { continue };
            let buried = tomb(StepName::Transport, &order.id);
            if route.legs.is_empty() {
                direct.push(i);
                tombs.push(buried);
            } else {
                let booking = Booking { delivery_id: order.id.clone(), route: route.clone() };
                booked.push(i);
                txns.push(Txn::new().check(buried, Expect::Absent).put(key(&order.id), encode(&booking)));
            }
        }
        if !tombs.is_empty() {
            for (i, buried) in direct.into_iter().zip(self.state.get(&tombs).await?) {
                if buried.is_some() {
                    answers[i] = Err(already_cancelled());
                }
            }
        }
        if !txns.is_empty() {
            for (i, outcome) in booked.into_iter().zip(self.state.commit(txns).await?) {
                if outcome == Outcome::Conflict {
                    answers[i] = Err(already_cancelled());
                }
            }
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl Service for TransportService {
    fn step(&self) -> StepName {
        StepName::Transport
    }

    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        let mut answers: Vec<_> = orders.iter().map(|order| self.route(&order.request).map(Output::Route)).collect();
        match self.book(orders, &mut answers).await {
            Ok(()) => answers,
            Err(error) => {
                let unknown = StepError::from(error);
                answers.into_iter().map(|answer| answer.and_then(|_| Err(unknown.clone()))).collect()
            }
        }
    }

    /// The booking of the new plan takes the place of the old one's, or ends it where no carrier is needed any more.
    async fn change(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        let mut answers: Vec<_> = orders.iter().map(|order| self.route(&order.request).map(Output::Route)).collect();
        let mut direct = Vec::new();
        for (order, answer) in orders.iter().zip(&answers) {
            if let Ok(Output::Route(route)) = answer
                && route.legs.is_empty()
            {
                direct.push(Txn::new().delete(key(&order.id)));
            }
        }
        let changed = match self.state.commit(direct).await {
            Ok(_) => self.book(orders, &mut answers).await,
            Err(error) => Err(error),
        };
        match changed {
            Ok(()) => answers,
            Err(error) => all(orders.len(), &error.into()),
        }
    }

    async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>> {
        let ids: Vec<_> = orders.iter().map(|order| order.id.clone()).collect();
        match self.withdraw(&ids).await {
            Ok(()) => orders.iter().map(|_| Ok(())).collect(),
            Err(error) => all(orders.len(), &error.into()),
        }
    }
}
