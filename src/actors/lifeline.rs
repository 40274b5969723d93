//! How the Supervisor hears of an actor's end, a panic included: actix drops the actor in every case, and with it the
//! lifeline it holds.
//!
//! Several actors may hold clones of one lifeline: then they live and die together (a reader, its scheduler and its
//! checkpointer), and the Supervisor hears of it when the last of them is gone.

use std::any::type_name;
use std::sync::Arc;

use actix::prelude::*;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::config::Panics;

/// Where ends are told: the child's name and which start of it ended.
pub type Ends = mpsc::UnboundedSender<(String, u64)>;

/// Held by every supervised actor.
pub struct Lifeline {
    ended: CancellationToken,
    group: Arc<Group>,
}

struct Group {
    name: String,
    start: u64,
    ends: Option<Ends>,
    panics: Panics,
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(ends) = &self.ends {
            // Nobody listens any more when the whole program ends.
            let _ = ends.send((std::mem::take(&mut self.name), self.start));
        }
    }
}

impl Lifeline {
    #[must_use]
    pub fn new(name: String, start: u64, ends: Ends, panics: Panics) -> Self {
        Self { ended: CancellationToken::new(), group: Arc::new(Group { name, start, ends: Some(ends), panics }) }
    }

    /// For an actor that nobody watches, in tests.
    #[must_use]
    pub fn unwatched() -> Self {
        let group = Group { name: String::new(), start: 0, ends: None, panics: Panics::default() };
        Self { ended: CancellationToken::new(), group: Arc::new(group) }
    }

    /// A lifeline for another actor of the same group.
    #[must_use]
    pub fn share(&self) -> Self {
        Self { ended: self.ended.clone(), group: self.group.clone() }
    }

    /// Ends the group from outside.
    #[must_use]
    pub fn ender(&self) -> CancellationToken {
        self.ended.clone()
    }

    /// To be called when the actor has started: it ends when another of its group does, or when it is told to.
    pub fn bind<A: Actor<Context = Context<A>>>(&self, ctx: &mut Context<A>) {
        let ended = self.ended.clone();
        let end = actix::fut::wrap_future::<_, A>(async move { ended.cancelled().await });
        ctx.spawn(end.map(|(), _, ctx| ctx.terminate()));
        panic_on_purpose(&self.group.panics, self.group.start, ctx);
    }
}

/// Has an actor, started for the `start`th time, panic after a while, if the settings ask for it.
#[allow(clippy::panic, reason = "it is what was asked for")]
pub fn panic_on_purpose<A: Actor<Context = Context<A>>>(panics: &Panics, start: u64, ctx: &mut Context<A>) {
    let Panics { actors, after, starts } = panics;
    let kind = type_name::<A>().rsplit("::").next().unwrap_or_default();
    if start <= *starts && actors.iter().any(|actor| actor == kind) {
        let after = after.mul_f64(rand::random_range(0.5..1.5));
        ctx.run_later(after, move |_, _| panic!("a panic on purpose in a {kind}"));
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}
