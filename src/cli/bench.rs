//! `drone-delivery bench`: runs a scenario, prints its tables, and writes JSON and a page where asked.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use super::{FAILED, complain, print};
use crate::bench::scenarios::Scenario;
use crate::bench::{self, page};

#[derive(Debug, Args)]
pub struct Bench {
    #[command(subcommand)]
    scenario: Scenario,
    /// Which engine the servers that are started use: embedded or cluster
    #[arg(long, global = true, default_value = "embedded", value_parser = ["embedded", "cluster"])]
    engine: String,
    /// Starts a RabbitMQ and a Redis for the cluster engine, instead of using the configured ones
    #[arg(long, global = true)]
    private: bool,
    /// Measures a server that runs already, such as http://127.0.0.1:8080, and puts accounts and drones into it
    #[arg(long, global = true, conflicts_with_all = ["engine", "private", "set", "config"])]
    url: Option<String>,
    /// Lets --url be another machine
    #[arg(long, global = true)]
    allow_remote: bool,
    /// Short runs with small loads, to see that it works
    #[arg(long, global = true)]
    quick: bool,
    /// Connections of the load
    #[arg(long, global = true, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,
    /// A TOML file for the servers that are started
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A setting for the servers that are started, such as partitions.count=4; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// Writes what was found as JSON
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes what was found as a page with curves
    #[arg(long, global = true, value_name = "FILE")]
    report: Option<PathBuf>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Bench {
    pub(super) fn run(self) -> ExitCode {
        match self.measure() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(&format!("{error:#}"));
                ExitCode::from(FAILED)
            }
        }
    }

    fn measure(self) -> anyhow::Result<()> {
        let options = bench::Options {
            engine: self.engine,
            private: self.private,
            url: self.url,
            allow_remote: self.allow_remote,
            quick: self.quick,
            connections: usize::from(self.connections),
            config: self.config,
            set: self.set,
        };
        // Before the work, not after it: what was found would be lost.
        for file in self.json.iter().chain(&self.report) {
            let opened = File::options().append(true).create(true).open(file);
            opened.with_context(|| format!("cannot write {}", file.display()))?;
        }
        let report = bench::run(options, &self.scenario)?;
        print(&report.to_text());
        if let Some(file) = self.json {
            let json = serde_json::to_string_pretty(&report)?;
            std::fs::write(&file, json + "\n").with_context(|| format!("cannot write {}", file.display()))?;
        }
        if let Some(file) = self.report {
            std::fs::write(&file, page::page(&report)).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }
}
