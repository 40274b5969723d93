//! Looks at a server a few times a second while something is done to it, and shows how it goes.

use std::cell::RefCell;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use super::counters::Counters;
use super::process::Usage;
use super::report::{Chart, Curve, grouped};
use super::target::Server;

const EVERY: Duration = Duration::from_millis(250);
/// How often progress is shown where lines cannot be written over.
const SHOWN_EVERY: u32 = 20;
/// Nothing has moved for this long: it will not any more.
const STANDSTILL: Duration = Duration::from_secs(20);

/// The server at one moment.
#[derive(Clone, Debug)]
pub struct Moment {
    /// Since the watch began.
    pub at: Duration,
    /// What was counted since the watch began.
    pub counted: Counters,
    pub usage: Usage,
}

pub struct Watch<'a> {
    server: &'a Server,
    begun: Instant,
    base: Counters,
    label: String,
    moments: RefCell<Vec<Moment>>,
}

impl<'a> Watch<'a> {
    /// # Errors
    /// When the server does not answer.
    pub async fn start(server: &'a Server, label: &str) -> anyhow::Result<Self> {
        let base = server.counters().await?;
        let label = label.to_owned();
        Ok(Self { server, begun: Instant::now(), base, label, moments: RefCell::default() })
    }

    /// Does the work and looks on.
    ///
    /// # Errors
    /// When the work fails, or the server ends meanwhile.
    pub async fn during<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let done = tokio::select! {
            done = work => done,
            error = self.look_on() => Err(error),
        };
        self.look().await?;
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        done
    }

    /// Comes back only when the server is gone.
    async fn look_on(&self) -> anyhow::Error {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for turn in 0_u32.. {
            ticks.tick().await;
            match self.look().await {
                Ok(moment) => self.show(&moment, turn),
                Err(error) => return self.server.check().err().unwrap_or(error),
            }
        }
        anyhow::anyhow!("watched for too long")
    }

    /// # Errors
    /// When the server does not answer.
    pub async fn look(&self) -> anyhow::Result<Moment> {
        let counted = self.server.counters().await?.since(&self.base);
        let usage = self.server.usage().unwrap_or_default();
        let moment = Moment { at: self.begun.elapsed(), counted, usage };
        self.moments.borrow_mut().push(moment.clone());
        Ok(moment)
    }

    fn show(&self, moment: &Moment, turn: u32) {
        let terminal = std::io::stderr().is_terminal();
        if !terminal && !turn.is_multiple_of(SHOWN_EVERY) {
            return;
        }
        let Counters { accepted, scheduled, .. } = moment.counted;
        let (accepted, scheduled, backlog) = (grouped(accepted), grouped(scheduled), grouped(moment.counted.backlog()));
        let memory = moment.usage.resident_bytes / 1_000_000;
        let line = format!(
            "{:>5.1} s  {}: accepted {accepted}  scheduled {scheduled}  backlog {backlog}  {memory} MB",
            moment.at.as_secs_f64(),
            self.label
        );
        if terminal {
            eprint!("\r{line:<100}");
        } else {
            eprintln!("{line}");
        }
    }

    /// Waits until at least so many workflows are through, and says when that was. Ends early, without an error, when
    /// nothing moves any more.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn until_finished(&self, count: u64) -> anyhow::Result<Duration> {
        let mut last = (0, self.begun.elapsed());
        loop {
            let moment = self.look().await?;
            if moment.counted.finished != last.0 {
                last = (moment.counted.finished, moment.at);
            }
            if moment.counted.finished >= count || moment.at.saturating_sub(last.1) > STANDSTILL {
                return Ok(last.1);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Everything counted up to the last look.
    #[must_use]
    pub fn counted(&self) -> Counters {
        self.moments.borrow().last().map(|moment| moment.counted.clone()).unwrap_or_default()
    }

    #[must_use]
    pub fn highest_backlog(&self) -> u64 {
        self.moments.borrow().iter().map(|moment| moment.counted.backlog()).max().unwrap_or(0)
    }

    /// Backlog and memory over time.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn charts(&self) -> Vec<Chart> {
        let moments = self.moments.borrow();
        let curve = |name: &str, value: fn(&Moment) -> f64| Curve {
            name: name.to_owned(),
            points: moments.iter().map(|moment| (moment.at.as_secs_f64(), value(moment))).collect(),
        };
        let chart =
            |what: &str, curves| Chart { title: format!("{}: {what}", self.label), x: "seconds".to_owned(), curves };
        vec![
            chart(
                "requests",
                vec![
                    curve("accepted", |m| m.counted.accepted as f64),
                    curve("finished", |m| m.counted.finished as f64),
                    curve("backlog", |m| m.counted.backlog() as f64),
                ],
            ),
            chart("resident memory, MB", vec![curve("server", |m| m.usage.resident_bytes as f64 / 1e6)]),
        ]
    }
}
