//! Who used the processors: the server, the load itself, and the broker and Redis when they are ours.

use std::time::Duration;

use super::Bench;
use super::process::{self, Usage};
use super::report::Row;
use super::target::Server;

/// Processor time by column of the tables that show it.
pub type Times = Vec<(&'static str, Duration)>;

/// What was used up to the start.
pub struct Costs<'a> {
    bench: &'a Bench,
    server: &'a Server,
    before: Times,
}

impl<'a> Costs<'a> {
    #[must_use]
    pub fn start(bench: &'a Bench, server: &'a Server) -> Self {
        Self { bench, server, before: times(bench, server) }
    }

    /// What was used since the start.
    #[must_use]
    pub fn used(&self) -> Times {
        let now = times(self.bench, self.server).into_iter();
        now.zip(&self.before).map(|((name, after), (_, before))| (name, after.saturating_sub(*before))).collect()
    }
}

fn times(bench: &Bench, server: &Server) -> Times {
    let ours = [("cpu_us_each", server.usage()), ("load_cpu_us_each", Some(process::own_usage()))];
    let ours = ours.into_iter().filter_map(|(name, usage)| Some((name, usage?)));
    let theirs = bench.servers.iter().flat_map(super::private::Servers::usage);
    ours.chain(theirs).map(|(name, usage): (_, Usage)| (name, usage.cpu)).collect()
}

/// The microseconds for each of so many requests.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub fn each(times: &Times, count: u64) -> Row {
    let micros = |time: &Duration| time.as_secs_f64() * 1e6 / count.max(1) as f64;
    times.iter().fold(Row::default(), |row, (name, time)| row.with(name, micros(time)))
}
