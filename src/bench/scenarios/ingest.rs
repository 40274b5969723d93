//! How many requests are accepted, and how fast, beside a handler in the same server that parses and answers but keeps
//! nothing: what is left of that limit once every request is durable. The two take turns several times, so that
//! whatever else the machine does hits both.

use std::rc::Rc;
use std::time::Duration;

use clap::Args;

use super::{MOST_CONNECTIONS, MOST_PER_SECOND, MOST_RUNS, MOST_SECONDS, between};
use crate::bench::costs::{Costs, Used};
use crate::bench::load::{self, Client, Pace};
use crate::bench::report::{Chart, Curve, Row, Table};
use crate::bench::schedule::Schedule;
use crate::bench::tally::Tally;
use crate::bench::target::Server;
use crate::bench::workload::Workload;
use crate::bench::{Bench, Found};
use crate::http::batch::MAX_ITEMS;

const LIMIT: &str = "/api/limit";
const SINGLE: &str = "/api/deliveryrequests";
const BATCH: &str = "/api/deliveryrequests/batch";

#[derive(Debug, Args)]
pub struct Ingest {
    /// Turns of each kind of call
    #[arg(long, default_value_t = 5, value_parser = between(1, MOST_RUNS))]
    turns: u32,
    /// Seconds of one turn
    #[arg(long, default_value_t = 5.0, value_parser = between(0.1, MOST_SECONDS))]
    seconds: f64,
    /// Connections of the turns with single posts: enough that the processors are the bound. With 256 a fifth of them
    /// is idle, since whoever posts waits for the disk; both kinds of call get the same
    #[arg(long, default_value_t = 800, value_parser = between(1, MOST_CONNECTIONS))]
    posters: usize,
    /// Requests in a batch
    #[arg(long, default_value_t = 100, value_parser = between(1, MAX_ITEMS))]
    batch: usize,
    /// Single posts per second whose latency is measured, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,10000", value_parser = between(1.0, MOST_PER_SECOND))]
    rates: Vec<f64>,
    /// The roles of the server; with the scheduler's, the requests are carried out meanwhile
    #[arg(long, default_value = "ingestion")]
    roles: String,
}

/// One kind of call, and what became of it so far.
struct Kind {
    name: &'static str,
    path: &'static str,
    connections: usize,
    workload: Rc<Workload>,
    tally: Tally,
    rates: Vec<f64>,
    used: Used,
}

impl Kind {
    fn new(name: &'static str, path: &'static str, batch: usize, connections: usize) -> anyhow::Result<Self> {
        let workload = Rc::new(Workload::new(path, batch)?);
        Ok(Self { name, path, connections, workload, tally: Tally::new()?, rates: Vec::new(), used: Used::default() })
    }

    fn client(&self, bench: &Bench, server: &Server) -> Client {
        Client { connections: self.connections, ..bench.client(server) }
    }
}

impl Ingest {
    pub(super) async fn run(&self, bench: &Bench) -> anyhow::Result<Found> {
        let server = bench.start(&bench.home().await?, &[("roles", self.roles.clone())]).await?;
        let seconds = Duration::from_secs_f64(bench.size(self.seconds, 0.5));
        let mut found = Found::default();
        let posters = bench.size(self.posters, self.posters.min(64));
        let mut kinds = vec![
            Kind::new("single posts", SINGLE, 1, posters)?,
            Kind::new("batch posts", BATCH, self.batch, bench.options.connections)?,
        ];
        if server.knows(LIMIT).await? {
            kinds.insert(0, Kind::new("limit (keeps nothing)", LIMIT, 1, posters)?);
        } else {
            let note = format!("nothing to compare with: the server has no {LIMIT}; http.limit_route gives it one");
            found.notes.push(note);
        }
        for kind in &kinds {
            load::put(kind.client(bench, &server), kind.workload.clone(), Pace::For(seconds / 4)).await?;
        }
        for turn in 0..bench.size(self.turns, 2) {
            for kind in &mut kinds {
                let costs = Costs::start(bench, &server);
                let tally = load::put(kind.client(bench, &server), kind.workload.clone(), Pace::For(seconds)).await?;
                kind.used = std::mem::take(&mut kind.used).and(costs.used());
                eprintln!("turn {}: {}: {:.0}/s", turn + 1, kind.name, tally.rate());
                kind.rates.push(tally.rate());
                kind.tally.add(&tally)?;
            }
        }
        found.charts.push(turns(&kinds));
        found.tables.push(saturation(&kinds));
        self.fixed_rates(bench, &server, &mut found).await?;
        let connections = bench.options.connections;
        found.notes.push(format!(
            "{posters} connections for single posts at saturation, {connections} otherwise; latency at saturation is that \
             of a full queue"
        ));
        if bench.options.url.is_none() {
            found.notes.push(format!("the server has the roles {}", self.roles));
        }
        Ok(found)
    }

