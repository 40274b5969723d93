//! The scenarios. Each starts the servers it needs, puts its load on them and says what it found.

use super::{Bench, Found};

mod flood;
mod ingest;
mod modes;
mod rates;
mod recovery;
mod scale;
mod workflow;

pub use ingest::Ingest;
pub use modes::Modes;
pub use rates::{Spike, Sustained};
pub use recovery::Recovery;
pub use scale::Scale;
pub use workflow::Workflow;

/// What to measure, and with which sizes.
#[derive(Debug, clap::Subcommand)]
pub enum Scenario {
    /// Accepted requests/s at saturation and latency at fixed rates, beside a handler that keeps nothing
    Ingest(Ingest),
    /// Workflows/s from end to end, and the time from accept to Scheduled
    Workflow(Workflow),
    /// A steady rate for a while
    Sustained(Sustained),
    /// A steady rate with a spike in it
    Spike(Spike),
    /// The ways to consume, side by side, over slow services
    Modes(Modes),
    /// How long until all is done after a server was killed
    Recovery(Recovery),
    /// What a request costs with more partitions and with a larger backlog
    Scale(Scale),
}

impl Scenario {
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ingest(_) => "ingest",
            Self::Workflow(_) => "workflow",
            Self::Sustained(_) => "sustained",
            Self::Spike(_) => "spike",
            Self::Modes(_) => "modes",
            Self::Recovery(_) => "recovery",
            Self::Scale(_) => "scale",
        }
    }

    /// # Errors
    /// When a server does not start, or stops answering.
    pub async fn run(&self, bench: &Bench) -> anyhow::Result<Found> {
        match self {
            Self::Ingest(scenario) => scenario.run(bench).await,
            Self::Workflow(scenario) => scenario.run(bench).await,
            Self::Sustained(scenario) => scenario.run(bench).await,
            Self::Spike(scenario) => scenario.run(bench).await,
            Self::Modes(scenario) => scenario.run(bench).await,
            Self::Recovery(scenario) => scenario.run(bench).await,
            Self::Scale(scenario) => scenario.run(bench).await,
        }
    }
}
