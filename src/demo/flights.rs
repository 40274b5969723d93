//! The actor that lets the [`Pilot`] fly, tick after tick.

use std::time::Duration;

use actix::prelude::*;
use serde::Serialize;

use super::pilot::{Parts, Pilot};
use crate::actors::backoff::Backoff;
use crate::actors::lifeline::Lifeline;
use crate::domain::time::now;

const TICK: Duration = Duration::from_millis(250);

#[derive(Message)]
#[rtype(result = "Observed")]
pub struct Observe;

#[derive(Clone, Copy, Debug, Default, Serialize, MessageResponse)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// Drones that this process flies.
    pub aloft: usize,
    /// Ticks in a row that the store did not answer.
    pub failures: u32,
}

pub struct Flights {
    /// None while a tick is under way.
    pilot: Option<Pilot>,
    seen: Observed,
    lifeline: Lifeline,
}

impl Flights {
    #[must_use]
    pub fn new(parts: Parts, lifeline: Lifeline) -> Self {
        Self { pilot: Some(Pilot::new(parts)), seen: Observed::default(), lifeline }
    }

    fn tick(&mut self, ctx: &mut Context<Self>) {
        let Some(mut pilot) = self.pilot.take() else { return };
        let tick = async move { (pilot.tick(now()).await, pilot) };
        ctx.spawn(tick.into_actor(self).map(|(done, pilot), me, ctx| {
            me.seen.aloft = pilot.aloft();
            me.pilot = Some(pilot);
            let pause = match done {
                Ok(()) => {
                    me.seen.failures = 0;
                    TICK
                }
                Err(error) => {
                    me.seen.failures += 1;
                    if me.seen.failures == 1 {
                        tracing::warn!(%error, "flying failed; trying until it works");
                    }
                    TICK + Backoff::ENGINE.pause(me.seen.failures)
                }
            };
            ctx.run_later(pause, Self::tick);
        }));
    }
}

impl Actor for Flights {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        self.tick(ctx);
    }
}

impl Handler<Observe> for Flights {
    type Result = Observed;
    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Observed {
        self.seen
    }
}
