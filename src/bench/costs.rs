//! Who used the processors: the server, the load itself, and the broker and Redis when they are ours; and how much of
//! the machine that was. A machine that is shared takes processors away for a while: figures of such a run tell
//! nothing, so how much that was stands beside them.

use std::time::Duration;

use super::Bench;
use super::process::{self, Machine, Usage};
use super::report::Row;
use super::target::Server;

/// What was used in some time, or in several together.
#[derive(Clone, Debug, Default)]
pub struct Used {
    /// Processor time by column of the tables that show it.
    processes: Vec<(&'static str, Duration)>,
    /// Of all that runs here; none where it is not told.
    machine: Option<Machine>,
}

/// What was used up to the start.
pub struct Costs<'a> {
    bench: &'a Bench,
    server: &'a Server,
    before: Used,
}

impl<'a> Costs<'a> {
    #[must_use]
    pub fn start(bench: &'a Bench, server: &'a Server) -> Self {
        Self { bench, server, before: Used::so_far(bench, server) }
    }

    /// What was used since the start.
    #[must_use]
    pub fn used(&self) -> Used {
        Used::so_far(self.bench, self.server).combined(&self.before, Duration::saturating_sub)
    }
}

impl Used {
    fn so_far(bench: &Bench, server: &Server) -> Self {
        let ours = [("cpu_us_each", server.usage()), ("load_cpu_us_each", Some(process::own_usage()))];
        let ours = ours.into_iter().filter_map(|(name, usage)| Some((name, usage?)));
        let theirs = bench.servers.iter().flat_map(super::private::Servers::usage);
        let processes = ours.chain(theirs).map(|(name, usage): (_, Usage)| (name, usage.cpu)).collect();
        Self { processes, machine: process::machine() }
    }

    fn combined(&self, other: &Self, with: impl Fn(Duration, Duration) -> Duration) -> Self {
        let both = self.processes.iter().zip(&other.processes);
        let processes = both.map(|((name, one), (_, other))| (*name, with(*one, *other))).collect();
        let machine = self.machine.zip(other.machine).map(|(one, other)| Machine {
            busy: with(one.busy, other.busy),
            stolen: with(one.stolen, other.stolen),
            all: with(one.all, other.all),
        });
        Self { processes, machine }
    }

    /// This and what was used another time.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if self.processes.is_empty() { other } else { self.combined(&other, |one, other| one + other) }
    }

    /// The microseconds for each of so many requests, and how much of the machine was busy and how much was not to be had.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn each(&self, count: u64) -> Row {
        let micros = |time: &Duration| time.as_secs_f64() * 1e6 / count.max(1) as f64;
        let row = self.processes.iter().fold(Row::default(), |row, (name, time)| row.with(name, micros(time)));
        let percent = |part: fn(&Machine) -> Duration| {
            self.machine.map(|machine| 100.0 * part(&machine).div_duration_f64(machine.all.max(process::TICK)))
        };
        row.maybe("busy_percent", percent(|machine| machine.busy))
            .maybe("stolen_percent", percent(|machine| machine.stolen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(cpu: u64, busy: u64, stolen: u64, all: u64) -> Used {
        let [cpu, busy, stolen, all] = [cpu, busy, stolen, all].map(Duration::from_secs);
        Used { processes: vec![("cpu_us_each", cpu)], machine: Some(Machine { busy, stolen, all }) }
    }

    #[test]
    fn turns_add_up_and_are_told_for_each_request() {
        let turns = Used::default().and(used(1, 3, 1, 5)).and(used(2, 4, 0, 5));
        let row = turns.each(1_000_000);
        let values: Vec<_> = row.0.iter().map(|(name, value)| (*name, value.as_f64().unwrap())).collect();
        assert_eq!(values, [("cpu_us_each", 3.0), ("busy_percent", 70.0), ("stolen_percent", 10.0)]);
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let row = Used { machine: None, ..used(1, 0, 0, 0) }.each(0);
        assert!(row.0[1].1.is_null() && row.0[2].1.is_null());
    }
}
