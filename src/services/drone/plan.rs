//! Which drone flies a delivery, and when: a pure choice out of a fleet and its calendars. Times are whole seconds,
//! rounded so that a flight is never shorter than it is.
//!
//! The earliest pickup wins, among equally early ones the drone whose home is nearest. Rings of cells are looked at
//! from the pickup outwards, and farther ones only when nobody nearer can keep the deadline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use h3o::{CellIndex, Resolution};

use super::calendar::{Calendars, Missing, Span, bucket_of};
use super::fleet::{CLOSE, Drone, Fleet, cell_of};
use crate::domain::time::from_millis;
use crate::domain::workflow::Reservation;
use crate::domain::{DeliveryId, Location};
use crate::services::Order;
use crate::services::geography::{OnSphere, distance_km};

/// How many drones' calendars are asked for at first: the nearest is free more often than not.
pub const FIRST_REACH: usize = 4;
/// A far look into a calendar is asked for in so many buckets at most at once.
const BUCKETS_AHEAD: i64 = 8;

/// What an order wants of a drone.
#[derive(Debug)]
pub struct Wish {
    pub id: DeliveryId,
    pickup: Location,
    drop_off: Location,
    cell: Option<CellIndex>,
    flight_km: f64,
    weight: f64,
    not_before: i64,
    deadline: i64,
}

impl Wish {
    #[must_use]
    pub fn new(order: &Order, resolution: Resolution) -> Self {
        let request = &order.request;
        let (pickup, drop_off) = match &order.route {
            Some(route) => (route.pickup, route.drop_off),
            None => (request.pickup_location, request.drop_off_location),
        };
        Self {
            id: order.id.clone(),
            pickup,
            drop_off,
            cell: cell_of(pickup, resolution),
            flight_km: distance_km(pickup, drop_off),
            weight: request.package_info.weight,
            not_before: (request.pickup_time.as_millisecond() + 999).div_euclid(1000),
            deadline: request.deadline.as_millisecond().div_euclid(1000),
        }
    }
}

/// One drone's flight for one delivery.
#[derive(Clone, Debug, PartialEq)]
pub struct Trip {
    pub drone: Arc<str>,
    pub span: Span,
    pickup_at: i64,
    drop_off_at: i64,
}

impl Trip {
    #[must_use]
    pub fn reservation(&self) -> Reservation {
        let time = |second: i64| from_millis(second * 1000);
        Reservation {
            drone_id: self.drone.clone(),
            from: time(self.span.from),
            until: time(self.span.until),
            pickup_at: time(self.pickup_at),
            drop_off_at: time(self.drop_off_at),
        }
    }
}

/// What a choice is made from.
pub struct Outlook<'a> {
    pub fleet: &'a Fleet,
    pub calendars: &'a Calendars,
    /// In which call a bucket must have been read to be believed.
    pub since: u64,
    /// How many drones' calendars are asked for at once when they are not known yet.
    pub reach: usize,
    /// Seconds since the epoch.
    pub now: i64,
    /// What a drone needs at home between two flights, in seconds.
    pub turnaround: i64,
}

impl Outlook<'_> {
    /// The best trip for a wish, if any keeps the deadline.
    ///
    /// # Errors
    /// When calendars must be read first.
    pub fn choose(&self, wish: &Wish) -> Result<Option<Trip>, Vec<Missing>> {
        let Some(cell) = wish.cell else { return Ok(None) };
        let earliest = wish.not_before.max(self.now);
        if earliest + seconds(wish.flight_km, self.fleet.fastest_kmh) > wish.deadline {
            return Ok(None);
        }
        let mut best = self.best_of(wish, self.fleet.close_to(cell))?;
        let (mut first, mut last) = (CLOSE + 1, CLOSE * 2 + 1);
        while best.is_none() && first <= self.fleet.last_ring {
            best = self.best_of(wish, self.fleet.around(cell, first, last.min(self.fleet.last_ring)))?;
            (first, last) = (last + 1, last * 2 + 1);
        }
        Ok(best)
    }

    fn best_of(&self, wish: &Wish, drones: impl Iterator<Item = usize>) -> Result<Option<Trip>, Vec<Missing>> {
        let pickup = OnSphere::of(wish.pickup);
        let nearness = |place: usize| {
            let (home, drone) = self.fleet.drone(place);
            // Numbers that are not negative are in the order of their bits.
            let near = || Reverse((home.apart(pickup).to_bits(), &drone.id, place));
            (drone.payload_kg >= wish.weight).then(near)
        };
        // One of the nearest will do, so the others are not sorted.
        let mut near: BinaryHeap<_> = drones.filter_map(nearness).collect();
        let mut best: Option<Trip> = None;
        let mut missing = Vec::new();
        let mut ahead = 0;
        while let Some(Reverse((_, _, place))) = near.pop() {
            let (_, drone) = self.fleet.drone(place);
            let bar = best.as_ref().map_or(i64::MAX, |trip| trip.pickup_at);
            match self.trip(wish, drone, bar) {
                Ok(Some(trip)) => best = Some(trip),
                Ok(None) => {}
                Err(places) => {
                    missing.extend(places);
                    ahead += 1;
                }
            }
            let ideal = best.as_ref().is_some_and(|trip| trip.pickup_at == wish.not_before);
            if ahead == self.reach || ideal {
                break;
            }
        }
        if missing.is_empty() { Ok(best) } else { Err(missing) }
    }

    /// The drone's earliest trip, if it is earlier than `bar` and keeps the deadline.
    fn trip(&self, wish: &Wish, drone: &Drone, bar: i64) -> Result<Option<Trip>, Vec<Missing>> {
        let out_km = distance_km(drone.home, wish.pickup);
        let back_km = distance_km(wish.drop_off, drone.home);
        if out_km + wish.flight_km + back_km > drone.range_km {
            return Ok(None);
        }
        let [out, flight, back] = [out_km, wish.flight_km, back_km].map(|km| seconds(km, drone.speed_kmh));
        let earliest = wish.not_before.max(self.now + out);
        let latest = (wish.deadline - flight).min(bar - 1);
        if earliest > latest {
            return Ok(None);
        }
        let length = out + flight + back + self.turnaround;
        let window = Span { from: earliest - out, until: latest - out };
        let start = self.calendars.earliest(&drone.id, window, length, self.since).map_err(|first| {
            // Most flights are over before the bucket is. Who has asked before needs to look farther.
            let end = if self.reach > FIRST_REACH { window.until } else { window.from };
            let last = bucket_of(end + length - 1).min(first.bucket + BUCKETS_AHEAD).max(first.bucket);
            (first.bucket..=last).map(|bucket| Missing { bucket, ..first.clone() }).collect::<Vec<_>>()
        })?;
        Ok(start.map(|from| Trip {
            drone: drone.id.clone(),
            span: Span { from, until: from + length },
            pickup_at: from + out,
            drop_off_at: from + out + flight,
        }))
    }
}

/// How long a way takes, rounded up; a standing drone never arrives.
#[allow(clippy::cast_possible_truncation)] // a float too large for a second count is cut to its end
fn seconds(km: f64, kmh: f64) -> i64 {
    if kmh > 0.0 { ((km / kmh * 3600.0).ceil() as i64).min(NEVER) } else { NEVER }
}

/// Farther in the future than any deadline, and far from overflowing.
const NEVER: i64 = i64::MAX / 8;
