//! When and where a delivery's simulated flight goes: a pure function of the clock, so that whoever takes a flight over,
//! after a restart or from another process, goes on exactly where it is.
//!
//! Time runs `demo.time_factor` times as fast from the moment a delivery is made: with 60, what is reserved for two hours
//! later takes off two minutes later, and a flight of half an hour takes half a minute. So a pickup that is two months
//! away is flown in a day.

use std::time::Duration;

use bytes::Bytes;
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::domain::status::Stage;
use crate::domain::time::{Timestamp, from_millis, later};
use crate::domain::{DeliveryId, Location, compact};
use crate::services::Order;
use crate::services::geography::{along, distance_km};
use crate::store::Txn;

/// The ordered set of the flights that are not back home, by the time they take off.
pub const FLIGHTS: &str = "flights";

/// One flight, in times of the real clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct FlightPlan {
    #[n(0)]
    pub drone_id: String,
    #[n(1)]
    pub pickup: Location,
    #[n(2)]
    pub drop_off: Location,
    #[cbor(n(3), with = "compact::millis")]
    pub takes_off_at: Timestamp,
    #[cbor(n(4), with = "compact::millis")]
    pub pickup_at: Timestamp,
    #[cbor(n(5), with = "compact::millis")]
    pub drop_off_at: Timestamp,
    #[cbor(n(6), with = "compact::millis")]
    pub lands_at: Timestamp,
}

/// What each moment of a flight brings the delivery to.
const ALL_STAGES: [Stage; 4] = [Stage::HeadedToPickup, Stage::PickedUp, Stage::HeadedToDropOff, Stage::Delivered];

impl FlightPlan {
    /// The stages that are reached by now, in their order.
    #[must_use]
    pub fn stages(&self, now: Timestamp) -> &'static [Stage] {
        let reached = match now {
            _ if now < self.takes_off_at => 0,
            _ if now < self.pickup_at => 1,
            _ if now < self.drop_off_at => 3,
            _ => 4,
        };
        &ALL_STAGES[..reached]
    }

    /// Where the drone is now.
    #[must_use]
    pub fn location(&self, home: Location, now: Timestamp) -> Location {
        if now < self.pickup_at {
            between(home, self.pickup, share(self.takes_off_at, self.pickup_at, now))
        } else if now < self.drop_off_at {
            between(self.pickup, self.drop_off, share(self.pickup_at, self.drop_off_at, now))
        } else {
            between(self.drop_off, home, share(self.drop_off_at, self.lands_at, now))
        }
    }

    /// Its member of [`FLIGHTS`].
    #[must_use]
    pub fn member(&self, id: &DeliveryId) -> Bytes {
        format!("{}{id}", due_by(self.takes_off_at)).into()
    }
}

/// Members of [`FLIGHTS`] up to this one have taken off.
#[must_use]
pub fn due_by(now: Timestamp) -> String {
    format!("{:012x}", now.as_millisecond().max(0))
}

/// The delivery that a member stands for.
#[must_use]
pub fn id_of(member: &[u8]) -> Option<DeliveryId> {
    DeliveryId::parse(std::str::from_utf8(member).ok()?.get(12..)?).ok()
}

/// Puts a changed plan of a delivery in place of the one before.
#[must_use]
pub fn replace(txn: Txn, id: &DeliveryId, before: Option<&FlightPlan>, after: Option<&FlightPlan>) -> Txn {
    if before == after {
        return txn;
    }
    let txn = before.into_iter().fold(txn, |txn, plan| txn.remove(FLIGHTS, plan.member(id)));
    after.into_iter().fold(txn, |txn, plan| txn.add(FLIGHTS, plan.member(id)))
}

const MOMENT: Duration = Duration::from_secs(1);

/// Plans flights where the demo is on.
#[derive(Clone, Copy, Debug)]
pub struct Planner {
    pub time_factor: f64,
}

impl Planner {
    /// The flight of an order that has a drone, as seen at a time. It takes off a moment later at the earliest, so that
    /// the feed tells of the take-off after it told that the delivery is scheduled.
    #[must_use]
    pub fn plan(self, order: &Order, at: Timestamp) -> Option<FlightPlan> {
        let reservation = order.reservation.as_ref()?;
        let request = &order.request;
        let (pickup, drop_off) = match &order.route {
            Some(route) => (route.pickup, route.drop_off),
            None => (request.pickup_location, request.drop_off_location),
        };
        let time = |time| self.scaled(at, time);
        Some(FlightPlan {
            drone_id: reservation.drone_id.to_string(),
            pickup,
            drop_off,
            takes_off_at: time(reservation.from).max(later(at, MOMENT)),
            pickup_at: time(reservation.pickup_at),
            drop_off_at: time(reservation.drop_off_at),
            lands_at: time(reservation.until),
        })
    }

