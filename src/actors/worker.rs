//! A competing consumer of the work queue, in the consumption mode `queue`: it feeds a scheduler of its own and settles
//! each message when its workflow has come to its end. What is unsettled when it dies is delivered again, to whomever.

use std::sync::Arc;

use actix::prelude::*;

use super::backoff::Backoff;
use super::checkpointer::Finished;
use super::lifeline::Lifeline;
use super::reader::{Offer, Work};
use super::scheduler::{self, Scheduler};
use crate::domain::Operation;
use crate::stream::{Message as Delivery, Queue, QueueConsumer, Queues, Settle, Settler};

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

#[derive(Message)]
#[rtype(result = "()")]
struct Arrived(Delivery);

impl Worker {
    #[must_use]
    pub fn new(queues: Arc<dyn Queues>, flow: scheduler::Parts, window: usize, lifeline: Lifeline) -> Self {
        let window = u16::try_from(window).unwrap_or(u16::MAX);
        Self { queues, flow, window, scheduler: None, settler: None, done: Vec::new(), settling: false, lifeline }
    }

    fn consume(&mut self, ctx: &mut Context<Self>) {
        let (queues, window) = (self.queues.clone(), self.window);
        let open = async move {
            let consume = async || queues.consume(Queue::Work, window).await;
            Backoff::ENGINE.until_ok("consuming the work queue", consume).await
        };
        ctx.spawn(open.into_actor(self).map(|QueueConsumer { mut messages, settler }, me, ctx| {
            me.settler = Some(settler);
            let to = ctx.address();
            let feed = async move {
                loop {
                    match messages.next().await {
                        Ok(delivery) => to.do_send(Arrived(delivery)),
                        Err(error) => {
                            tracing::warn!(%error, "the work queue broke off; starting anew");
                            return;
                        }
                    }
                }
            };
            ctx.spawn(feed.into_actor(me).map(|(), _, ctx| ctx.terminate()));
        }));
    }

    /// Settles all that are done, together.
    fn settle(&mut self, ctx: &mut Context<Self>) {
        let Some(settler) = self.settler.clone().filter(|_| !self.settling && !self.done.is_empty()) else { return };
        self.settling = true;
        let tags = std::mem::take(&mut self.done);
        let settle = async move { settler.settle(&tags, Settle::Done).await };
        ctx.spawn(settle.into_actor(self).map(|settled, me, ctx| {
            me.settling = false;
            if let Err(error) = settled {
                tracing::warn!(%error, "messages not settled; they come again");
                ctx.terminate();
            }
            me.settle(ctx);
        }));
    }
}

impl Actor for Worker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        let finished = ctx.address().recipient();
        self.scheduler = Some(Scheduler::new(self.flow.clone(), finished, self.lifeline.share()).start());
        self.consume(ctx);
    }
}

impl Handler<Arrived> for Worker {
    type Result = ();
    fn handle(&mut self, Arrived(delivery): Arrived, ctx: &mut Context<Self>) {
        match (serde_json::from_slice::<Operation>(&delivery.body), &self.scheduler) {
            (Ok(operation), Some(scheduler)) => {
                scheduler.do_send(Offer(vec![Work { offset: delivery.tag, operation }]));
            }
            // Put back until the queue's limit sends it to the dead letters.
            _ => {
                let Some(settler) = self.settler.clone() else { return };
                let back = async move { settler.settle(&[delivery.tag], Settle::Again).await };
                ctx.spawn(back.into_actor(self).map(|given_back, _, ctx| {
                    if given_back.is_err() {
                        ctx.terminate();
                    }
                }));
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
