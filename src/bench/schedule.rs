//! When arrivals are due. An open-loop load keeps to its schedule whatever the server does, and latency counts from
//! the time an arrival was due: a server that stalls is charged for everybody who had to wait, not only for the one
//! whose call was under way.

use std::time::Duration;

/// A rate that is kept for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Arrivals per second.
    pub rate: f64,
    pub seconds: f64,
}

impl Phase {
    /// Whole arrivals, so that where a phase ends nothing is owed.
    fn arrivals(&self) -> u64 {
        whole(self.rate * self.seconds)
    }
}

/// Phases one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule(Vec<Phase>);

impl Schedule {
    #[must_use]
    pub fn new(phases: Vec<Phase>) -> Self {
        Self(phases)
    }

    /// One rate all the time.
    #[must_use]
    pub fn steady(rate: f64, seconds: f64) -> Self {
        Self(vec![Phase { rate, seconds }])
    }

    #[must_use]
    pub fn arrivals(&self) -> u64 {
        self.0.iter().map(Phase::arrivals).sum()
    }

    #[must_use]
    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(self.0.iter().map(|phase| phase.seconds).sum())
    }

    /// When the arrival of this number, from 0 on, is due; none when there are no more.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn due(&self, arrival: u64) -> Option<Duration> {
        let (mut left, mut begins) = (arrival, 0.0);
        for phase in &self.0 {
            if left < phase.arrivals() {
                return Some(Duration::from_secs_f64(begins + left as f64 / phase.rate));
            }
            left -= phase.arrivals();
            begins += phase.seconds;
        }
        None
    }

    /// How many arrivals are due by a time.
    #[must_use]
    pub fn due_by(&self, elapsed: Duration) -> u64 {
        let mut left = elapsed.as_secs_f64();
        let mut due = 0;
        for phase in &self.0 {
            if left < phase.seconds {
                return due + (whole(left * phase.rate) + 1).min(phase.arrivals());
            }
            due += phase.arrivals();
            left -= phase.seconds;
        }
        due
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast from a float is cut to the range")]
fn whole(count: f64) -> u64 {
    count as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spike() -> Schedule {
        let phase = |rate, seconds| Phase { rate, seconds };
        Schedule::new(vec![phase(100.0, 2.0), phase(500.0, 1.0), phase(100.0, 1.0)])
    }

    #[test]
    fn arrivals_are_evenly_spread_within_a_phase() {
        let schedule = spike();
        assert_eq!(schedule.arrivals(), 800);
        assert_eq!(schedule.length(), Duration::from_secs(4));
        for (arrival, due) in [(0, 0), (1, 10), (199, 1990), (200, 2000), (201, 2002), (700, 3000), (799, 3990)] {
            assert_eq!(schedule.due(arrival), Some(Duration::from_millis(due)), "{arrival}");
        }
        assert_eq!(schedule.due(800), None);
    }

    #[test]
    fn both_views_agree() {
        let schedule = spike();
        for arrival in 0..schedule.arrivals() {
            let due = schedule.due(arrival).unwrap();
            assert!(schedule.due_by(due + Duration::from_micros(1)) > arrival, "{arrival}");
        }
        assert_eq!(schedule.due_by(Duration::ZERO), 1);
        assert_eq!(schedule.due_by(Duration::from_secs(60)), 800);
    }
}
