//! The requests of a load, as bytes that are ready to be sent. A few thousand are made beforehand, over the whole
//! service area; what differs each time is the pickup time, and it is patched in. The pickups are spread over weeks
//! and the ways are short, so that a fleet of a few hundred drones has room for a million flights.

use std::cell::Cell;

use jiff::SignedDuration;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::http;
use crate::domain::Location;
use crate::domain::time::{Timestamp, now};
use crate::services::geography::Areas;

pub const ACCOUNTS: usize = 500;
pub const DRONES: usize = 500;

const SEED: u64 = 7;
/// Degrees; about two kilometres and a half at most.
const WAY: f64 = 0.016;
const WEEKS: usize = 4;
const MINUTES: usize = WEEKS * 7 * 24 * 60;
/// A large prime: its multiples visit all minutes before they repeat.
const STRIDE: usize = 1_000_003;
/// How many different requests there are at least.
const PLACES: usize = 6_400;
/// Stands where a pickup time goes; of its length.
const TIME: &str = "0000-00-00T00:00:00Z";

struct Template {
    bytes: Vec<u8>,
    /// Where the pickup times go.
    times: Vec<usize>,
}

/// Calls of one kind, without end.
pub struct Workload {
    templates: Vec<Template>,
    minutes: Vec<String>,
    next: Cell<usize>,
    next_minute: Cell<usize>,
    /// Requests in one call.
    pub batch: u64,
}

impl Workload {
    /// Calls of `path` with one request each, or with `batch` of them if that is more than one.
    ///
    /// # Errors
    /// When the built-in areas cannot be read.
    pub fn new(path: &str, batch: usize) -> anyhow::Result<Self> {
        let mut places = Places::new(SEED)?;
        let templates = (0..PLACES.div_ceil(batch)).map(|_| template(path, batch, &mut places)).collect();
        let minutes = pickups(now());
        let zero = Cell::new(0);
        Ok(Self { templates, minutes, next: zero.clone(), next_minute: zero, batch: batch as u64 })
    }

    /// Writes the next call into the buffer, in place of what is there.
    pub fn next(&self, buffer: &mut Vec<u8>) {
        let next = self.next.get();
        self.next.set(next.wrapping_add(1));
        let template = &self.templates[next % self.templates.len()];
        buffer.clear();
        buffer.extend_from_slice(&template.bytes);
        for place in &template.times {
            let minute = (self.next_minute.get() + STRIDE) % self.minutes.len();
            self.next_minute.set(minute);
            buffer[*place..place + TIME.len()].copy_from_slice(self.minutes[minute].as_bytes());
        }
    }
}

/// The times of pickup, from two hours from now on.
fn pickups(now: Timestamp) -> Vec<String> {
    let first = now + SignedDuration::from_hours(2);
    let at = |minute: usize| first + SignedDuration::from_mins(i64::try_from(minute).unwrap_or_default());
    (0..MINUTES).map(|minute| at(minute).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).collect()
}

fn template(path: &str, batch: usize, places: &mut Places) -> Template {
    let body = (0..batch).map(|_| places.request()).collect::<Vec<_>>().join("\n");
    let content_type = if batch > 1 { "application/x-ndjson" } else { "application/json" };
    let bytes = http::request("POST", path, content_type, body.as_bytes());
    let times = memchr::memmem::find_iter(&bytes, TIME.as_bytes()).collect();
    Template { bytes, times }
}

/// Places in the service area, the same ones every time.
pub struct Places {
    areas: Areas,
    random: StdRng,
}

impl Places {
    /// # Errors
    /// When the built-in areas cannot be read.
    pub fn new(seed: u64) -> anyhow::Result<Self> {
        Ok(Self { areas: Areas::load("")?, random: StdRng::seed_from_u64(seed) })
    }

    /// A place around a middle. The tries are many enough that one hits, whatever the area's shape.
    fn near(&mut self, middle: Location, latitude: f64, longitude: f64) -> Location {
        for _ in 0..1_000 {
            let place = Location {
                latitude: round(middle.latitude + self.random.random_range(-latitude..latitude)),
                longitude: round(middle.longitude + self.random.random_range(-longitude..longitude)),
            };
            if self.areas.contains(place) {
                return place;
            }
        }
        middle
    }

    pub fn anywhere(&mut self) -> Location {
        self.near(Location { latitude: 47.62, longitude: -122.25 }, 0.13, 0.2)
    }

    fn request(&mut self) -> String {
        let pickup = self.anywhere();
        let drop_off = self.near(pickup, WAY, WAY * 1.5);
        let weight = f64::from(self.random.random_range(5..50_u8)) / 10.0;
        json!({
            "ownerId": account(self.random.random_range(0..ACCOUNTS)),
            "pickupLocation": pickup,
            "dropOffLocation": drop_off,
            "pickupTime": TIME,
            "expedited": self.random.random_range(0..10) == 0,
            "confirmationRequired": "None",
            "packageInfo": {"size": "Small", "weight": weight, "tag": "bench"},
        })
        .to_string()
    }
}

#[must_use]
pub fn account(number: usize) -> String {
    format!("bench-{number}")
}

/// To about ten metres, as a client would.
fn round(degrees: f64) -> f64 {
    (degrees * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Draft;

    fn bodies(call: &[u8]) -> Vec<&[u8]> {
        let start = memchr::memmem::find(call, b"\r\n\r\n").unwrap() + 4;
        call[start..].split(|b| *b == b'\n').collect()
    }

    #[test]
    fn every_request_is_one_that_the_server_takes() {
        for batch in [1, 100] {
            let workload = Workload::new("/x", batch).unwrap();
            let mut call = Vec::new();
            for _ in 0..20 {
                workload.next(&mut call);
                let items = bodies(&call);
                assert_eq!(items.len(), batch);
                for item in items {
                    Draft::read(item, now()).unwrap();
                }
            }
        }
    }

    #[test]
    fn pickups_are_spread_and_differ_from_call_to_call() {
        let workload = Workload::new("/x", 100).unwrap();
        let mut seen = std::collections::HashSet::new();
        let mut call = Vec::new();
        for _ in 0..100 {
            workload.next(&mut call);
            seen.extend(bodies(&call).into_iter().map(<[u8]>::to_vec));
        }
        assert_eq!(seen.len(), 10_000);
    }
}
