//! When each drone is taken. A drone's calendar is kept in buckets of six hours, one small value each; a reservation
//! stands in every bucket it touches. Two that overlap share a moment, so they share a bucket; whoever writes a
//! bucket checks that it is as it was read, so of two that overlap only one is ever written.
//!
//! [`Calendars`] is what this process knows of the buckets. It may be out of date: the checks find that out, and what
//! proved wrong is forgotten and read again. `read_in` says in which call a bucket was read, for those decisions that
//! nobody checks afterwards (a refusal writes nothing).

use std::sync::Arc;

use bytes::Bytes;

use super::bucket;
use crate::domain::{DeliveryId, Map};
use crate::store::{Expect, Txn};

/// The length of a bucket in seconds.
pub const BUCKET: i64 = 6 * 60 * 60;

/// A stretch of time, in seconds since the epoch; the end does not belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    pub from: i64,
    pub until: i64,
}

impl Span {
    fn buckets(self) -> impl Iterator<Item = i64> {
        self.from.div_euclid(BUCKET)..=(self.until - 1).div_euclid(BUCKET)
    }
}

/// One bucket of one drone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub drone: Arc<str>,
    pub bucket: i64,
}

impl Place {
    #[must_use]
    pub fn key(&self) -> String {
        format!("cal/{}/{}", self.drone, self.bucket)
    }
}

/// The ordered set of the buckets that a drone has.
#[must_use]
pub fn index(drone: &str) -> String {
    format!("cals/{drone}")
}

/// A bucket's name in its drone's index: of one width, so that the order of names is that of time.
#[must_use]
pub fn member(bucket: i64) -> String {
    format!("{bucket:010}")
}

/// The bucket that a moment is in.
#[must_use]
pub fn bucket_of(second: i64) -> i64 {
    second.div_euclid(BUCKET)
}

#[derive(Clone, Debug, Default)]
struct Bucket {
    /// As the store has it; empty when it has none.
    value: Bytes,
    read_in: u64,
    /// It cannot be read: nothing of the drone's time in it is free, nor can be freed.
    damaged: bool,
}

impl Bucket {
    /// About how much memory it takes, its place in the map included.
    fn bytes(&self) -> usize {
        128 + self.value.len()
    }
}

/// What one transaction changes of one bucket.
#[derive(Debug)]
pub struct Change {
    pub place: Place,
    before: Bytes,
    after: Bytes,
}

impl Change {
    /// Adds the change to a transaction, on condition that the bucket is what it was taken for.
    #[must_use]
    pub fn write(&self, txn: Txn) -> Txn {
        let (key, drone, bucket) = (self.place.key(), &self.place.drone, self.place.bucket);
        let expected = if self.before.is_empty() { Expect::Absent } else { Expect::Is(self.before.clone()) };
        let txn = txn.check(key.clone(), expected);
        match (self.before.is_empty(), self.after.is_empty()) {
            (true, true) => txn,
            (true, false) => txn.put(key, self.after.clone()).add(index(drone), member(bucket)),
            (false, false) => txn.put(key, self.after.clone()),
            (false, true) => txn.delete(key).remove(index(drone), member(bucket)),
        }
    }
}

/// A bucket that must be read before it can be said.
pub type Missing = Place;

/// Why time could not be freed.
#[derive(Debug, PartialEq, Eq)]
pub enum NotFreed {
    Missing(Vec<Missing>),
    Damaged(Place),
}

#[derive(Debug, Default)]
pub struct Calendars {
    buckets: Map<Place, Bucket>,
    /// About how much memory they take.
    bytes: usize,
    /// Counts the calls, see `read_in`.
    call: u64,
}

impl Calendars {
    /// Begins a call. More than `limit` bytes are not kept from one call to the next.
    pub fn begin(&mut self, limit: usize) -> u64 {
        if self.bytes > limit {
            self.buckets = Map::default();
            self.bytes = 0;
        }
        self.call += 1;
        self.call
    }

    /// Takes over what the store has of a bucket.
    pub fn learn(&mut self, place: Place, value: Option<Bytes>) {
        let value = value.unwrap_or_default();
        let sound = bucket::check(&value);
        if let Err(error) = &sound {
            tracing::error!(key = place.key(), %error, "a drone's calendar cannot be read; the drone is not used there");
        }
        let bucket = Bucket { value, read_in: self.call, damaged: sound.is_err() };
        self.bytes += bucket.bytes();
        let before = self.buckets.insert(place, bucket);
        self.bytes -= before.map_or(0, |bucket| bucket.bytes());
    }

