//! Tails the status stream and tells this process's subscribers of every change.
//!
//! What it promises: every event that is durable on the stream reaches every subscriber that wants it, once and in
//! order, or the subscriber is told that it lags or that there is a gap. The hub reads the stream once for all; while
//! nobody listens it does not read at all. When the engine is away it comes back to its own place, so a broker's
//! restart costs nothing.
//!
//! A hub that dies costs nothing either: each [`Subscription`] knows its own place, reads the stream by itself from
//! there and joins the next hub when it has caught up. Replaying after an id is the same thing.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::Serialize;
use tokio::sync::oneshot;

use super::backoff::Backoff;
use super::lifeline::Lifeline;
use crate::stream::{Bounds, From, ReadError, Stream, StreamReader, Streams};

mod audience;
mod feed;

use audience::{Audience, Seat};
pub use audience::{Filter, Told};
pub use feed::{Refused, StatusFeed, Subscription};

/// How long the engine may take to open a stream or to say where it begins and ends.
const ENGINE_PATIENCE: Duration = Duration::from_secs(10);

/// Asks to be told of everything from now on. Answered once the hub knows its own place.
#[derive(Message)]
#[rtype(result = "()")]
struct Join {
    filter: Filter,
    reply: oneshot::Sender<Live>,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Leave(u64);

#[derive(Message)]
#[rtype(result = "Observed")]
pub struct Observe;

#[derive(Clone, Copy, Debug, Default, Serialize, MessageResponse)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    pub subscribers: usize,
    /// Messages to subscribers, over all of them.
    pub told: u64,
    pub lagged: u64,
    pub gaps: u64,
    /// The next entry to be read; none while nobody listens.
    pub next_offset: Option<u64>,
}

/// A seat in a hub's audience, given up when dropped.
struct Live {
    seat: Seat,
    /// The first entry that is told here; what is before it has to be read from the stream.
    from: u64,
    hub: Addr<StatusHub>,
}

impl Drop for Live {
    fn drop(&mut self) {
        // At most one for each subscriber that joined, so it need not be bounded.
        self.hub.do_send(Leave(self.seat.key));
    }
}

pub struct StatusHub {
    streams: Arc<dyn Streams>,
    audience: Audience,
    source: Source,
    /// The next entry wanted; none while nobody listens.
    next: Option<u64>,
    joining: Vec<Join>,
    failures: u32,
    lifeline: Lifeline,
}

enum Source {
    Closed,
    /// A future holds it or opens it.
    Busy,
    Open(Box<dyn StreamReader>),
}

impl StatusHub {
    #[must_use]
    pub fn new(streams: Arc<dyn Streams>, buffer: usize, lifeline: Lifeline) -> Self {
        Self {
            streams,
            audience: Audience::new(buffer),
            source: Source::Closed,
            next: None,
            joining: Vec::new(),
            failures: 0,
            lifeline,
        }
    }

    /// Opens or reads on while somebody listens.
    fn pull(&mut self, ctx: &mut Context<Self>) {
        match std::mem::replace(&mut self.source, Source::Busy) {
            Source::Busy => {}
            _ if self.audience.is_empty() && self.joining.is_empty() => {
                self.source = Source::Closed;
                self.next = None;
            }
            Source::Closed => {
                let open = open(self.streams.clone(), self.next);
                ctx.spawn(open.into_actor(self).map(|opened, me, ctx| match opened {
                    Ok((source, next)) => me.opened(source, next, ctx),
                    Err(error) => me.failed(&error, ctx),
                }));
            }
            Source::Open(mut source) => {
                let read = async move { (source.next().await, source) };
                ctx.spawn(read.into_actor(self).map(|(entries, source), me, ctx| match entries {
                    Ok(entries) => {
                        me.failures = 0;
                        me.source = Source::Open(source);
                        me.next = me.next.map(|next| me.audience.tell(&entries, next));
                        me.pull(ctx);
                    }
                    Err(error) => me.failed(&error, ctx),
                }));
            }
        }
    }

    fn opened(&mut self, source: Box<dyn StreamReader>, next: u64, ctx: &mut Context<Self>) {
        if let Some(wanted) = self.next.filter(|wanted| *wanted != next) {
            self.audience.tell_gap(wanted, next);
        }
        self.source = Source::Open(source);
        self.next = Some(next);
        self.seat(ctx);
        self.pull(ctx);
    }

    /// Lets in who waits, if it is known where they come in.
    fn seat(&mut self, ctx: &mut Context<Self>) {
        let Some(from) = self.next else { return };
        for Join { filter, reply } in self.joining.drain(..) {
            let live = Live { seat: self.audience.join(filter), from, hub: ctx.address() };
            // One that has gone away gives its seat up by itself.
            let _ = reply.send(live);
        }
    }

    fn failed(&mut self, error: &ReadError, ctx: &mut Context<Self>) {
        self.failures += 1;
        if self.failures == 1 {
            tracing::warn!(%error, "reading the status stream failed; trying until it works");
        }
        ctx.run_later(Backoff::ENGINE.pause(self.failures), |me, ctx| {
            me.source = Source::Closed;
            me.pull(ctx);
        });
    }
}

/// Opens the stream at a place, or at its end. A stream that ends before that place is another stream than the one
/// that was read: it is read from its beginning.
async fn open(streams: Arc<dyn Streams>, wanted: Option<u64>) -> Result<(Box<dyn StreamReader>, u64), ReadError> {
    let bounds = match bounds(&*streams, wanted.unwrap_or(0)).await {
        Err(ReadError::Missing(_)) => {
            streams.ensure(Stream::Status).await.map_err(|error| away(&error))?;
            bounds(&*streams, 0).await?
        }
        bounds => bounds?,
    };
    let next = match wanted {
        None => bounds.next,
        Some(wanted) if wanted <= bounds.next => wanted,
        Some(_) => bounds.first,
    };
    let source = in_time(streams.read(Stream::Status, From::Offset(next))).await?;
    Ok((source, next))
}

/// Where the stream begins and ends. A broker that has just come up may take its stream for empty for a moment, so
/// an end before what was seen already is believed only when it is told again and again.
async fn bounds(streams: &dyn Streams, seen: u64) -> Result<Bounds, ReadError> {
    let mut doubts = 5;
    loop {
        let bounds = in_time(streams.bounds(Stream::Status)).await?;
        if bounds.next >= seen || doubts == 0 {
            return Ok(bounds);
        }
        doubts -= 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
    tokio::time::timeout(ENGINE_PATIENCE, call).await.unwrap_or_else(|late| Err(away(&late)))
}

fn away(reason: &dyn std::error::Error) -> ReadError {
    ReadError::Unavailable { part: "status stream", reason: reason.to_string() }
}

impl Actor for StatusHub {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
    }
}

impl Handler<Join> for StatusHub {
    type Result = ();
    fn handle(&mut self, join: Join, ctx: &mut Context<Self>) {
        self.joining.push(join);
        self.seat(ctx);
        self.pull(ctx);
    }
}

impl Handler<Leave> for StatusHub {
    type Result = ();
    fn handle(&mut self, Leave(key): Leave, _: &mut Context<Self>) {
        self.audience.leave(key);
    }
}

impl Handler<Observe> for StatusHub {
    type Result = Observed;
    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Observed {
        Observed {
            subscribers: self.audience.len(),
            told: self.audience.told,
            lagged: self.audience.lagged,
            gaps: self.audience.gaps,
            next_offset: self.next,
        }
    }
}
