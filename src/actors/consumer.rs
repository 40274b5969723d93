//! How an actor consumes a queue: it is opened, until that works, and its messages come as [`Arrived`].
//!
//! A consumer that breaks, or a message that cannot be settled, ends the actor. A fresh one follows with a fresh
//! consumer, and the queue delivers again what was unsettled: there is no other way to reconnect.

use std::sync::Arc;

use actix::prelude::*;

use super::backoff::Backoff;
use crate::stream::{Message as Delivery, Queue, Queues, Settle, Settler};

/// A message, and what settles it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Arrived {
    pub delivery: Delivery,
    pub settler: Arc<dyn Settler>,
}

/// Opens the queue and feeds the actor from it, with at most `most` messages unsettled.
pub fn consume<A>(queues: Arc<dyn Queues>, queue: Queue, most: u16, ctx: &mut Context<A>)
where
    A: Actor<Context = Context<A>> + Handler<Arrived>,
{
    let to = ctx.address();
    let feed = async move {
        let open = async || queues.consume(queue, most).await;
        let mut consumer = Backoff::ENGINE.until_ok(&format!("consuming {queue:?}"), open).await;
        loop {
            match consumer.messages.next().await {
                Ok(delivery) => to.do_send(Arrived { delivery, settler: consumer.settler.clone() }),
                Err(error) => return tracing::warn!(?queue, %error, "not consumed any more; starting anew"),
            }
        }
    };
    ctx.spawn(actix::fut::wrap_future::<_, A>(feed).map(|(), _, ctx| ctx.terminate()));
}

/// Settles messages of the actor's consumer, then goes on.
pub fn settle<A>(
    settler: Arc<dyn Settler>,
    tags: Vec<u64>,
    how: Settle,
    ctx: &mut Context<A>,
    then: impl FnOnce(&mut A, &mut Context<A>) + 'static,
) where
    A: Actor<Context = Context<A>>,
{
    let settle = async move { settler.settle(&tags, how).await };
    ctx.spawn(actix::fut::wrap_future::<_, A>(settle).map(|settled, me, ctx| match settled {
        Ok(()) => then(me, ctx),
        Err(error) => {
            tracing::warn!(%error, "messages not settled; they come again");
            ctx.terminate();
        }
    }));
}
