//! Rates that are kept up, with a spike in them or without: nothing may be dropped or time out, and what piles up must
//! be gone soon after.

use std::rc::Rc;

use clap::Args;

use super::flood::unfinished;
use super::ingest::latencies;
use super::{MOST_PER_SECOND, MOST_SECONDS, between};
use crate::bench::costs::Costs;
use crate::bench::load::{self, Pace};
use crate::bench::report::{Chart, Curve, Row, Table};
use crate::bench::schedule::{Phase, Schedule};
use crate::bench::tally::{Tally, millis};
use crate::bench::watch::Watch;
use crate::bench::workload::Workload;
use crate::bench::{Bench, Found};
use crate::http::batch::MAX_ITEMS;

#[derive(Debug, Args)]
pub struct Sustained {
    /// Requests per second
    #[arg(long, default_value_t = 10_000.0, value_parser = between(1.0, MOST_PER_SECOND))]
    rate: f64,
    /// How long
    #[arg(long, default_value_t = 60.0, value_parser = between(0.1, MOST_SECONDS))]
    seconds: f64,
    /// Requests in one post
    #[arg(long, default_value_t = 1, value_parser = between(1, MAX_ITEMS))]
    batch: usize,
}

#[derive(Debug, Args)]
pub struct Spike {
    /// Requests per second before and after the spike
    #[arg(long, default_value_t = 10_000.0, value_parser = between(1.0, MOST_PER_SECOND))]
    rate: f64,
    /// How long before the spike, and again after it
    #[arg(long, default_value_t = 10.0, value_parser = between(0.1, MOST_SECONDS))]
    around: f64,
    /// Requests per second in the spike
    #[arg(long, default_value_t = 50_000.0, value_parser = between(1.0, MOST_PER_SECOND))]
    peak: f64,
    /// How long the spike is
    #[arg(long, default_value_t = 10.0, value_parser = between(0.1, MOST_SECONDS))]
    seconds: f64,
    /// Requests in one post
    #[arg(long, default_value_t = 100, value_parser = between(1, MAX_ITEMS))]
    batch: usize,
}

impl Sustained {
    pub(super) async fn run(&self, bench: &Bench) -> anyhow::Result<Found> {
        let rate = bench.size(self.rate, self.rate / 10.0);
        let seconds = bench.size(self.seconds, 2.0);
        keep_up(bench, &[Phase { rate, seconds }], self.batch, "sustained").await
    }
}

impl Spike {
    pub(super) async fn run(&self, bench: &Bench) -> anyhow::Result<Found> {
        let (shrink, around, length) = bench.size((1.0, self.around, self.seconds), (10.0, 1.0, 1.0));
        let calm = Phase { rate: self.rate / shrink, seconds: around };
        let peak = Phase { rate: self.peak / shrink, seconds: length };
        keep_up(bench, &[calm, peak, calm], self.batch, "spike").await
    }
}

async fn keep_up(bench: &Bench, phases: &[Phase], batch: usize, name: &str) -> anyhow::Result<Found> {
    let server = bench.start_seeded(&[]).await?;
    let path = if batch > 1 { "/api/deliveryrequests/batch" } else { "/api/deliveryrequests" };
    let workload = Rc::new(Workload::new(path, batch)?);
    #[allow(clippy::cast_precision_loss, reason = "a batch is small")]
    let calls = |phase: &Phase| Phase { rate: phase.rate / batch as f64, ..*phase };
    let schedule = Schedule::new(phases.iter().map(calls).collect());
    let watch = Watch::start(&server, name).await?;
    let costs = Costs::start(bench, &server);
    let (tally, ended, drained) = watch
        .during(async {
            let tally = load::put(bench.client(&server), workload, Pace::Open(schedule)).await?;
            let ended = watch.elapsed();
            let drained = watch.until_finished(tally.accepted).await?;
            Ok((tally, ended, drained))
        })
        .await?;
    let (counted, usage) = (watch.counted(), server.usage());
    let row = Row::default().with("calls_of", batch);
    let row = latencies(row, &tally)
        .with("scheduled", counted.scheduled)
        .maybe("scheduled_p50_up_to_ms", counted.scheduled_within(0.5))
        .maybe("scheduled_p99_up_to_ms", counted.scheduled_within(0.99))
        .with("highest_backlog", watch.highest_backlog())
        .with("drained_after_s", drained.saturating_sub(ended).as_secs_f64())
        .maybe("peak_mb", usage.map(|usage| usage.peak_bytes / 1_000_000))
        .and(costs.used().each(counted.finished));
    let mut charts = vec![by_second(&tally, name)];
    charts.extend(watch.charts());
    let title =
        phases.iter().map(|p| format!("{:.0}/s for {:.0} s", p.rate, p.seconds)).collect::<Vec<_>>().join(", then ");
    let tables = vec![Table { title, rows: vec![row] }];
    let mut notes = unfinished(&tally, &counted);
    if !tally.refused.is_empty() {
        notes.push(format!("refused, by status: {:?}", tally.refused));
    }
    Ok(Found { tables, charts, notes })
}

#[allow(clippy::cast_precision_loss, reason = "there are a few seconds")]
fn by_second(tally: &Tally, name: &str) -> Chart {
    let curve = |label: &str, quantile: f64| Curve {
        name: label.to_owned(),
        points: tally.seconds.iter().enumerate().map(|(i, s)| (i as f64, millis(&s.latency, quantile))).collect(),
    };
    Chart {
        title: format!("{name}: time to accept, ms, by the second it was due in"),
        x: "seconds".to_owned(),
        curves: vec![curve("p50", 0.5), curve("p99", 0.99), curve("max", 1.0)],
    }
}
