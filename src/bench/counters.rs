//! What the server itself has counted: its `/metrics`, read and subtracted.

use std::collections::BTreeMap;

use crate::metrics;

/// One reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    pub accepted: u64,
    pub scheduled: u64,
    /// Workflows that a scheduler is through with, however they ended.
    pub finished: u64,
    /// Requests that were read again though they were through.
    pub replayed: u64,
    /// The accept-to-`Scheduled` times: how many took up to so many milliseconds.
    pub buckets: BTreeMap<u64, u64>,
}

impl Counters {
    /// Reads Prometheus's text format. What is not there counts as nothing.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut counters = Self::default();
        let bucket_name = format!("{}_bucket", metrics::ACCEPT_TO_SCHEDULED);
        for (name, labels, value) in text.lines().filter_map(sample) {
            if name == metrics::ACCEPTED {
                counters.accepted += value;
            } else if name == metrics::REPLAYED {
                counters.replayed += value;
            } else if name == metrics::WORKFLOWS {
                match label(labels, "status") {
                    Some("Scheduled") => {
                        counters.scheduled += value;
                        counters.finished += value;
                    }
                    // It was scheduled before.
                    Some("Completed") => {}
                    _ => counters.finished += value,
                }
            } else if name == bucket_name
                && let Some(le) = label(labels, "le").and_then(|le| le.parse::<f64>().ok())
            {
                counters.buckets.insert(millis(le), value);
            }
        }
        counters
    }

    /// What was counted since an earlier reading of the same process.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |le: &u64| earlier.buckets.get(le).copied().unwrap_or(0);
        Self {
            accepted: self.accepted.saturating_sub(earlier.accepted),
            scheduled: self.scheduled.saturating_sub(earlier.scheduled),
            finished: self.finished.saturating_sub(earlier.finished),
            replayed: self.replayed.saturating_sub(earlier.replayed),
            buckets: self.buckets.iter().map(|(le, count)| (*le, count.saturating_sub(before(le)))).collect(),
        }
    }

    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.accepted.saturating_sub(self.finished)
    }

    /// The time in milliseconds, at most, that this share of the requests took to be scheduled.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn scheduled_within(&self, quantile: f64) -> Option<f64> {
        let all = *self.buckets.last_key_value()?.1 as f64;
        let enough = |count: u64| all > 0.0 && count as f64 >= quantile * all;
        let (le, _) = self.buckets.iter().find(|(_, count)| enough(**count))?;
        Some(if *le == u64::MAX { f64::INFINITY } else { *le as f64 })
    }
}

/// `name{labels} value`
fn sample(line: &str) -> Option<(&str, &str, u64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    Some((name, labels, whole(value.parse().ok()?)))
}

fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let found = labels.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\""));
    found.and_then(|rest| rest.split('"').next())
}

fn millis(seconds: f64) -> u64 {
    if seconds.is_finite() { whole((seconds * 1000.0).round()) } else { u64::MAX }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are never negative")]
fn whole(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# TYPE drone_requests_accepted_total counter
drone_requests_accepted_total 1000

drone_workflows_total{status="Scheduled"} 890
drone_workflows_total{status="Compensating"} 10
drone_workflows_total{status="Completed"} 300
drone_accept_to_scheduled_seconds_bucket{le="0.001"} 0
drone_accept_to_scheduled_seconds_bucket{le="0.5"} 800
drone_accept_to_scheduled_seconds_bucket{le="2.5"} 889
drone_accept_to_scheduled_seconds_bucket{le="+Inf"} 890
drone_accept_to_scheduled_seconds_sum 17
"#;

    #[test]
    fn counters_are_read_and_subtracted() {
        let read = Counters::parse(TEXT);
        assert_eq!((read.accepted, read.scheduled, read.finished, read.backlog()), (1000, 890, 900, 100));
        assert_eq!(read.scheduled_within(0.5), Some(500.0));
        assert_eq!(read.scheduled_within(0.99), Some(2500.0));
        assert_eq!(read.scheduled_within(1.0), Some(f64::INFINITY));
        let nothing = read.since(&read);
        assert_eq!((nothing.accepted, nothing.backlog(), nothing.scheduled_within(0.5)), (0, 0, None));
        assert_eq!(Counters::parse("garbage\n{} x"), Counters::default());
    }
}
