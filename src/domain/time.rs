//! Wall-clock time. Everything is kept to the millisecond: finer digits only make records longer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use jiff::Timestamp;

/// Now, to the millisecond.
#[must_use]
pub fn now() -> Timestamp {
    from_millis(now_millis())
}

/// Milliseconds since the epoch.
#[must_use]
pub fn now_millis() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The time that many milliseconds after the epoch; times past what a calendar can hold are cut to its end.
#[must_use]
pub fn from_millis(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
}

/// `time` moved on by `by`, cut to the end of the calendar.
#[must_use]
pub fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}
