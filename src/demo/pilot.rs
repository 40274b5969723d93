//! Flies what is due, a tick at a time. Nothing of a flight is kept but its place in the ordered set [`FLIGHTS`] and its
//! plan in the delivery, both written and removed with the delivery itself; where it is follows from the clock. So a
//! restart goes on where the flight is, and a delivery that is cancelled is not due any more: its drone turns home.
//!
//! - **One pilot.** Of several processes the one with the lease flies. Nothing rests on that but the cost: stages only go
//!   forwards and are written on condition, so two that fly one delivery tell each stage once.
//! - **Bounded.** So many flights at once, the earliest first; those that are late are caught up with. A tick is a fixed
//!   number of calls to the store, however many flights move.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::plan::{FLIGHTS, FlightPlan, Planner, between, due_by, id_of, share};
use crate::domain::status::{EventType, Stage, StatusEvent};
use crate::domain::time::{Timestamp, from_millis, later};
use crate::domain::{DeliveryId, Location};
use crate::services::delivery::{Delivery, DeliveryService};
use crate::services::drone::{Drone, fleet};
use crate::services::entities::{encode, readable};
use crate::services::geography::distance_km;
use crate::services::telemetry::{self, Position};
use crate::services::{SharedSink, SharedState};
use crate::store::{Expect, Outcome, Scan, StoreError, Txn};

/// Flights in the air at once.
pub const MOST_ALOFT: usize = 1_000;
const PAGE: usize = 128;
/// How often a drone tells where it is.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// After this long without a sign of its process the lease is free.
const LEASE: Duration = Duration::from_secs(5);
/// How long a flight that is home waits for its workflow's record.
const PATIENCE: Duration = Duration::from_secs(600);
/// Home is reached at least this slowly by a drone that is no longer in the fleet.
const SLOW_KMH: f64 = 40.0;

const LEASE_KEY: &str = "flights/pilot";

#[derive(Clone)]
pub struct Parts {
    pub state: SharedState,
    pub delivery: Arc<DeliveryService>,
    pub sink: SharedSink,
    pub planner: Planner,
    /// Who this process is towards the others.
    pub instance: String,
}

/// A drone on its way for a delivery.
struct Flight {
    member: Bytes,
    owner: String,
    plan: FlightPlan,
    home: Location,
    speed_kmh: f64,
    /// How many stages were told.
    told: usize,
    told_location_at: Option<Timestamp>,
}

/// A drone on its way home from a delivery that was cancelled.
struct Return {
    drone: String,
    from: Location,
    home: Location,
    since: Timestamp,
    until: Timestamp,
    told_at: Timestamp,
}

pub struct Pilot {
    parts: Parts,
    aloft: HashMap<DeliveryId, Flight>,
    returning: Vec<Return>,
    /// Until when the lease need not be renewed.
    renew_at: Option<Timestamp>,
}

