//! Takes single status events from the services and puts them on the status stream, many together. It never makes a
//! service wait: what finds no room while the stream is away is counted as dropped.

use actix::prelude::*;

use super::lifeline::Lifeline;
use super::notice::StatusLines;
use super::slot::Slot;
use super::writer::WriterHandle;
use crate::domain::status::{StatusEvent, StatusSink};

#[derive(Message)]
#[rtype(result = "()")]
struct Emit(StatusEvent<'static>);

pub struct Teller {
    status: WriterHandle,
    waiting: StatusLines,
    telling: bool,
    lifeline: Lifeline,
}

impl Teller {
    #[must_use]
    pub fn new(status: WriterHandle, lifeline: Lifeline) -> Self {
        Self { status, waiting: StatusLines::default(), telling: false, lifeline }
    }

    fn tell(&mut self, ctx: &mut Context<Self>) {
        if self.telling || self.waiting.is_empty() {
            return;
        }
        self.telling = true;
        let (lines, status) = (std::mem::take(&mut self.waiting), self.status.clone());
        let tell = async move { lines.tell(&status).await };
        ctx.spawn(tell.into_actor(self).map(|(), me, ctx| {
            me.telling = false;
            me.tell(ctx);
        }));
    }
}

impl Actor for Teller {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.set_mailbox_capacity(MOST_WAITING);
        self.lifeline.bind(ctx);
    }
}

const MOST_WAITING: usize = 16_384;

impl Handler<Emit> for Teller {
    type Result = ();
    fn handle(&mut self, Emit(event): Emit, ctx: &mut Context<Self>) {
        if self.waiting.len() < MOST_WAITING {
            self.waiting.push(&event);
        } else {
            dropped();
        }
        self.tell(ctx);
    }
}

fn dropped() {
    metrics::counter!(crate::metrics::STATUS_DROPPED).increment(1);
}

#[derive(Clone, Default)]
pub struct TellerHandle {
    pub slot: Slot<Teller>,
}

impl StatusSink for TellerHandle {
    fn emit(&self, event: StatusEvent<'static>) {
        let sent = self.slot.get().is_some_and(|teller| teller.try_send(Emit(event)).is_ok());
        if !sent {
            dropped();
        }
    }
}
