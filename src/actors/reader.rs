//! Reads one share of one partition and feeds its operations to a flow, in the stream's order.
//!
//! - **At least once.** Reading begins after the saved checkpoint, so what a crash left unfinished comes again.
//! - **Nothing is dropped.** A line that cannot be parsed is parked among the dead letters, with the reason, and only
//!   then counts as finished. Entries that are gone before they were read raise an alert.
//! - **Bounded.** At most `window` operations are in flight; more is read only as they finish. In batch mode there are a
//!   batch of them, and the next batch begins when all of the last one are finished.
//! - **By itself.** When the engine is away the reader opens the stream again at its own place until it works. When it
//!   dies, its flow and its checkpointer die with it and all three begin again at the checkpoint.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use serde::Serialize;
use tokio::sync::oneshot;

use self::entries::parse;
use super::backoff::Backoff;
use super::checkpointer::{Checkpointer, Finished, Opened};
use super::dead_letters::park;
use super::lifeline::Lifeline;
use crate::alerts::{AlertKind, Alerts};
use crate::config::Mode;
use crate::domain::Operation;
use crate::domain::time::Timestamp;
use crate::store::checkpoints::{Checkpoints, Lease, Share};
use crate::stream::{DeadLetter, Entry, From, ReadError, Stream, StreamReader, Streams};

mod entries;

/// One operation and the entry it came in.
#[derive(Clone, Debug)]
pub struct Work {
    pub offset: u64,
    pub operation: Operation,
}

/// Operations for the flow, in order. It tells the checkpointer of each one's end.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Offer(pub Vec<Work>);

/// So many operations are finished: as many more may be read.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Credit(pub usize);

/// The checkpoint was saved; what is before it is not needed any more.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Saved(pub u64);

/// Whom to feed. Sent once, since the three know each other.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Begin {
    pub flow: Recipient<Offer>,
    pub checkpointer: Addr<Checkpointer>,
}

/// Stops reading; answers when nothing is in flight.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Drain;

/// Stops reading for a while, or goes on.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Pause(pub bool);

#[derive(Message)]
#[rtype(result = "Observed")]
pub struct Observe;

#[derive(Clone, Copy, Debug, Default, Serialize, MessageResponse)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    pub partition: u32,
    pub reader: u32,
    pub epoch: u64,
    pub paused: bool,
    pub in_flight: usize,
    pub entries: u64,
    pub read: u64,
    pub dead_letters: u64,
    /// The next entry to be read.
    pub next_offset: u64,
    /// When the entry read last was written; what is newer is lag.
    pub last_entry_at: Option<Timestamp>,
}

#[derive(Clone)]
pub struct Plan {
    pub lease: Lease,
    pub readers: u32,
    pub window: usize,
    pub mode: Mode,
    /// How many operations are a batch, in batch mode.
    pub batch: usize,
    /// The last finished offset.
    pub checkpoint: Option<u64>,
}

pub struct Reader {
    plan: Plan,
    stream: Stream,
    streams: Arc<dyn Streams>,
    checkpoints: Checkpoints,
    source: Source,
    /// Read, and waiting for room in the window.
    pending: VecDeque<Entry>,
    /// The rest of an entry that there was not room for.
    rest: VecDeque<Work>,
    /// The next offset wanted; none before anything is known of the stream.
    next: Option<u64>,
    begun: Option<Begin>,
    draining: Vec<oneshot::Sender<()>>,
    stopped: bool,
    failures: u32,
    seen: Observed,
    alerts: Alerts,
    lifeline: Lifeline,
}

enum Source {
    Closed,
    /// A future holds it and comes back with entries.
    Busy,
    Open(Box<dyn StreamReader>),
}

impl Reader {
    #[must_use]
    pub fn new(
        plan: Plan,
        streams: Arc<dyn Streams>,
        checkpoints: Checkpoints,
        alerts: Alerts,
        lifeline: Lifeline,
    ) -> Self {
        let share = plan.lease.share;
        let next = plan.checkpoint.map(|done| done + 1);
        let seen = Observed {
            partition: share.partition,
            reader: share.reader,
            epoch: plan.lease.epoch,
            next_offset: next.unwrap_or(0),
            ..Observed::default()
        };
        Self {
            stream: Stream::Requests(share.partition),
            plan,
            streams,
            checkpoints,
            source: Source::Closed,
            pending: VecDeque::new(),
            rest: VecDeque::new(),
            next,
            begun: None,
            draining: Vec::new(),
            stopped: false,
            failures: 0,
            seen,
            alerts,
            lifeline,
        }
    }

    /// How many operations may be handed on.
    fn room(&self) -> usize {
        match self.plan.mode {
            Mode::Batch if self.seen.in_flight == 0 => self.plan.batch.min(self.plan.window),
            Mode::Batch => 0,
            Mode::Stream | Mode::Queue => self.plan.window.saturating_sub(self.seen.in_flight),
        }
    }

