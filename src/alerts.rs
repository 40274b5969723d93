//! What an operator must know of: one alert for each kind and subject, raised again and again without growing.
//! An alert is a log line, a metric and an item of the operations API. docs/OPERATIONS.md says of each kind what it
//! means and what to do.

use std::sync::Arc;

use dashmap::DashMap;
use serde::Serialize;

use crate::domain::time::{Timestamp, now};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum AlertKind {
    /// An actor ended and was started again.
    ActorRestarted,
    /// Entries of a stream were gone before they were read.
    StreamGap,
    /// A partition's stream was missing and was made anew.
    StreamMissing,
    /// An entry of a stream is damaged, and nothing behind it is read.
    StreamDamaged,
    /// An operation could not be parsed, or its delivery's record could not, and was set aside.
    DeadLetter,
    /// Undoing a delivery was given up.
    WorkflowStuck,
    /// A circuit breaker opened.
    BreakerOpen,
    /// A message to an owner was given up.
    NotificationFailed,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    pub kind: AlertKind,
    /// What it is about: an actor, a partition, a delivery.
    pub subject: String,
    pub text: String,
    pub count: u64,
    pub first_at: Timestamp,
    pub last_at: Timestamp,
}

/// More subjects than this are counted under one, so that alerts stay bounded whatever goes wrong.
const SUBJECTS_KEPT: usize = 1_000;

#[derive(Clone, Default)]
pub struct Alerts {
    raised: Arc<DashMap<(AlertKind, String), Alert>>,
}

impl Alerts {
    pub fn raise(&self, kind: AlertKind, subject: impl Into<String>, text: impl Into<String>) {
        let (subject, text, at) = (subject.into(), text.into(), now());
        tracing::error!(?kind, subject, "{text}");
        metrics::counter!(crate::metrics::ALERTS, "kind" => format!("{kind:?}")).increment(1);
        let full = self.raised.len() >= SUBJECTS_KEPT && !self.raised.contains_key(&(kind, subject.clone()));
        let subject = if full { "(others)".to_owned() } else { subject };
        let mut alert = self.raised.entry((kind, subject.clone())).or_insert_with(|| Alert {
            kind,
            subject,
            text: String::new(),
            count: 0,
            first_at: at,
            last_at: at,
        });
        alert.count += 1;
        alert.last_at = at;
        alert.text = text;
    }

    /// The cause is gone.
    pub fn clear(&self, kind: AlertKind, subject: &str) {
        self.raised.remove(&(kind, subject.to_owned()));
    }

    /// Newest first.
    #[must_use]
    pub fn list(&self) -> Vec<Alert> {
        let mut all: Vec<Alert> = self.raised.iter().map(|a| a.value().clone()).collect();
        all.sort_by(|a, b| b.last_at.cmp(&a.last_at).then_with(|| a.subject.cmp(&b.subject)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_are_counted_and_bounded() {
        let alerts = Alerts::default();
        for i in 0..2 * SUBJECTS_KEPT {
            alerts.raise(AlertKind::DeadLetter, format!("d-{i}"), "unreadable");
        }
        alerts.raise(AlertKind::DeadLetter, "d-0", "unreadable again");
        assert!(alerts.list().len() <= SUBJECTS_KEPT + 1);
        let first = alerts.list().into_iter().find(|a| a.subject == "d-0").unwrap();
        assert_eq!((first.count, first.text.as_str()), (2, "unreadable again"));
        alerts.clear(AlertKind::DeadLetter, "d-0");
        assert!(!alerts.list().iter().any(|a| a.subject == "d-0"));
    }
}
