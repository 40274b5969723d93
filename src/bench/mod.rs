//! `drone-delivery bench`: puts load on a server and measures. The load comes from one thread that does as little as
//! it can ([`load`], [`http`], [`workload`]), so that it can share a small machine with what it measures; what the
//! server did is read from the server's own counters ([`counters`], [`watch`]). Every load is bounded, and meant for
//! this machine only.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use self::load::Client;
use self::private::Servers;
use self::report::{Chart, Report, Table};
use self::target::Server;
use crate::domain::time::now;

pub mod costs;
pub mod counters;
pub mod http;
pub mod load;
pub mod page;
pub mod private;
pub mod process;
pub mod report;
pub mod scenarios;
pub mod schedule;
pub mod tally;
pub mod target;
pub mod watch;
pub mod workload;

/// What all scenarios take.
#[derive(Clone, Debug)]
pub struct Options {
    pub engine: String,
    /// Starts a RabbitMQ and a Redis for the cluster engine.
    pub private: bool,
    pub url: Option<String>,
    pub allow_remote: bool,
    /// Short runs, to see that it works.
    pub quick: bool,
    pub connections: usize,
    pub config: Option<PathBuf>,
    /// Settings of the servers that are started.
    pub set: Vec<(String, String)>,
}

/// One run of a scenario.
pub struct Bench {
    pub options: Options,
    servers: Option<Servers>,
    homes: Cell<u32>,
    dir: TempDir,
}

/// What a scenario brings back.
#[derive(Default)]
pub struct Found {
    pub tables: Vec<Table>,
    pub charts: Vec<Chart>,
    pub notes: Vec<String>,
}

/// A call that is not answered in this time counts as timed out.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

impl Bench {
    async fn prepare(options: Options) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("drone-bench-").tempdir()?;
        let servers = if options.private {
            eprintln!("starting RabbitMQ and Redis");
            Some(Servers::start(dir.path()).await?)
        } else {
            None
        };
        Ok(Self { options, servers, homes: Cell::new(0), dir })
    }

    #[must_use]
    pub fn client(&self, server: &Server) -> Client {
        Client { address: server.address, connections: self.options.connections, timeout: CALL_TIMEOUT }
    }

    /// One of two sizes, by whether the run is to be quick.
    #[must_use]
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.options.quick { quick } else { full }
    }
}

/// Runs a scenario on this thread, until it is done, fails, or is interrupted. Whatever it started ends with it.
///
/// # Errors
/// When the servers do not start, or a scenario cannot be carried through.
pub fn run(options: Options, scenario: &scenarios::Scenario) -> anyhow::Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (name, engine) = (scenario.name().to_owned(), options.url.is_none().then(|| options.engine.clone()));
    let found = runtime.block_on(async {
        tokio::select! {
            found = async { scenario.run(&Bench::prepare(options).await?).await } => found,
            _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        }
    })?;
    Ok(Report {
        scenario: name,
        engine,
        command: std::env::args().collect::<Vec<_>>().join(" "),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        at: now().to_string(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        tables: found.tables,
        charts: found.charts,
        notes: found.notes,
    })
}
