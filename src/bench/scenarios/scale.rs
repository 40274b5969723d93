//! What a request costs with more partitions, and what a larger backlog costs: the server's processor time for each
//! workflow, and its memory.

use std::rc::Rc;

use clap::Args;

use super::flood::{self, BATCH, Flood, pour, unfinished};
use super::{MOST_REQUESTS, between};
use crate::bench::costs::Costs;
use crate::bench::report::{Row, Table};
use crate::bench::tally::per_second;
use crate::bench::watch::Watch;
use crate::bench::workload::Workload;
use crate::bench::{Bench, Found};

#[derive(Debug, Args)]
pub struct Scale {
    /// Partitions, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32")]
    partitions: Vec<u32>,
    /// Requests for each number of partitions
    #[arg(long, default_value_t = 100_000, value_parser = between(1, MOST_REQUESTS))]
    requests: u64,
    /// Requests that wait when the scheduler is started, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "10000,100000,1000000", value_parser = between(1, MOST_REQUESTS))]
    backlogs: Vec<u64>,
}

impl Scale {
    pub(super) async fn run(&self, bench: &Bench) -> anyhow::Result<Found> {
        bench.options.refuse_url()?;
        let mut found = Found::default();
        let mut rows = Vec::new();
        for count in &self.partitions {
            let server = bench.start_seeded(&[("partitions.count", count.to_string())]).await?;
            let requests = bench.size(self.requests, self.requests.min(1_000));
            let flood = Flood::run(bench, &server, flood::SIZE, requests, &format!("{count} partitions")).await?;
            rows.push(flood.add_to(Row::default().with("partitions", *count), &mut found));
        }
        found.tables.push(Table { title: "The cost of partitions".to_owned(), rows });
        let mut rows = Vec::new();
        for backlog in &self.backlogs {
            rows.push(backlogged(bench, bench.size(*backlog, backlog / 100), &mut found).await?);
        }
        found.tables.push(Table { title: "The cost of a backlog that waits at the start".to_owned(), rows });
        Ok(found)
    }
}

/// Takes the requests in without a scheduler, then starts one.
async fn backlogged(bench: &Bench, requests: u64, found: &mut Found) -> anyhow::Result<Row> {
    let home = bench.home().await?;
    let intake = bench.start(&home, &[("roles", "ingestion,services".to_owned())]).await?;
    intake.seed().await?;
    let workload = Rc::new(Workload::new(BATCH, flood::SIZE)?);
    let tally = pour(bench, &intake, &workload, requests).await?;
    intake.kill();
    let server = bench.start(&home, &[]).await?;
    let watch = Watch::start(&server, &format!("backlog of {requests}")).await?;
    let costs = Costs::start(bench, &server);
    let took = watch.during(watch.until_finished(tally.accepted)).await?;
    let (counted, usage) = (watch.counted(), server.usage().unwrap_or_default());
    found.notes.extend(unfinished(&tally, &counted));
    found.charts.extend(watch.charts());
    Ok(Row::default()
        .with("backlog", tally.accepted)
        .with("scheduled", counted.scheduled)
        .with("seconds", took.as_secs_f64())
        .with("workflows_per_s", per_second(counted.scheduled, took))
        .with("peak_mb", usage.peak_bytes / 1_000_000)
        .and(costs.used().each(counted.finished)))
}
