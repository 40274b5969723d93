//! The flow of a share in the consumption mode `queue`: copies new requests to the work queue, from which the
//! [`worker`](super::worker)s of all instances take them, and counts a request as finished once the queue has
//! confirmed it.
//!
//! Cancels and changes of plan are not copied: competing consumers would take them in any order. They go to a
//! scheduler of this share, which waits for the record that the worker makes; so the order of a delivery's operations
//! holds in this mode too (G9).

use std::sync::Arc;

use actix::prelude::*;
use bytes::Bytes;

use super::backoff::Backoff;
use super::checkpointer::Finished;
use super::lifeline::Lifeline;
use super::reader::{Offer, Work};
use crate::crashes::{self, Point};
use crate::domain::OperationKind;
use crate::stream::{Queue, Queues};

pub struct Forwarder {
    queues: Arc<dyn Queues>,
    finished: Recipient<Finished>,
    /// Where cancels and changes go.
    others: Recipient<Offer>,
    waiting: Vec<Work>,
    publishing: bool,
    lifeline: Lifeline,
}

impl Forwarder {
    #[must_use]
    pub fn new(
        queues: Arc<dyn Queues>,
        finished: Recipient<Finished>,
        others: Recipient<Offer>,
        lifeline: Lifeline,
    ) -> Self {
        Self { queues, finished, others, waiting: Vec::new(), publishing: false, lifeline }
    }

    /// Copies all that wait, unless a copy is under way: then they go out with the next.
    fn publish(&mut self, ctx: &mut Context<Self>) {
        if self.publishing || self.waiting.is_empty() {
            return;
        }
        self.publishing = true;
        let works = std::mem::take(&mut self.waiting);
        let queues = self.queues.clone();
        let publish = async move {
            let bodies: Vec<Bytes> = works.iter().map(|work| work.operation.to_line().into()).collect();
            let copy = async || queues.publish(Queue::Work, bodies.clone()).await;
            Backoff::ENGINE.until_ok("copying requests to the work queue", copy).await;
            crashes::at(Point::Copied);
            works
        };
        ctx.spawn(publish.into_actor(self).map(|works, me, ctx| {
            me.publishing = false;
            me.finished.do_send(Finished(works.iter().map(|work| (work.offset, 1)).collect()));
            me.publish(ctx);
        }));
    }
}

impl Actor for Forwarder {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
    }
}

impl Handler<Offer> for Forwarder {
    type Result = ();
    fn handle(&mut self, Offer(works): Offer, ctx: &mut Context<Self>) {
        let is_new = |work: &Work| matches!(work.operation.op, OperationKind::Schedule(_));
        let (new, others): (Vec<Work>, Vec<Work>) = works.into_iter().partition(is_new);
        if !others.is_empty() {
            self.others.do_send(Offer(others));
        }
        self.waiting.extend(new);
        self.publish(ctx);
    }
}
