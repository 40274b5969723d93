//! The command line. Exit codes: 0 done, 1 failed, 2 the command line or the configuration cannot be used.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

mod bench;
pub mod health;
pub mod watch;

use crate::config::{Layers, Settings};
use crate::{app, demo, telemetry};

const FAILED: u8 = 1;
const UNUSABLE: u8 = 2;

/// Takes delivery requests in at high rate, loses none, and carries each through a workflow that completes or is
/// undone.
#[derive(Debug, Parser)]
#[command(name = "drone-delivery", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the application, or the roles of it that this process has
    Serve(Options),
    /// Prints the settings in force as TOML, with the secrets masked
    Config(Options),
    /// Prints every change of the deliveries as it happens, one JSON event a line
    Watch(watch::Watch),
    /// Asks a running process whether it is ready
    Health(health::Health),
    /// Puts load on a server and measures it
    Bench(bench::Bench),
    /// What concerns the demo's accounts and drones
    #[command(subcommand)]
    Demo(Demo),
}

#[derive(Debug, Subcommand)]
enum Demo {
    /// Takes all of it back; the embedded engine must not be running. With `demo.enabled` the next start seeds it again
    Remove(Options),
}

/// What wins over the file and the environment.
#[derive(Debug, Args)]
pub struct Options {
    /// A TOML file with the settings that differ from the defaults
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address to serve HTTP on
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// The folder of the embedded engine
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<String>,
    /// Where streams and state are kept: embedded or cluster
    #[arg(long)]
    engine: Option<String>,
    /// What this process does, separated by commas: ingestion, scheduler, supervisor, services
    #[arg(long)]
    roles: Option<String>,
}

impl Options {
    fn into_layers(self) -> Layers {
        let flags = [
            ("http.listen", self.listen, "--listen"),
            ("data_dir", self.data_dir, "--data-dir"),
            ("engine", self.engine, "--engine"),
            ("roles", self.roles, "--roles"),
        ];
        let given = flags.into_iter().filter_map(|(key, value, flag)| Some((key, value?, flag)));
        Layers { file: self.config, environment: None, flags: given.collect() }
    }
}

impl Cli {
    /// Does what the command line says.
    #[must_use]
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Serve(options) => with_settings(options, serve),
            Command::Config(options) => with_settings(options, |settings| {
                print(&settings.to_toml());
                ExitCode::SUCCESS
            }),
            Command::Watch(options) => match actix::System::new().block_on(watch::print(options)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    complain(&error.to_string());
                    ExitCode::from(FAILED)
                }
            },
            Command::Health(options) => match actix::System::new().block_on(health::ask(&options)) {
                Ok(report) => {
                    print(&format!("{report}\n"));
                    ExitCode::SUCCESS
                }
                Err(error) => {
                    complain(&error.to_string());
                    ExitCode::from(FAILED)
                }
            },
            Command::Bench(bench) => bench.run(),
            Command::Demo(Demo::Remove(options)) => with_settings(options, |settings| {
                run(&settings.clone(), async move {
                    let removed = demo::remove(&settings).await?;
                    print(&format!("{removed} accounts and drones of the demo removed\n"));
                    Ok(())
                })
            }),
        }
    }
}

fn with_settings(options: Options, then: impl FnOnce(Settings) -> ExitCode) -> ExitCode {
    match Settings::load(&options.into_layers()) {
        Ok(settings) => then(settings),
        Err(faults) => {
            complain(&faults.to_string());
            ExitCode::from(UNUSABLE)
        }
    }
}

fn serve(settings: Settings) -> ExitCode {
    run(&settings.clone(), app::run(settings))
}

fn run(settings: &Settings, work: impl Future<Output = anyhow::Result<()>>) -> ExitCode {
    telemetry::start(settings.log.format);
    match actix::System::new().block_on(work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "cannot go on");
            ExitCode::from(FAILED)
        }
    }
}

#[expect(clippy::print_stdout, reason = "what the user asked for")]
fn print(text: &str) {
    print!("{text}");
}

fn complain(text: &str) {
    eprintln!("{text}");
}
