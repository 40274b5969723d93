//! Looks at a server a few times a second while something is done to it, and shows how it goes.

use std::cell::RefCell;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use super::counters::Counters;
use super::process::Usage;
use super::report::{Chart, Curve, grouped};
use super::tally::per_second;
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

    /// Workflows per second from when a tenth was through until nine tenths were: without the first posts, which compete
    /// with what follows them, and without the slowest few at the end.
    #[must_use]
    pub fn steady_rate(&self) -> Option<f64> {
        steady_rate(&self.moments.borrow())
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

fn steady_rate(moments: &[Moment]) -> Option<f64> {
    let all = moments.last().map_or(0, |last| last.counted.finished);
    let when = |tenths: u64| moments.iter().find(|moment| moment.counted.finished * 10 >= all * tenths);
    let (from, to) = when(1).zip(when(9))?;
    let rate = per_second(to.counted.finished - from.counted.finished, to.at.saturating_sub(from.at));
    (rate > 0.0).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(finished_by_second: &[u64]) -> Vec<Moment> {
        let moment = |(second, finished): (u64, &u64)| Moment {
            at: Duration::from_secs(second),
            counted: Counters { finished: *finished, ..Counters::default() },
            usage: Usage::default(),
        };
        (0..).zip(finished_by_second).map(moment).collect()
    }

    #[test]
    fn the_beginning_and_the_slowest_few_do_not_count_as_steady() {
        assert_eq!(steady_rate(&seen(&[0, 10, 100, 500, 900, 950, 999, 1000])), Some(400.0));
        assert_eq!(steady_rate(&seen(&[0, 1000])), None, "there was no time between");
        assert_eq!(steady_rate(&[]), None);
    }
}
