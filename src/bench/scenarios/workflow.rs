//! From end to end: a number of requests is posted as fast as the server takes them, and the clock stops when the last
//! is scheduled. Then a part of that rate is kept up for a while: the time from accept to `Scheduled` without a backlog.

use std::rc::Rc;

use clap::Args;

use super::flood::{self, BATCH, Flood, unfinished};
use super::{MOST_REQUESTS, MOST_RUNS, between};
use crate::bench::load::{self, Pace};
use crate::bench::report::{Row, Table};
use crate::bench::schedule::Schedule;
use crate::bench::target::Server;
use crate::bench::watch::Watch;
use crate::bench::workload::Workload;
use crate::bench::{Bench, Found};
use crate::http::batch::MAX_ITEMS;

#[derive(Debug, Args)]
pub struct Workflow {
    /// Requests of one run
    #[arg(long, default_value_t = 200_000, value_parser = between(1, MOST_REQUESTS))]
    requests: u64,
    /// Runs; each goes on with what the ones before have left behind
    #[arg(long, default_value_t = 3, value_parser = between(1, MOST_RUNS))]
    runs: u32,
    /// Requests in a batch
    #[arg(long, default_value_t = flood::SIZE, value_parser = between(1, MAX_ITEMS))]
    batch: usize,
    /// The part of the measured rate at which the time to Scheduled is measured
    #[arg(long, default_value_t = 0.5, value_parser = between(0.01, 1.0))]
    part: f64,
}

impl Workflow {
    pub(super) async fn run(&self, bench: &Bench) -> anyhow::Result<Found> {
        let server = bench.start_seeded(&[]).await?;
        let mut found = Found::default();
        let mut rows = Vec::new();
        let mut best: f64 = 0.0;
        for run in 1..=bench.size(self.runs, 1) {
            let requests = bench.size(self.requests, self.requests.min(2_000));
            let flood = Flood::run(bench, &server, self.batch, requests, &format!("run {run}")).await?;
            best = best.max(flood.rate());
            rows.push(flood.add_to(Row::default().with("run", run), &mut found));
            found.charts.extend(flood.charts);
        }
        found
            .tables
            .push(Table { title: "As fast as it goes, from the first post to the last Scheduled".into(), rows });
        self.steady(bench, &server, best * self.part, &mut found).await?;
        Ok(found)
    }

    async fn steady(&self, bench: &Bench, server: &Server, rate: f64, found: &mut Found) -> anyhow::Result<()> {
        let workload = Rc::new(Workload::new(BATCH, self.batch)?);
        #[allow(clippy::cast_precision_loss, reason = "a batch is small")]
        let schedule = Schedule::steady(rate / self.batch as f64, bench.size(10.0, 1.0));
        let watch = Watch::start(server, "steady").await?;
        let tally = watch
            .during(async {
                let tally = load::put(bench.client(server), workload, Pace::Open(schedule)).await?;
                watch.until_finished(tally.accepted).await?;
                Ok(tally)
            })
            .await?;
        let counted = watch.counted();
        found.notes.extend(unfinished(&tally, &counted));
        let row = Row::default()
            .with("rate_per_s", rate)
            .with("accepted", tally.accepted)
            .with("scheduled", counted.scheduled)
            .with("accept_p50_ms", tally.millis(0.5))
            .with("accept_p99_ms", tally.millis(0.99))
            .maybe("scheduled_p50_up_to_ms", counted.scheduled_within(0.5))
            .maybe("scheduled_p99_up_to_ms", counted.scheduled_within(0.99))
            .with("highest_backlog", watch.highest_backlog());
        let title = format!("At {:.0} % of that rate, from accept to Scheduled", self.part * 100.0);
        found.tables.push(Table { title, rows: vec![row] });
        Ok(())
    }
}