    /// How long a way takes on the real clock, in milliseconds.
    #[must_use]
    pub fn flight_millis(self, km: f64, kmh: f64) -> i64 {
        whole(km / kmh * 3_600_000.0 / self.time_factor)
    }

    fn scaled(self, start: Timestamp, time: Timestamp) -> Timestamp {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of any calendar are far below 2^53")]
        let away = (time.as_millisecond() - start.as_millisecond()) as f64;
        from_millis(start.as_millisecond() + whole(away / self.time_factor))
    }
}

/// A float as whole milliseconds; what is no number or out of range is cut to the nearest end.
#[expect(clippy::cast_possible_truncation, reason = "cut to a thousand years first")]
fn whole(millis: f64) -> i64 {
    millis.clamp(-3.2e13, 3.2e13) as i64
}

/// The place that far, out of 1, on the way.
#[must_use]
pub fn between(from: Location, to: Location, share: f64) -> Location {
    match share {
        _ if share <= 0.0 => from,
        _ if share >= 1.0 => to,
        _ => along(from, to, distance_km(from, to) * share),
    }
}

/// How far `now` is from `from` to `until`, out of 1.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "milliseconds of any calendar are far below 2^53")]
pub fn share(from: Timestamp, until: Timestamp, now: Timestamp) -> f64 {
    let [from, until, now] = [from, until, now].map(|time| time.as_millisecond() as f64);
    if until > from { ((now - from) / (until - from)).clamp(0.0, 1.0) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::request::samples;
    use crate::domain::workflow::Reservation;

    const HOME: Location = Location { latitude: 47.6, longitude: -122.2 };

    /// Reserved an hour after it is made: ten minutes out, twenty with the package, thirty back; sixty times as fast.
    fn plan() -> FlightPlan {
        let minutes = |minutes: i64| from_millis(1_000_000 + minutes * 60_000);
        let reservation = Reservation {
            drone_id: "d".into(),
            from: minutes(60),
            pickup_at: minutes(70),
            drop_off_at: minutes(90),
            until: minutes(120),
        };
        let order = Order {
            id: DeliveryId::parse("a").unwrap(),
            request: Arc::new(samples::request()),
            route: None,
            reservation: Some(reservation),
            trace: None,
        };
        Planner { time_factor: 60.0 }.plan(&order, from_millis(1_000_000)).unwrap()
    }

    fn after(seconds: i64) -> Timestamp {
        from_millis(1_000_000 + seconds * 1_000)
    }

    #[test]
    fn an_hour_passes_in_a_minute() {
        let FlightPlan { takes_off_at, pickup_at, drop_off_at, lands_at, .. } = plan();
        assert_eq!([takes_off_at, pickup_at, drop_off_at, lands_at], [60, 70, 90, 120].map(after));
    }

    #[test]
    fn stages_come_in_order_and_only_when_reached() {
        let reached = [59, 60, 69, 70, 89, 90, 500].map(|second| plan().stages(after(second)).len());
        assert_eq!(reached, [0, 1, 1, 3, 3, 4, 4]);
        assert!(ALL_STAGES.is_sorted());
    }

    #[test]
    fn the_drone_goes_home_to_pickup_to_drop_off_to_home() {
        let plan = plan();
        let at = |second| plan.location(HOME, after(second));
        assert_eq!([at(0), at(60), at(70), at(90)], [HOME, HOME, plan.pickup, plan.drop_off]);
        assert_eq!([at(120), at(9_999)], [HOME, HOME]);
        let half = at(80);
        let (gone, left) = (distance_km(plan.pickup, half), distance_km(half, plan.drop_off));
        assert!((gone - left).abs() < 0.01, "{gone} km and {left} km");
    }

    #[test]
    fn members_sort_by_take_off_and_lead_to_their_delivery() {
        let id = DeliveryId::parse("some-id").unwrap();
        let member = plan().member(&id);
        assert_eq!(id_of(&member), Some(id));
        assert!(due_by(after(59)).as_bytes() < &member[..]);
        assert!(due_by(after(61)).as_bytes() > &member[..]);
    }
}
