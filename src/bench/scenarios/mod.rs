//! The scenarios. Each starts the servers it needs, puts its load on them and says what it found.

use std::fmt::Display;
use std::str::FromStr;

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

/// The largest numbers that are taken: a mistyped one must not fill the machine.
const MOST_REQUESTS: u64 = 10_000_000;
const MOST_PER_SECOND: f64 = 1_000_000.0;
const MOST_SECONDS: f64 = 86_400.0;
const MOST_RUNS: u32 = 1_000;
const MOST_CONNECTIONS: usize = 10_000;

/// Reads an option's number, both ends included.
fn between<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Send + Sync + Copy + 'static,
{
    move |text| {
        let fits = |number: &T| (least..=most).contains(number);
        text.parse().ok().filter(fits).ok_or_else(|| format!("a number from {least} to {most}"))
    }
}

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

#[cfg(test)]
mod tests {
    use super::between;

    #[test]
    fn numbers_are_taken_within_their_bounds() {
        let (batch, rate) = (between(1_usize, 1_000), between(1.0_f64, 10.0));
        assert_eq!((batch("1"), batch("1000"), rate("2.5")), (Ok(1), Ok(1_000), Ok(2.5)));
        assert!(["0", "1001", "-1", "many", ""].iter().all(|text| batch(text).is_err()));
        assert!(["0", "11", "NaN", "inf", "-1"].iter().all(|text| rate(text).is_err()));
        assert_eq!(batch("0"), Err("a number from 1 to 1000".to_owned()));
    }
}
