//! The consumption modes side by side: the same requests over services that all take the same time, or whose time has
//! a heavy tail.

use anyhow::Context as _;
use clap::Args;

use super::flood::{self, Flood};
use super::{MOST_REQUESTS, between};
use crate::bench::report::{Row, Table};
use crate::bench::{Bench, Found};

const MODES: [&str; 3] = ["stream", "batch", "queue"];
const LATENCIES: [&str; 2] = ["fixed", "heavy"];

#[derive(Debug, Args)]
pub struct Modes {
    /// Requests for each mode and kind of latency
    #[arg(long, default_value_t = 100_000, value_parser = between(1, MOST_REQUESTS))]
    requests: u64,
    /// How long each call of a service takes; with the heavy tail, the median
    #[arg(long, default_value_t = 10, value_parser = between(1_u64, 60_000))]
    latency_ms: u64,
    /// Calls of one service at once: enough that the services are not the bound. With a heavy tail a call takes 24 ms on
    /// average, so that 1,024 at once would be 43,000/s at most
    #[arg(long, default_value_t = 2048, value_parser = between(1_u32, 10_000))]
    concurrency: u32,
    /// Workflows under way at once, likewise: five such calls one after the other take 120 ms, so that 4,096 at once would
    /// be 34,000/s at most
    #[arg(long, default_value_t = 8192, value_parser = between(1_u32, 1_000_000))]
    window: u32,
    /// The modes to compare, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = MODES.map(str::to_owned), value_parser = MODES)]
    modes: Vec<String>,
}

impl Modes {
    pub(super) async fn run(&self, bench: &Bench) -> anyhow::Result<Found> {
        bench.options.refuse_url()?;
        let (mut found, mut rows) = (Found::default(), Vec::new());
        for latency in LATENCIES {
            let mut first = None;
            for mode in &self.modes {
                let flood = self.one(bench, mode, latency).await;
                let flood = flood.with_context(|| format!("{mode} with {latency} latency"))?;
                let first = *first.get_or_insert(flood.steady_rate);
                let faster = first.zip(flood.steady_rate).map(|(first, this)| first / this);
                let row = Row::default().with("latency", latency).with("mode", mode.as_str());
                let row = flood.add_to(row, &mut found);
                rows.push(
                    row.maybe("scheduled_p50_up_to_ms", flood.counted.scheduled_within(0.5))
                        .maybe("scheduled_p99_up_to_ms", flood.counted.scheduled_within(0.99))
                        .maybe("first_mode_is_faster_by", faster),
                );
                found.charts.extend(flood.charts);
            }
        }
        let title = format!(
            "Every call of a service takes {} ms; {} calls of each and {} workflows at once",
            self.latency_ms, self.concurrency, self.window
        );
        found.tables.push(Table { title, rows });
        Ok(found)
    }

    async fn one(&self, bench: &Bench, mode: &str, latency: &str) -> anyhow::Result<Flood> {
        let settings = [
            ("scheduler.mode", mode.to_owned()),
            ("faults.default.latency_ms", self.latency_ms.to_string()),
            ("faults.default.latency", latency.to_owned()),
            ("agents.default.concurrency", self.concurrency.to_string()),
            ("scheduler.max_in_flight", self.window.to_string()),
        ];
        let server = bench.start_seeded(&settings).await?;
        let requests = bench.size(self.requests, self.requests.min(500));
        let flood = Flood::run(bench, &server, flood::SIZE, requests, &format!("{mode}, {latency}")).await?;
        anyhow::ensure!(flood.counted.finished > 0, "no workflow was carried out");
        Ok(flood)
    }
}
