//! A server dies with work under way. How long until everything is done: by the same server started again, and by
//! another that takes over. Counted from the moment of the kill; what was finished before it is known by the dead
//! server's last word, so a few that it finished later count as replayed.

use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::Args;

use super::flood::{self, BATCH, pour};
use crate::bench::counters::Counters;
use crate::bench::report::{Row, Table};
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
    #[arg(long, default_value_t = 100_000)]
    requests: u64,
    /// How often
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// After how long a dead server's partitions are taken over
    #[arg(long, default_value_t = 2_000)]
    lease_ms: u64,
}

/// A server that has accepted requests and done a part of them.
struct Victim {
    server: Server,
    tally: Tally,
    base: Counters,
}

impl Recovery {
    pub(super) async fn run(&self, bench: &Bench) -> anyhow::Result<Found> {
        bench.options.refuse_url()?;
        let (mut found, mut rows) = (Found::default(), Vec::new());
        for run in 1..=bench.size(self.runs, 1) {
            rows.push(Row::default().with("how", "started again").with("run", run).and(self.restart(bench).await?));
        }
        if bench.options.engine == "cluster" {
            for run in 1..=bench.size(self.runs, 1) {
                rows.push(Row::default().with("how", "taken over").with("run", run).and(self.takeover(bench).await?));
            }
        } else {
            found.notes.push("a takeover needs two servers, so the cluster engine".to_owned());
        }
        found.tables.push(Table { title: "After kill -9, with work under way".to_owned(), rows });
        Ok(found)
    }

    fn settings(&self) -> [(&'static str, String); 1] {
        [("partitions.lease_ms", self.lease_ms.to_string())]
    }

    async fn restart(&self, bench: &Bench) -> anyhow::Result<Row> {
        let home = bench.home().await?;
        let victim = self.loaded(bench, &home, true).await?;
        let (before, killed) = victim.kill().await?;
        let server = bench.start(&home, &self.settings()).await?;
        let ready = killed.elapsed();
        let row = after(&server, &before, &Counters::default(), killed).await?;
        Ok(Row::default().with("ready_s", ready.as_secs_f64()).and(row))
    }

    async fn takeover(&self, bench: &Bench) -> anyhow::Result<Row> {
        let home = bench.home().await?;
        let heir = bench.start(&home, &self.settings()).await?;
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
        let server = bench.start(home, &self.settings()).await?;
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
async fn after(server: &Server, before: &Counters, base: &Counters, killed: Instant) -> anyhow::Result<Row> {
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
        }
        if before.finished + done >= before.accepted || last.1.elapsed() > STANDSTILL {
            let missing = before.accepted.saturating_sub(before.finished + done);
            return Ok(Row::default()
                .maybe("first_work_s", first.map(|first| first.as_secs_f64()))
                .with("all_done_s", (last.1 - killed).as_secs_f64())
                .with("accepted", before.accepted)
                .with("done_before", before.finished)
                .with("done_after", counted.finished)
                .with("replayed", counted.replayed)
                .with("missing", missing));
        }
        tokio::time::sleep(EVERY).await;
    }
}
