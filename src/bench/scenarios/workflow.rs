//! From end to end: a number of requests is posted as fast as the server takes them, and the clock stops when the last
//! is scheduled. Then a part of that rate is kept up for a while: the time from accept to `Scheduled` without a backlog.

use std::rc::Rc;
use std::time::Duration;

use clap::Args;

use super::rates::{per_second, unfinished};
use crate::bench::load::{self, Pace};
use crate::bench::report::{Row, Table};
use crate::bench::schedule::Schedule;
use crate::bench::target::Server;
use crate::bench::watch::Watch;
use crate::bench::workload::Workload;
use crate::bench::{Bench, Found};

const BATCH: &str = "/api/deliveryrequests/batch";

#[derive(Debug, Args)]
pub struct Workflow {
    /// Requests of one run
    #[arg(long, default_value_t = 200_000)]
    requests: u64,
    /// Runs; each goes on with what the ones before have left behind
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// Requests in a batch
    #[arg(long, default_value_t = 100)]
    batch: usize,
    /// Connections that post; few, because the posts are large and the scheduler is to have its share
    #[arg(long, default_value_t = 8)]
    posters: usize,
    /// The part of the measured rate at which the time to Scheduled is measured
    #[arg(long, default_value_t = 0.5)]
    part: f64,
}

impl Workflow {
    pub(super) async fn run(&self, bench: &Bench) -> anyhow::Result<Found> {
        let server = bench.start_seeded(&[]).await?;
        let workload = Rc::new(Workload::new(BATCH, self.batch)?);
        let mut found = Found::default();
        let mut rows = Vec::new();
        let mut best: f64 = 0.0;
        for run in 1..=bench.size(self.runs, 1) {
            let (rate, row) = self.flood(bench, &server, &workload, run, &mut found).await?;
            best = best.max(rate);
            rows.push(row);
        }
        found
            .tables
            .push(Table { title: "As fast as it goes, from the first post to the last Scheduled".into(), rows });
        self.steady(bench, &server, &workload, best * self.part, &mut found).await?;
        Ok(found)
    }

    async fn flood(
        &self,
        bench: &Bench,
        server: &Server,
        workload: &Rc<Workload>,
        run: u32,
        found: &mut Found,
    ) -> anyhow::Result<(f64, Row)> {
        let calls = bench.size(self.requests, self.requests.min(2_000)).div_ceil(self.batch as u64);
        let client = load::Client { connections: self.posters, ..bench.client(server) };
        let watch = Watch::start(server, &format!("run {run}")).await?;
        let cpu = server.usage().unwrap_or_default().cpu;
        let (tally, took) = watch
            .during(async {
                let tally = load::put(client, workload.clone(), Pace::Calls(calls)).await?;
                let took = watch.until_finished(tally.accepted).await?;
                Ok((tally, took))
            })
            .await?;
        let (counted, usage) = (watch.counted(), server.usage());
        let rate = per_second(counted.scheduled, took);
        let cpu = usage.map(|usage| usage.cpu.saturating_sub(cpu).as_secs_f64() * 1e6);
        found.charts.extend(watch.charts());
        found.notes.extend(unfinished(&tally, &counted));
        let row = Row::default()
            .with("run", run)
            .with("accepted", tally.accepted)
            .with("dropped", tally.dropped() + tally.timed_out)
            .with("accepted_per_s", tally.rate())
            .with("scheduled", counted.scheduled)
            .with("seconds", took.as_secs_f64())
            .with("workflows_per_s", rate)
            .maybe("cpu_us_each", cpu.map(|micros| micros / per_second(counted.finished, Duration::from_secs(1))))
            .maybe("peak_mb", usage.map(|usage| usage.peak_bytes / 1_000_000));
        Ok((rate, row))
    }

    async fn steady(
        &self,
        bench: &Bench,
        server: &Server,
        workload: &Rc<Workload>,
        rate: f64,
        found: &mut Found,
    ) -> anyhow::Result<()> {
        #[allow(clippy::cast_precision_loss, reason = "a batch is small")]
        let schedule = Schedule::steady(rate / self.batch as f64, bench.size(10.0, 1.0));
        let watch = Watch::start(server, "steady").await?;
        let tally = watch
            .during(async {
                let tally = load::put(bench.client(server), workload.clone(), Pace::Open(schedule)).await?;
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