    pub fn forget(&mut self, changes: &[Change]) {
        changes.iter().for_each(|change| self.drop_bucket(&change.place));
    }

    fn drop_bucket(&mut self, place: &Place) {
        let gone = self.buckets.remove(place);
        self.bytes -= gone.map_or(0, |bucket| bucket.bytes());
    }

    /// The earliest moment from `window.from` to `window.until` at which the drone is free for `length` seconds,
    /// told from buckets that were read in call `since` or later.
    ///
    /// # Errors
    /// When a bucket must be read first.
    pub fn earliest(&self, drone: &Arc<str>, window: Span, length: i64, since: u64) -> Result<Option<i64>, Missing> {
        let mut start = window.from;
        let mut place = Place { drone: drone.clone(), bucket: bucket_of(start) };
        while start <= window.until {
            let bucket = match self.buckets.get(&place) {
                Some(bucket) if bucket.read_in >= since => bucket,
                _ => return Err(place),
            };
            if bucket.damaged {
                return Ok(None);
            }
            for taken in bucket::spans(place.bucket, &bucket.value) {
                if taken.from >= start + length {
                    break;
                }
                start = start.max(taken.until);
            }
            // Free as far as this bucket tells; if the stretch ends in a later one, that one is asked too.
            if bucket_of(start + length - 1) <= place.bucket {
                return Ok((start <= window.until).then_some(start));
            }
            place.bucket += 1;
        }
        Ok(None)
    }

    /// Takes the time, which must be free and known; says what that changes.
    pub fn take(&mut self, drone: &Arc<str>, span: Span, id: &DeliveryId) -> Vec<Change> {
        self.edit(drone, span, |bucket, number| {
            bucket.value = bucket::with(number, &bucket.value, span, id);
        })
    }

    /// Frees the time; says what that changes.
    ///
    /// # Errors
    /// When a bucket must be read first, or cannot be read.
    pub fn free(&mut self, drone: &Arc<str>, span: Span, id: &DeliveryId) -> Result<Vec<Change>, NotFreed> {
        let place = |bucket| Place { drone: drone.clone(), bucket };
        let missing: Vec<_> = span.buckets().map(place).filter(|place| !self.buckets.contains_key(place)).collect();
        if !missing.is_empty() {
            return Err(NotFreed::Missing(missing));
        }
        if let Some(place) = span.buckets().map(place).find(|place| self.buckets[place].damaged) {
            // It may be sound by the next try.
            self.drop_bucket(&place);
            return Err(NotFreed::Damaged(place));
        }
        Ok(self.edit(drone, span, |bucket, number| bucket.value = bucket::without(number, &bucket.value, id)))
    }

    /// Takes changes back that were not written.
    pub fn restore(&mut self, changes: &[Change]) {
        for change in changes {
            let read_in = self.buckets.get(&change.place).map_or(self.call, |bucket| bucket.read_in);
            self.learn(change.place.clone(), Some(change.before.clone()));
            if let Some(bucket) = self.buckets.get_mut(&change.place) {
                bucket.read_in = read_in;
            }
        }
    }

    fn edit(&mut self, drone: &Arc<str>, span: Span, mut edit: impl FnMut(&mut Bucket, i64)) -> Vec<Change> {
        let change = |number| {
            let place = Place { drone: drone.clone(), bucket: number };
            let bucket = self.buckets.entry(place.clone()).or_insert_with(|| {
                self.bytes += Bucket::default().bytes();
                Bucket::default()
            });
            let before = bucket.value.clone();
            self.bytes -= bucket.bytes();
            edit(bucket, number);
            self.bytes += bucket.bytes();
            Change { place, before, after: bucket.value.clone() }
        };
        span.buckets().map(change).collect()
    }
}

