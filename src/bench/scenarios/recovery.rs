//! A server dies with work under way. How long until everything is done: by the same server started again, and by
//! another that takes over. Counted from the moment of the kill; what was finished before it is known by the dead
//! server's last word, so a few that it finished later count as replayed.

use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;

use super::flood::{self, BATCH, pour};
use super::{MOST_REQUESTS, MOST_RUNS, between};
use crate::bench::counters::Counters;
use crate::bench::report::{Chart, Curve, Row, Table};
use crate::bench::tally::Tally;
use crate::bench::target::{Home, Server};
use crate::bench::workload::Workload;
use crate::bench::{Bench, Found};

/// Nothing has moved for this long: what is not done now never will be.
const STANDSTILL: Duration = Duration::from_secs(20);
const EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub struct Recovery {
    /// Requests that are accepted before the kill
    #[arg(long, default_value_t = 100_000, value_parser = between(1, MOST_REQUESTS))]
    requests: u64,
    /// How often
    #[arg(long, default_value_t = 3, value_parser = between(1, MOST_RUNS))]
    runs: u32,
}

/// What was left to do, by the time since the kill.
type Points = Vec<(f64, f64)>;

/// A server that has accepted requests and done a part of them.
struct Victim {
    server: Server,
    tally: Tally,
    base: Counters,
}

impl Recovery {
    pub(super) async fn run(&self, bench: &Bench) -> anyhow::Result<Found> {
        bench.options.refuse_url()?;
        let (mut found, mut rows, mut curves) = (Found::default(), Vec::new(), Vec::new());
        let mut add = |how: &str, run: u32, (row, points): (Row, Points)| {
            rows.push(Row::default().with("how", how).with("run", run).and(row));
            curves.push(Curve { name: format!("{how}, run {run}"), points });
        };
        for run in 1..=bench.size(self.runs, 1) {
            add("started again", run, self.restart(bench).await?);
        }
        if bench.options.engine == "cluster" {
            for run in 1..=bench.size(self.runs, 1) {
                add("taken over", run, self.takeover(bench).await?);
            }
        } else {
            found.notes.push("a takeover needs two servers, so the cluster engine".to_owned());
        }
        let title = "Requests left to do".to_owned();
        found.charts.push(Chart { title, x: "seconds after the kill".to_owned(), curves });
        found.tables.push(Table { title: "After kill -9, with work under way".to_owned(), rows });
        Ok(found)
    }

    async fn restart(&self, bench: &Bench) -> anyhow::Result<(Row, Points)> {
        let home = bench.home().await?;
        let victim = self.loaded(bench, &home, true).await?;
        let (before, killed) = victim.kill().await?;
        let server = bench.start(&home, &[]).await?;
        let ready = killed.elapsed();
        let (row, points) = after(&server, &before, &Counters::default(), killed).await?;
        Ok((Row::default().with("ready_s", ready.as_secs_f64()).and(row), points))
    }

    async fn takeover(&self, bench: &Bench) -> anyhow::Result<(Row, Points)> {
        let home = bench.home().await?;
        let heir = bench.start(&home, &[]).await?;
        heir.seed().await?;
        // The heir's counters do not know what the victim has accepted, nor the victim's what the heir has done.
        let base = heir.counters().await?;
        let victim = self.loaded(bench, &home, false).await?;
        let (mut before, killed) = victim.kill().await?;
        before.finished += heir.counters().await?.since(&base).finished;
        let base = heir.counters().await?;
        after(&heir, &before, &base, killed).await
    }

    async fn loaded(&self, bench: &Bench, home: &Home, seed: bool) -> anyhow::Result<Victim> {
        let server = bench.start(home, &[]).await?;
        if seed {
            server.seed().await?;
        }
        let workload = Rc::new(Workload::new(BATCH, flood::SIZE)?);
        // Until it has its partitions, nothing is under way.
        pour(bench, &server, &workload, flood::SIZE as u64).await?;
        let deadline = Instant::now() + STANDSTILL;
        while server.counters().await?.finished == 0 && Instant::now() < deadline {
            tokio::time::sleep(EVERY).await;
        }
        let base = server.counters().await?;
        let requests = bench.size(self.requests, self.requests.min(2_000));
        let tally = pour(bench, &server, &workload, requests).await?;
        Ok(Victim { server, tally, base })
    }
}

impl Victim {
    /// Kills the server and says what it had accepted and finished.
    async fn kill(self) -> anyhow::Result<(Counters, Instant)> {
        let finished = self.server.counters().await?.since(&self.base).finished;
        let killed = Instant::now();
        self.server.kill();
        let accepted = self.tally.accepted;
        eprintln!("killed with {finished} of {accepted} done");
        Ok((Counters { accepted, finished, ..Counters::default() }, killed))
    }
}

/// Waits until what the dead server left is done.
#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
async fn after(server: &Server, before: &Counters, base: &Counters, killed: Instant) -> anyhow::Result<(Row, Points)> {
    let left = |done: u64| before.accepted.saturating_sub(before.finished + done);
    let mut points = vec![(0.0, left(0) as f64)];
    let mut last = (0, Instant::now());
    let mut first = None;
    loop {
        let counted = server.counters().await?.since(base);
        let done = counted.finished + counted.replayed;
        if done > 0 {
            first.get_or_insert_with(|| killed.elapsed());
        }
        if done != last.0 {
            last = (done, Instant::now());
            points.push((killed.elapsed().as_secs_f64(), left(done) as f64));
        }
        if left(done) == 0 || last.1.elapsed() > STANDSTILL {
            let row = Row::default()
                .maybe("first_work_s", first.map(|first| first.as_secs_f64()))
                .with("all_done_s", (last.1 - killed).as_secs_f64())
                .with("accepted", before.accepted)
                .with("done_before", before.finished)
                .with("done_after", counted.finished)
                .with("replayed", counted.replayed)
                .with("missing", left(done));
            return Ok((row, points));
        }
        tokio::time::sleep(EVERY).await;
    }
}
