//! What several scenarios do: post a number of requests as fast as the server takes them, and wait for the last.

use std::rc::Rc;
use std::time::Duration;

use crate::bench::costs::{Costs, Used};
use crate::bench::counters::Counters;
use crate::bench::load::{self, Client, Pace};
use crate::bench::report::{Chart, Row};
use crate::bench::tally::{Tally, per_second};
use crate::bench::target::Server;
use crate::bench::watch::Watch;
use crate::bench::workload::Workload;
use crate::bench::{Bench, Found};

pub const BATCH: &str = "/api/deliveryrequests/batch";
/// The posts are large, so these are enough to keep a backlog in front of the scheduler.
pub const POSTERS: usize = 24;
/// Requests in one post.
pub const SIZE: usize = 100;

/// How a flood went.
pub struct Flood {
    pub tally: Tally,
    pub counted: Counters,
    /// From the first post until the last workflow was through.
    pub took: Duration,
    /// See [`Watch::steady_rate`].
    pub steady_rate: Option<f64>,
    pub used: Used,
    pub peak_mb: Option<u64>,
    pub charts: Vec<Chart>,
}

impl Flood {
    /// Posts at least so many requests and waits until they are through.
    ///
    /// # Errors
    /// When the server stops answering.
    pub async fn run(bench: &Bench, server: &Server, size: usize, requests: u64, label: &str) -> anyhow::Result<Self> {
        let workload = Rc::new(Workload::new(BATCH, size)?);
        let watch = Watch::start(server, label).await?;
        let costs = Costs::start(bench, server);
        let (tally, took) = watch
            .during(async {
                let tally = pour(bench, server, &workload, requests).await?;
                let took = watch.until_finished(tally.accepted).await?;
                Ok((tally, took))
            })
            .await?;
        let (counted, usage) = (watch.counted(), server.usage());
        Ok(Self {
            used: costs.used(),
            peak_mb: usage.map(|usage| usage.peak_bytes / 1_000_000),
            charts: watch.charts(),
            steady_rate: watch.steady_rate(),
            tally,
            counted,
            took,
        })
    }

    /// Workflows that were scheduled, per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        per_second(self.counted.scheduled, self.took)
    }

    /// The figures of a flood behind those that tell it from others; what went wrong is noted.
    pub fn add_to(&self, row: Row, found: &mut Found) -> Row {
        found.notes.extend(unfinished(&self.tally, &self.counted));
        row.with("accepted", self.tally.accepted)
            .with("dropped", self.tally.dropped() + self.tally.timed_out)
            .with("accepted_per_s", self.tally.rate())
            .with("scheduled", self.counted.scheduled)
            .with("seconds", self.took.as_secs_f64())
            .with("workflows_per_s", self.rate())
            .maybe("steady_per_s", self.steady_rate)
            .maybe("peak_mb", self.peak_mb)
            .and(self.used.each(self.counted.finished))
    }
}

/// Posts at least so many requests, and does not wait for what becomes of them.
pub async fn pour(bench: &Bench, server: &Server, workload: &Rc<Workload>, requests: u64) -> anyhow::Result<Tally> {
    let client = Client { connections: POSTERS, ..bench.client(server) };
    load::put(client, workload.clone(), Pace::Calls(requests.div_ceil(workload.batch))).await
}

/// What did not end as it should.
#[must_use]
pub fn unfinished(tally: &Tally, counted: &Counters) -> Vec<String> {
    let mut notes = Vec::new();
    let missing = tally.accepted.saturating_sub(counted.finished);
    if missing > 0 {
        notes.push(format!("{missing} of {} accepted requests were not through at the end", tally.accepted));
    }
    let failed = counted.finished.saturating_sub(counted.scheduled);
    if failed > 0 {
        notes.push(format!("{failed} of {} workflows did not end as Scheduled", counted.finished));
    }
    notes
}