/// Two changes of one bucket in one transaction, the later on top of the earlier, are one.
#[must_use]
pub fn merge(earlier: Vec<Change>, later: Vec<Change>) -> Vec<Change> {
    let mut merged = earlier;
    for change in later {
        match merged.iter_mut().find(|known| known.place == change.place) {
            Some(known) => known.after = change.after,
            None => merged.push(change),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(buckets: std::ops::Range<i64>) -> (Calendars, Arc<str>) {
        let drone: Arc<str> = "d1".into();
        let mut calendars = Calendars::default();
        for bucket in buckets {
            calendars.learn(Place { drone: drone.clone(), bucket }, None);
        }
        (calendars, drone)
    }

    fn id(text: &str) -> DeliveryId {
        DeliveryId::parse(text).unwrap()
    }

    #[test]
    fn the_first_gap_that_is_long_enough_is_found() {
        let (mut calendars, drone) = known(0..1);
        calendars.take(&drone, Span { from: 100, until: 200 }, &id("a"));
        calendars.take(&drone, Span { from: 250, until: 300 }, &id("b"));
        let window = Span { from: 50, until: 1000 };
        assert_eq!(calendars.earliest(&drone, window, 50, 0), Ok(Some(50)));
        assert_eq!(calendars.earliest(&drone, window, 51, 0), Ok(Some(300)));
        assert_eq!(calendars.earliest(&drone, Span { from: 120, until: 1000 }, 50, 0), Ok(Some(200)));
        assert_eq!(calendars.earliest(&drone, Span { from: 120, until: 199 }, 50, 0), Ok(None));
    }

    #[test]
    fn a_reservation_over_a_bucket_s_edge_is_seen_from_both_sides() {
        let (mut calendars, drone) = known(0..3);
        let changes = calendars.take(&drone, Span { from: BUCKET - 10, until: BUCKET + 10 }, &id("a"));
        assert_eq!(changes.len(), 2);
        assert_eq!(
            calendars.earliest(&drone, Span { from: BUCKET - 30, until: 2 * BUCKET }, 25, 0),
            Ok(Some(BUCKET + 10))
        );
        assert_eq!(calendars.earliest(&drone, Span { from: BUCKET, until: 2 * BUCKET }, 5, 0), Ok(Some(BUCKET + 10)));
        let freed = calendars.free(&drone, Span { from: BUCKET - 10, until: BUCKET + 10 }, &id("a")).unwrap();
        assert!(freed.iter().all(|change| change.after.is_empty()));
        assert_eq!(calendars.earliest(&drone, Span { from: BUCKET, until: 2 * BUCKET }, 5, 0), Ok(Some(BUCKET)));
    }

    #[test]
    fn what_is_kept_is_bounded_and_counted_right() {
        let (mut calendars, drone) = known(0..50);
        let span = |n: i64| Span { from: n * BUCKET + 10, until: n * BUCKET + 20 };
        for n in 0..50 {
            calendars.take(&drone, span(n), &id("a"));
        }
        let changes = calendars.take(&drone, span(60), &id("b"));
        calendars.forget(&changes);
        calendars.free(&drone, span(3), &id("a")).unwrap();
        assert_eq!(calendars.bytes, calendars.buckets.values().map(Bucket::bytes).sum::<usize>());
        let all = calendars.bytes;
        calendars.begin(all);
        assert_eq!(calendars.buckets.len(), 50);
        calendars.begin(all - 1);
        assert_eq!((calendars.buckets.len(), calendars.bytes), (0, 0));
    }

    #[test]
    fn a_drone_is_not_used_where_its_calendar_is_damaged() {
        let (mut calendars, drone) = known(0..2);
        let span = Span { from: 100, until: 200 };
        calendars.learn(Place { drone: drone.clone(), bucket: 0 }, Some("no bucket".into()));
        assert_eq!(calendars.earliest(&drone, Span { from: 50, until: 1000 }, 50, 0), Ok(None));
        assert_eq!(calendars.earliest(&drone, Span { from: BUCKET, until: 2 * BUCKET - 10 }, 5, 0), Ok(Some(BUCKET)));
        assert!(matches!(calendars.free(&drone, span, &id("a")), Err(NotFreed::Damaged(place)) if place.bucket == 0));
        assert!(matches!(calendars.free(&drone, span, &id("a")), Err(NotFreed::Missing(_))), "it is read again");
        assert_eq!(calendars.bytes, calendars.buckets.values().map(Bucket::bytes).sum::<usize>());
    }

    #[test]
    fn what_is_not_known_is_asked_for() {
        let (mut calendars, drone) = known(0..1);
        let asked = |calendars: &Calendars, since| {
            calendars.earliest(&drone, Span { from: BUCKET - 10, until: BUCKET }, 20, since).unwrap_err().bucket
        };
        assert_eq!(asked(&calendars, 0), 1);
        let call = calendars.begin(10);
        assert_eq!(asked(&calendars, call), 0);
    }
}
