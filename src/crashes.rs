//! The process dies on purpose at a named point, as `kill -9` would have it: nothing is unwound, flushed or told.
//!
//! Random kills seldom fall between two lines of code. These do, so that every row of the crash table in
//! `docs/ARCHITECTURE.md` can be tried. There is one process to end, so there is one place that knows whether and where;
//! unless the settings name a point, passing one costs a look at an empty cell.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::config::Crashes;
use crate::domain::StepName;

/// Where the process can be made to die.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    #[default]
    #[serde(rename = "")]
    Nowhere,
    /// A step of the scheduling was answered as done; its record does not say so yet.
    AccountDone,
    PackageDone,
    TransportDone,
    DroneDone,
    DeliveryDone,
    /// The scheduler saved records; nobody was told.
    RecordSaved,
    /// The failed-operations queue confirmed; the checkpoint does not count them as finished yet.
    HandedOver,
    CheckpointDue,
    CheckpointSaved,
    /// A step's cancel was answered as done; its record does not say so yet.
    DeliveryUndone,
    DroneUndone,
    TransportUndone,
    PackageUndone,
    AccountUndone,
    /// The end of an undoing was saved; it was not told and no notice is queued.
    EndSaved,
    /// All that is left to do is to settle the message of a failed operation.
    SettleDue,
    /// In the mode `queue`: the work queue confirmed; the checkpoint does not count the requests as finished yet.
    Copied,
    /// In the mode `queue`: workflows are through; their messages are not settled.
    WorkDone,
}

/// What the setting may be.
pub const NAMES: &[&str] = &[
    "",
    "account-done",
    "package-done",
    "transport-done",
    "drone-done",
    "delivery-done",
    "record-saved",
    "handed-over",
    "checkpoint-due",
    "checkpoint-saved",
    "delivery-undone",
    "drone-undone",
    "transport-undone",
    "package-undone",
    "account-undone",
    "end-saved",
    "settle-due",
    "copied",
    "work-done",
];

impl Point {
    #[must_use]
    pub fn done(step: StepName) -> Self {
        match step {
            StepName::Account => Self::AccountDone,
            StepName::Package => Self::PackageDone,
            StepName::Transport => Self::TransportDone,
            StepName::Drone => Self::DroneDone,
            StepName::Delivery => Self::DeliveryDone,
        }
    }

    #[must_use]
    pub fn undone(step: StepName) -> Self {
        match step {
            StepName::Account => Self::AccountUndone,
            StepName::Package => Self::PackageUndone,
            StepName::Transport => Self::TransportUndone,
            StepName::Drone => Self::DroneUndone,
            StepName::Delivery => Self::DeliveryUndone,
        }
    }
}

struct Armed {
    point: Point,
    /// How often it is still to be passed.
    left: AtomicU64,
}

static ARMED: OnceLock<Armed> = OnceLock::new();

/// To be called once, before anything moves.
pub fn arm(settings: &Crashes) {
    if settings.point != Point::Nowhere {
        let armed = Armed { point: settings.point, left: AtomicU64::new(settings.after) };
        // Only the first call counts, and a process has only one.
        let _ = ARMED.set(armed);
    }
}

/// Dies here if that is what the settings ask for.
pub fn at(point: Point) {
    if let Some(armed) = ARMED.get()
        && armed.point == point
        && armed.left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        tracing::error!(point = NAMES[point as usize], "a crash on purpose");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_its_name() {
        let read = |name: &&str| toml::Value::String((*name).to_owned()).try_into::<Point>().unwrap();
        let points: Vec<Point> = NAMES.iter().map(read).collect();
        assert_eq!(points.first(), Some(&Point::Nowhere));
        let last = NAMES.len() - 1;
        assert_eq!(points[last] as usize, last, "a point without a name, or names in another order");
        for step in StepName::ALL {
            for (point, suffix) in [(Point::done(step), "done"), (Point::undone(step), "undone")] {
                assert_eq!(NAMES[point as usize], format!("{}-{suffix}", step.as_str()));
            }
        }
    }
}