    /// Hands on what was read and opens or reads on, as far as there is room.
    fn pull(&mut self, ctx: &mut Context<Self>) {
        if self.begun.is_none() || self.stopped || self.seen.paused || self.room() == 0 {
            return;
        }
        self.hand_on(ctx);
        if self.room() == 0 {
            return;
        }
        match std::mem::replace(&mut self.source, Source::Busy) {
            Source::Busy => {}
            Source::Closed => {
                let open = open(self.streams.clone(), self.checkpoints.clone(), self.plan.lease, self.next);
                ctx.spawn(open.into_actor(self).map(|opened, me, ctx| me.opened(opened, ctx)));
            }
            Source::Open(mut source) => {
                let read = async move { (source.next().await, source) };
                ctx.spawn(read.into_actor(self).map(|(entries, source), me, ctx| match entries {
                    // It was told that nothing is in flight any more: these are left to the next reader.
                    Ok(_) if me.stopped => {}
                    Ok(entries) => {
                        me.source = Source::Open(source);
                        me.failures = 0;
                        me.pending.extend(entries);
                        me.pull(ctx);
                    }
                    Err(error) => me.failed(&error, ctx),
                }));
            }
        }
    }

    fn opened(&mut self, opened: Result<Opening, ReadError>, ctx: &mut Context<Self>) {
        match opened {
            Ok(Opening { source, next, shrunk }) => {
                if let Some(text) = shrunk {
                    self.alerts.raise(AlertKind::StreamMissing, format!("{:?}", self.stream), text);
                    if self.seen.entries > 0 {
                        // The checkpointer counts the entries of the stream that was: it begins anew with this reader.
                        ctx.terminate();
                        return;
                    }
                }
                self.source = Source::Open(source);
                self.next = next;
                self.pull(ctx);
            }
            Err(error) => self.failed(&error, ctx),
        }
    }

    fn failed(&mut self, error: &ReadError, ctx: &mut Context<Self>) {
        self.source = Source::Closed;
        // The stream is opened after the last entry handed on, so what waits comes again.
        self.pending.clear();
        self.failures += 1;
        if self.failures == 1 && matches!(error, ReadError::Corrupt(_)) {
            self.alerts.raise(AlertKind::StreamDamaged, format!("{:?}", self.stream), error.to_string());
        } else if self.failures == 1 {
            tracing::warn!(share = %self.plan.lease.share, %error, "reading failed; trying until it works");
        }
        ctx.run_later(Backoff::ENGINE.pause(self.failures), Self::pull);
    }

    /// Hands operations to the flow as far as there is room. An engine may give more entries at once than that: they wait
    /// here unparsed, but for the rest of the one that was begun.
    fn hand_on(&mut self, ctx: &mut Context<Self>) {
        let Some(Begin { flow, checkpointer }) = &self.begun else { return };
        let (flow, checkpointer) = (flow.clone(), checkpointer.clone());
        let mut room = self.room();
        let mut works = Vec::with_capacity(room.min(self.rest.len()));
        loop {
            let fitting = self.rest.len().min(room);
            works.extend(self.rest.drain(..fitting));
            room -= fitting;
            self.seen.in_flight += fitting;
            if room == 0 {
                break;
            }
            let Some(entry) = self.pending.pop_front() else { break };
            if self.next.is_some_and(|next| entry.offset < next) {
                continue;
            }
            self.check_gap(entry.offset);
            self.next = Some(entry.offset + 1);
            self.seen.next_offset = entry.offset + 1;
            self.seen.last_entry_at = Some(entry.at);
            let (operations, unreadable) = parse(&entry, self.plan.lease.share.reader, self.plan.readers);
            let count = operations.len() + unreadable.len();
            self.seen.in_flight += unreadable.len();
            self.seen.read += count as u64;
            self.seen.entries += 1;
            // Before the flow hears of it, so that the end of an operation never comes before its beginning.
            let opened = u32::try_from(count).unwrap_or(u32::MAX);
            checkpointer.do_send(Opened { offset: entry.offset, at: entry.at, operations: opened });
            self.rest.extend(operations.into_iter().map(|operation| Work { offset: entry.offset, operation }));
            if !unreadable.is_empty() {
                self.park(entry.offset, unreadable, &checkpointer, ctx);
            }
        }
        // model: Read
        if !works.is_empty() {
            flow.do_send(Offer(works));
        }
    }

    fn check_gap(&self, offset: u64) {
        let wanted = self.next.unwrap_or(0);
        if offset > wanted {
            let text = format!("entries {wanted} to {} were gone before they were read", offset - 1);
            self.alerts.raise(AlertKind::StreamGap, format!("{:?}", self.stream), text);
        }
    }