impl Pilot {
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self { parts, aloft: HashMap::new(), returning: Vec::new(), renew_at: None }
    }

    #[must_use]
    pub fn aloft(&self) -> usize {
        self.aloft.len()
    }

    /// Brings every flight to where it is now.
    ///
    /// # Errors
    /// When the store does not answer; the next tick makes up for it.
    pub async fn tick(&mut self, now: Timestamp) -> Result<(), StoreError> {
        if !self.has_lease(now).await? {
            self.aloft.clear();
            self.returning.clear();
            return Ok(());
        }
        let due = self.due(now).await?;
        self.turn_back(&due, now);
        self.take_off(due).await?;
        self.advance(now).await;
        self.tell(now).await
    }

    async fn has_lease(&mut self, now: Timestamp) -> Result<bool, StoreError> {
        if self.renew_at.is_some_and(|renew_at| now < renew_at) {
            return Ok(true);
        }
        let me = Bytes::from(self.parts.instance.clone());
        let take = |expect| vec![Txn::new().check(LEASE_KEY, expect).put_for(LEASE_KEY, me.clone(), LEASE)];
        let txns = [take(Expect::Is(me.clone())), take(Expect::Absent)].concat();
        let held = self.parts.state.commit(txns).await?.contains(&Outcome::Done);
        self.renew_at = held.then(|| later(now, LEASE / 3));
        Ok(held)
    }

    /// The members whose time has come and who are not home yet, the earliest first.
    async fn due(&self, now: Timestamp) -> Result<Vec<Bytes>, StoreError> {
        let end = due_by(now);
        let mut due: Vec<Bytes> = Vec::new();
        loop {
            let after = due.last().cloned();
            let limit = PAGE.min(MOST_ALOFT - due.len());
            let page = self.parts.state.scan(&Scan { set: FLIGHTS.into(), after, limit, ..Scan::default() }).await?;
            let (found, last) = (page.len(), page.last().cloned());
            due.extend(page.into_iter().take_while(|member| member.as_ref() < end.as_bytes()));
            let all_due = due.last() == last.as_ref();
            if found < limit || !all_due || due.len() >= MOST_ALOFT {
                return Ok(due);
            }
        }
    }

    /// Sends the drones home whose deliveries were cancelled or put off.
    fn turn_back(&mut self, due: &[Bytes], now: Timestamp) {
        let due: HashSet<&Bytes> = due.iter().collect();
        for (_, flight) in self.aloft.extract_if(|_, flight| !due.contains(&flight.member)) {
            let from = flight.plan.location(flight.home, now);
            let takes = self.parts.planner.flight_millis(distance_km(from, flight.home), flight.speed_kmh);
            if self.returning.len() < MOST_ALOFT {
                self.returning.push(Return {
                    drone: flight.plan.drone_id,
                    from,
                    home: flight.home,
                    since: now,
                    until: from_millis(now.as_millisecond() + takes),
                    told_at: now,
                });
            }
        }
    }

    async fn take_off(&mut self, due: Vec<Bytes>) -> Result<(), StoreError> {
        let known: HashSet<&Bytes> = self.aloft.values().map(|flight| &flight.member).collect();
        let new: Vec<(Bytes, DeliveryId)> =
            due.into_iter().filter(|m| !known.contains(m)).filter_map(|m| id_of(&m).map(|id| (m, id))).collect();
        if new.is_empty() {
            return Ok(());
        }
        let ids: Vec<DeliveryId> = new.iter().map(|(_, id)| id.clone()).collect();
        let mut planned: Vec<(Bytes, Delivery, FlightPlan)> = Vec::with_capacity(new.len());
        let mut stale = Vec::new();
        for ((member, id), delivery) in new.into_iter().zip(self.parts.delivery.load(&ids).await?) {
            match delivery.and_then(|mut delivery| delivery.flight.take().map(|plan| (delivery, plan))) {
                Some((delivery, plan)) if plan.member(&id) == member => planned.push((member, delivery, plan)),
                _ => stale.push(Txn::new().remove(FLIGHTS, member)),
            }
        }
        let keys: Vec<String> = planned.iter().map(|(_, _, plan)| fleet::key(&plan.drone_id)).collect();
        let drones = self.parts.state.get(&keys).await?;
        for ((member, delivery, plan), drone) in planned.into_iter().zip(drones) {
            let drone: Option<Drone> = drone.and_then(|drone| readable(&plan.drone_id, &drone));
            let (home, speed_kmh) =
                drone.map_or((plan.pickup, SLOW_KMH), |drone| (drone.home, drone.speed_kmh.max(1.0)));
            let owner = delivery.owner_id;
            let flight = Flight { member, owner, plan, home, speed_kmh, told: 0, told_location_at: None };
            self.aloft.insert(delivery.id, flight);
        }
        if stale.is_empty() { Ok(()) } else { self.parts.state.commit(stale).await.map(drop) }
    }

    /// Has the stages told that were reached since. What did not work is tried again at the next tick.
    async fn advance(&mut self, now: Timestamp) {
        let reached = |(id, flight): (&DeliveryId, &Flight)| {
            let stages = flight.plan.stages(now);
            (stages.len() > flight.told).then(|| (id.clone(), stages))
        };
        let flown: Vec<(DeliveryId, &[Stage])> = self.aloft.iter().filter_map(reached).collect();
        if flown.is_empty() {
            return;
        }
        let answers = self.parts.delivery.fly(&flown).await;
        for ((id, stages), answer) in flown.into_iter().zip(answers) {
            match answer {
                // One that is gone was cancelled this very moment: the next tick does not find it due any more.
                Ok(_) => self.aloft.get_mut(&id).into_iter().for_each(|flight| flight.told = stages.len()),
                Err(error) => tracing::debug!(%id, %error, "a stage waits for the next tick"),
            }
        }
    }

    /// Keeps and tells where the drones are, and lets go of those that are home.
    async fn tell(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let mut txns = Vec::new();
        let place = |drone: &str, location: Location, delivery_id: Option<DeliveryId>| {
            Txn::new().put(telemetry::key(drone), encode(&Position { at: now, location, delivery_id }))
        };
        let mut home = Vec::new();
        for (id, flight) in &mut self.aloft {
            let location = flight.plan.location(flight.home, now);
            let is_delivered = flight.plan.stages(flight.plan.lands_at).len() == flight.told;
            if now >= flight.plan.lands_at && (is_delivered || now >= later(flight.plan.lands_at, PATIENCE)) {
                txns.push(place(&flight.plan.drone_id, location, None).remove(FLIGHTS, flight.member.clone()));
                home.push(id.clone());
            } else if flight.told_location_at.is_none_or(|told| now >= later(told, TELL_EVERY)) {
                flight.told_location_at = Some(now);
                txns.push(place(&flight.plan.drone_id, location, Some(id.clone()).filter(|_| !is_delivered)));
                if !is_delivered {
                    let event = StatusEvent::new(EventType::Location, now, id.clone(), flight.owner.clone());
                    self.parts.sink.emit(StatusEvent { location: Some(location), ..event });
                }
            }
        }
        for drone in &mut self.returning {
            if now >= drone.until || now >= later(drone.told_at, TELL_EVERY) {
                drone.told_at = now;
                let location = between(drone.from, drone.home, share(drone.since, drone.until, now));
                txns.push(place(&drone.drone, location, None));
            }
        }
        if !txns.is_empty() {
            self.parts.state.commit(txns).await?;
        }
        self.returning.retain(|drone| now < drone.until);
        home.iter().for_each(|id| drop(self.aloft.remove(id)));
        Ok(())
    }
}