    async fn fixed_rates(&self, bench: &Bench, server: &Server, found: &mut Found) -> anyhow::Result<()> {
        let seconds = bench.size(self.seconds * 2.0, 0.5);
        let single = Rc::new(Workload::new(SINGLE, 1)?);
        let mut rows = Vec::new();
        for rate in self.rates.iter().map(|rate| bench.size(*rate, rate / 10.0)) {
            let pace = Pace::Open(Schedule::steady(rate, seconds));
            let tally = load::put(bench.client(server), single.clone(), pace).await?;
            eprintln!("{rate}/s: p99 {:.1} ms", tally.millis(0.99));
            rows.push(latencies(Row::default().with("rate_per_s", rate), &tally));
        }
        found.tables.push(Table { title: "Single posts at fixed rates, from when they were due".to_owned(), rows });
        Ok(())
    }
}

/// What became of a load, beyond its rate.
pub(super) fn latencies(row: Row, tally: &Tally) -> Row {
    row.with("accepted", tally.accepted)
        .with("dropped", tally.dropped())
        .with("timed_out", tally.timed_out)
        .with("p50_ms", tally.millis(0.5))
        .with("p99_ms", tally.millis(0.99))
        .with("p99.9_ms", tally.millis(0.999))
        .with("max_ms", tally.millis(1.0))
}

fn saturation(kinds: &[Kind]) -> Table {
    let limit = kinds.iter().find(|kind| kind.path == LIMIT);
    let row = |kind: &Kind| {
        let shares = limit.map(|limit| shares(&kind.rates, &limit.rates));
        let row = Row::default()
            .with("calls", kind.name)
            .with("accepted_per_s", median(&kind.rates))
            .maybe("of_the_limit", shares.map(|shares| median(&shares)));
        latencies(row, &kind.tally).and(kind.used.each(kind.tally.accepted))
    };
    Table { title: "Saturation, the median of all turns".to_owned(), rows: kinds.iter().map(row).collect() }
}

/// Each turn's rate as a share of the limit in the same turn: what the machine can do changes from one turn to the next.
fn shares(rates: &[f64], limits: &[f64]) -> Vec<f64> {
    rates.iter().zip(limits).map(|(rate, limit)| rate / limit).collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[allow(clippy::cast_precision_loss, reason = "there are a few turns")]
fn turns(kinds: &[Kind]) -> Chart {
    let curve = |kind: &Kind| Curve {
        name: kind.name.to_owned(),
        points: kind.rates.iter().enumerate().map(|(turn, rate)| ((turn + 1) as f64, *rate)).collect(),
    };
    Chart {
        title: "Accepted requests/s at saturation".to_owned(),
        x: "turn".to_owned(),
        curves: kinds.iter().map(curve).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_slows_down_between_turns_changes_no_share() {
        let (limits, rates) = ([100.0, 50.0, 80.0], [90.0, 45.0, 40.0]);
        assert!((median(&shares(&rates, &limits)) - 0.9).abs() < 1e-9);
    }
}