    /// Puts lines nobody can read among the dead letters, and only then counts them as finished.
    fn park(
        &mut self,
        offset: u64,
        letters: Vec<DeadLetter>,
        checkpointer: &Addr<Checkpointer>,
        ctx: &mut Context<Self>,
    ) {
        self.seen.dead_letters += letters.len() as u64;
        let (streams, alerts, checkpointer) = (self.streams.clone(), self.alerts.clone(), checkpointer.clone());
        let count = u32::try_from(letters.len()).unwrap_or(u32::MAX);
        let park = async move {
            park(&*streams, &alerts, &letters).await;
            checkpointer.do_send(Finished(vec![(offset, count)]));
        };
        ctx.spawn(park.into_actor(self));
    }

    fn answer_drained(&mut self) {
        if self.stopped && self.seen.in_flight == 0 {
            for waiting in self.draining.drain(..) {
                let _ = waiting.send(());
            }
        }
    }
}

/// What all readers of a partition are through with: the slowest decides. None when one of them has not saved anything
/// yet, or the store is away; the next checkpoint looks again.
async fn finished_by_all(checkpoints: &Checkpoints, partition: u32, readers: u32) -> Option<u64> {
    let shares: Vec<Share> = (0..readers).map(|reader| Share { partition, reader }).collect();
    let owners = checkpoints.owners(&shares).await.ok()?;
    owners.into_iter().map(|share| share.checkpoint).min().flatten()
}

struct Opening {
    source: Box<dyn StreamReader>,
    next: Option<u64>,
    /// What is wrong with the stream, if it is not the one the checkpoint was made for.
    shrunk: Option<String>,
}

/// Opens the stream after the checkpoint. A stream that is gone is made anew; one that ends before the checkpoint is
/// another stream than the one that was read. Either is read from its beginning: what is done already is skipped.
async fn open(
    streams: Arc<dyn Streams>,
    checkpoints: Checkpoints,
    lease: Lease,
    next: Option<u64>,
) -> Result<Opening, ReadError> {
    let stream = Stream::Requests(lease.share.partition);
    let away = |part, reason| ReadError::Unavailable { part, reason };
    let shrunk = match streams.bounds(stream).await {
        Ok(bounds) if next.is_none_or(|next| next <= bounds.next) => None,
        Ok(bounds) => Some(format!(
            "the stream ends at {} but was read up to {}: it is read from its beginning",
            bounds.next,
            next.unwrap_or(0)
        )),
        Err(ReadError::Missing(_)) => {
            streams.ensure(stream).await.map_err(|e| away("stream", e.to_string()))?;
            Some("the stream was gone and was made anew; what was not read of it is lost".to_owned())
        }
        Err(error) => return Err(error),
    };
    let next = if shrunk.is_some() {
        checkpoints.reset(lease).await.map_err(|e| away("store", e.to_string()))?;
        None
    } else {
        next
    };
    let source = streams.read(stream, next.map_or(From::First, From::Offset)).await?;
    Ok(Opening { source, next, shrunk })
}

impl Actor for Reader {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
    }
}

impl Handler<Begin> for Reader {
    type Result = ();
    fn handle(&mut self, begin: Begin, ctx: &mut Context<Self>) {
        self.begun = Some(begin);
        self.pull(ctx);
    }
}

impl Handler<Credit> for Reader {
    type Result = ();
    fn handle(&mut self, Credit(finished): Credit, ctx: &mut Context<Self>) {
        self.seen.in_flight = self.seen.in_flight.saturating_sub(finished);
        self.answer_drained();
        self.pull(ctx);
    }
}

impl Handler<Saved> for Reader {
    type Result = ();
    fn handle(&mut self, Saved(offset): Saved, ctx: &mut Context<Self>) {
        let (streams, stream, readers) = (self.streams.clone(), self.stream, self.plan.readers);
        let (checkpoints, partition) = (self.checkpoints.clone(), self.plan.lease.share.partition);
        let release = async move {
            let finished = match readers {
                1 => Some(offset),
                _ => finished_by_all(&checkpoints, partition, readers).await,
            };
            if let Some(offset) = finished {
                streams.release(stream, offset + 1).await;
            }
        };
        ctx.spawn(release.into_actor(self));
    }
}

impl Handler<Drain> for Reader {
    type Result = ResponseFuture<()>;
    fn handle(&mut self, _: Drain, _: &mut Context<Self>) -> Self::Result {
        self.stopped = true;
        let (reply, drained) = oneshot::channel();
        self.draining.push(reply);
        self.answer_drained();
        Box::pin(async move {
            let _ = drained.await;
        })
    }
}

impl Handler<Pause> for Reader {
    type Result = ();
    fn handle(&mut self, Pause(paused): Pause, ctx: &mut Context<Self>) {
        self.seen.paused = paused;
        self.pull(ctx);
    }
}

impl Handler<Observe> for Reader {
    type Result = Observed;
    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Observed {
        self.seen
    }
}

/// How long a drain may take before what is in flight is left to the replay.
pub const DRAIN: Duration = Duration::from_secs(10);
