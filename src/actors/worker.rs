//! A competing consumer of the work queue, in the consumption mode `queue`: it feeds a scheduler of its own and settles
//! each message when its workflow has come to its end. What is unsettled when it dies is delivered again, to whomever.

use std::sync::Arc;

use actix::prelude::*;

use super::checkpointer::Finished;
use super::consumer::{self, Arrived};
use super::lifeline::Lifeline;
use super::reader::{Offer, Work};
use super::scheduler::{self, Scheduler};
use crate::crashes::{self, Point};
use crate::domain::Operation;
use crate::stream::{Queue, Queues, Settle, Settler};

pub struct Worker {
    queues: Arc<dyn Queues>,
    flow: scheduler::Parts,
    /// Messages held at once.
    window: u16,
    scheduler: Option<Addr<Scheduler>>,
    settler: Option<Arc<dyn Settler>>,
    done: Vec<u64>,
    settling: bool,
    lifeline: Lifeline,
}

impl Worker {
    #[must_use]
    pub fn new(queues: Arc<dyn Queues>, flow: scheduler::Parts, window: usize, lifeline: Lifeline) -> Self {
        let window = u16::try_from(window).unwrap_or(u16::MAX);
        Self { queues, flow, window, scheduler: None, settler: None, done: Vec::new(), settling: false, lifeline }
    }

    /// Settles all that are done, together.
    fn settle(&mut self, ctx: &mut Context<Self>) {
        let Some(settler) = self.settler.clone().filter(|_| !self.settling && !self.done.is_empty()) else { return };
        crashes::at(Point::WorkDone);
        self.settling = true;
        let tags = std::mem::take(&mut self.done);
        consumer::settle(settler, tags, Settle::Done, ctx, |me: &mut Self, ctx| {
            me.settling = false;
            me.settle(ctx);
        });
    }
}

impl Actor for Worker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        let finished = ctx.address().recipient();
        self.scheduler = Some(Scheduler::new(self.flow.clone(), finished, self.lifeline.share()).start());
        consumer::consume(self.queues.clone(), Queue::Work, self.window, ctx);
    }
}

impl Handler<Arrived> for Worker {
    type Result = ();
    fn handle(&mut self, Arrived { delivery, settler }: Arrived, ctx: &mut Context<Self>) {
        self.settler = Some(settler.clone());
        match (serde_json::from_slice::<Operation>(&delivery.body), &self.scheduler) {
            (Ok(operation), Some(scheduler)) => {
                scheduler.do_send(Offer(vec![Work { offset: delivery.tag, operation }]));
            }
            // Put back until the queue's limit sends it to the dead letters.
            _ => {
                consumer::settle(settler, vec![delivery.tag], Settle::Again, ctx, |_: &mut Self, _| {});
            }
        }
    }
}

impl Handler<Finished> for Worker {
    type Result = ();
    fn handle(&mut self, Finished(tags): Finished, ctx: &mut Context<Self>) {
        self.done.extend(tags.into_iter().map(|(tag, _)| tag));
        self.settle(ctx);
    }
}
