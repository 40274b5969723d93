//! What became of a load: counts, and latencies in HDR histograms, for the whole and for every second of it.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};

use super::http::CallError;

/// Microseconds up to two minutes, beyond every time-out.
const LONGEST: u64 = 120_000_000;
const DIGITS: u8 = 3;
/// The histogram of one second is coarser: there are many of them.
const DIGITS_OF_A_SECOND: u8 = 2;

/// One second of the load, by the time its calls were due.
#[derive(Clone)]
pub struct Second {
    pub accepted: u64,
    pub latency: Histogram<u64>,
}

#[derive(Clone)]
pub struct Tally {
    /// Requests that were answered 202, those of batches counted one by one.
    pub accepted: u64,
    /// Requests that were answered otherwise, by the status. A rejected item of a batch counts as 422.
    pub refused: BTreeMap<u16, u64>,
    /// Requests without an answer in time.
    pub timed_out: u64,
    /// Requests whose connection failed.
    pub broken: u64,
    /// How long the load was on.
    pub elapsed: Duration,
    /// Of calls that were answered 202, in microseconds from when they were due.
    pub latency: Histogram<u64>,
    pub seconds: Vec<Second>,
}

impl Tally {
    /// # Errors
    /// When the histogram's bounds make no sense, which a test rules out.
    pub fn new() -> Result<Self, CreationError> {
        Ok(Self {
            accepted: 0,
            refused: BTreeMap::new(),
            timed_out: 0,
            broken: 0,
            elapsed: Duration::ZERO,
            latency: Histogram::new_with_bounds(1, LONGEST, DIGITS)?,
            seconds: Vec::new(),
        })
    }

    /// A call of `asked` requests was answered 202 for `accepted` of them, `took` after it was due at `due`.
    pub fn accept(&mut self, asked: u64, accepted: u64, due: Duration, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(LONGEST);
        self.accepted += accepted;
        self.latency.saturating_record(micros);
        if asked > accepted {
            *self.refused.entry(422).or_default() += asked - accepted;
        }
        let second = usize::try_from(due.as_secs()).unwrap_or(usize::MAX);
        while self.seconds.len() <= second {
            match Histogram::new_with_bounds(1, LONGEST, DIGITS_OF_A_SECOND) {
                Ok(latency) => self.seconds.push(Second { accepted: 0, latency }),
                Err(_) => return,
            }
        }
        self.seconds[second].accepted += accepted;
        self.seconds[second].latency.saturating_record(micros);
    }

    pub fn refuse(&mut self, asked: u64, status: u16) {
        *self.refused.entry(status).or_default() += asked;
    }

    pub fn fail(&mut self, asked: u64, error: &CallError) {
        match error {
            CallError::TimedOut => self.timed_out += asked,
            CallError::Broken(_) => self.broken += asked,
        }
    }

    /// Requests that were not taken, whatever the reason but time.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.refused.values().sum::<u64>() + self.broken
    }

    /// Accepted requests per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        per_second(self.accepted, self.elapsed)
    }

    /// The latency, in milliseconds, that this share of the calls was not slower than.
    #[must_use]
    pub fn millis(&self, quantile: f64) -> f64 {
        millis(&self.latency, quantile)
    }

    /// Adds another run of the same load.
    ///
    /// # Errors
    /// When the histograms do not fit together, which a test rules out.
    pub fn add(&mut self, other: &Self) -> Result<(), hdrhistogram::AdditionError> {
        self.latency.add(&other.latency)?;
        self.accepted += other.accepted;
        self.timed_out += other.timed_out;
        self.broken += other.broken;
        self.elapsed += other.elapsed;
        for (status, count) in &other.refused {
            *self.refused.entry(*status).or_default() += count;
        }
        self.seconds.extend(other.seconds.iter().cloned());
        Ok(())
    }
}

#[must_use]
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

#[must_use]
#[allow(clippy::cast_precision_loss, reason = "microseconds are far below 2^53")]
pub fn millis(latency: &Histogram<u64>, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn runs_add_up() {
        let (mut all, mut more) = (Tally::new().unwrap(), Tally::new().unwrap());
        for i in 1..=50 {
            all.accept(1, 1, ms(i * 50), ms(i));
            more.accept(10, 9, ms(i * 50), ms(50 + i));
        }
        more.refuse(10, 429);
        more.fail(10, &CallError::TimedOut);
        more.fail(10, &CallError::Broken("reset".to_owned()));
        (all.elapsed, more.elapsed) = (ms(2000), ms(3000));
        all.add(&more).unwrap();
        assert_eq!((all.accepted, all.timed_out, all.dropped()), (500, 10, 50 + 10 + 10));
        assert_eq!(all.refused, BTreeMap::from([(422, 50), (429, 10)]));
        assert!((all.rate() - 100.0).abs() < 1e-9);
        assert!((all.millis(0.5) - 50.0).abs() < 0.1, "{}", all.millis(0.5));
        assert!((all.millis(1.0) - 100.0).abs() < 0.2, "{}", all.millis(1.0));
        assert_eq!(all.seconds.iter().map(|second| second.accepted).sum::<u64>(), 500);
    }

    #[test]
    fn a_latency_beyond_the_bounds_counts_as_the_longest() {
        let mut tally = Tally::new().unwrap();
        tally.accept(1, 1, ms(0), Duration::from_secs(3600));
        assert!(tally.millis(1.0) >= 119_000.0);
    }
}
