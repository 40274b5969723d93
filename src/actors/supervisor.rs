//! The root of the actors. It starts every child, hears of each one's end through its [`Lifeline`] and starts it anew
//! from durable state: at once the first time, with growing pauses when it keeps dying. Siblings do not notice.
//!
//! What was in a dead actor's hands is not lost: writers answer 503 to those that wait, partition readers begin again
//! at their checkpoint, orders in an agent come back to the scheduler that sent them.
//!
//! Nobody watches the Supervisor itself from inside: when it ends, whoever waits on its token hears of it and ends the
//! process, which its container or init system starts again. Children that go on unwatched would be worse: the next
//! one to die would be missing without a word.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use actix::prelude::*;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::backoff::Backoff;
use super::lifeline::{Ends, Lifeline, panic_on_purpose};
use crate::alerts::{AlertKind, Alerts};
use crate::config::Panics;

/// An actor, or a few that live and die together, that can be started any number of times.
pub struct Child {
    pub name: String,
    pub start: Box<dyn FnMut(Lifeline) + Send>,
}

impl Child {
    pub fn new(name: impl Into<String>, start: impl FnMut(Lifeline) + Send + 'static) -> Self {
        Self { name: name.into(), start: Box::new(start) }
    }
}

/// Starts a child and keeps it running.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Watch(pub Child);

/// Ends a child for good.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Retire(pub String);

/// How often each child was started again.
#[derive(Message)]
#[rtype(result = "Vec<(String, u64)>")]
pub struct Restarts;

#[derive(Message)]
#[rtype(result = "()")]
struct Ended(String, u64);

/// After this long a child counts as healthy again.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);
const RESTART: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(10) };

struct Watched {
    child: Child,
    /// The number of its last start.
    start: u64,
    restarts: u64,
    started: Instant,
    /// Ends in a row, each soon after its start.
    early_ends: u32,
    ender: CancellationToken,
}

pub struct Supervisor {
    children: HashMap<String, Watched>,
    /// How often a child of a name was started, retired ones included: an end that is heard late must not be taken for
    /// that of its successor.
    starts: HashMap<String, u64>,
    ends: Ends,
    heard: Option<mpsc::UnboundedReceiver<(String, u64)>>,
    alerts: Alerts,
    panics: Panics,
    /// Dropped with the actor, however it ends.
    _alive: DropGuard,
}

impl Supervisor {
    /// `ended` is cancelled when it ends, by a panic too.
    #[must_use]
    pub fn new(alerts: Alerts, panics: Panics, ended: CancellationToken) -> Self {
        let (ends, heard) = mpsc::unbounded_channel();
        Self {
            children: HashMap::new(),
            starts: HashMap::new(),
            ends,
            heard: Some(heard),
            alerts,
            panics,
            _alive: ended.drop_guard(),
        }
    }

    fn start_child(&mut self, name: &str) {
        if let Some(watched) = self.children.get_mut(name) {
            let starts = self.starts.entry(name.to_owned()).or_default();
            *starts += 1;
            watched.start = *starts;
            watched.started = Instant::now();
            let lifeline = Lifeline::new(name.to_owned(), watched.start, self.ends.clone(), self.panics.clone());
            watched.ender = lifeline.ender();
            (watched.child.start)(lifeline);
        }
    }

    fn ended(&mut self, name: String, start: u64, ctx: &mut Context<Self>) {
        let Some(watched) = self.children.get_mut(&name).filter(|w| w.start == start) else { return };
        watched.early_ends = if watched.started.elapsed() > HEALTHY_AFTER { 0 } else { watched.early_ends + 1 };
        let pause = RESTART.pause(watched.early_ends);
        self.alerts.raise(AlertKind::ActorRestarted, &name, format!("ended; started again in {pause:?}"));
        metrics::counter!(crate::metrics::ACTOR_RESTARTS, "actor" => name.clone()).increment(1);
        ctx.run_later(pause, move |me, _| {
            if let Some(watched) = me.children.get_mut(&name).filter(|watched| watched.start == start) {
                watched.restarts += 1;
                me.start_child(&name);
            }
        });
    }
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        panic_on_purpose(&self.panics, 1, ctx);
        if let Some(mut heard) = self.heard.take() {
            let me = ctx.address();
            ctx.spawn(
                async move {
                    while let Some((name, start)) = heard.recv().await {
                        me.do_send(Ended(name, start));
                    }
                }
                .into_actor(self),
            );
        }
    }
}

impl Handler<Watch> for Supervisor {
    type Result = ();
    fn handle(&mut self, Watch(child): Watch, _: &mut Context<Self>) {
        let name = child.name.clone();
        let ender = CancellationToken::new();
        let watched = Watched { child, start: 0, restarts: 0, started: Instant::now(), early_ends: 0, ender };
        if let Some(before) = self.children.insert(name.clone(), watched) {
            before.ender.cancel();
        }
        self.start_child(&name);
    }
}

impl Handler<Retire> for Supervisor {
    type Result = ();
    fn handle(&mut self, Retire(name): Retire, _: &mut Context<Self>) {
        if let Some(watched) = self.children.remove(&name) {
            watched.ender.cancel();
        }
    }
}

impl Handler<Ended> for Supervisor {
    type Result = ();
    fn handle(&mut self, Ended(name, start): Ended, ctx: &mut Context<Self>) {
        self.ended(name, start, ctx);
    }
}

impl Handler<Restarts> for Supervisor {
    type Result = MessageResult<Restarts>;
    fn handle(&mut self, _: Restarts, _: &mut Context<Self>) -> Self::Result {
        let mut all: Vec<_> = self.children.iter().map(|(name, w)| (name.clone(), w.restarts)).collect();
        all.sort();
        MessageResult(all)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[actix::test]
    async fn an_end_that_is_heard_late_is_not_its_successors() {
        let supervisor = Supervisor::new(Alerts::default(), Panics::default(), CancellationToken::new()).start();
        let started = Arc::new(Mutex::new(Vec::new()));
        let watch = || {
            let started = started.clone();
            Watch(Child::new("share", move |lifeline| started.lock().unwrap().push(lifeline)))
        };
        supervisor.send(watch()).await.unwrap();
        supervisor.send(Retire("share".to_owned())).await.unwrap();
        supervisor.send(watch()).await.unwrap();
        let count = || started.lock().unwrap().len();
        let end_first = || {
            let first = started.lock().unwrap().remove(0);
            drop(first);
        };
        assert_eq!(count(), 2);
        // The first one is gone only now.
        end_first();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(count(), 1, "the second one lives");
        end_first();
        let deadline = Instant::now() + Duration::from_secs(30);
        while count() == 0 {
            assert!(Instant::now() < deadline, "it is started again when it ends");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(supervisor.send(Restarts).await.unwrap(), [("share".to_owned(), 1)]);
    }
}
