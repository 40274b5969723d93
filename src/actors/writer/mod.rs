//! The group commit in front of one stream: what arrives while a write is under way goes out together in the next
//! one, as one entry. While several send at once few lines are given a moment to become more ([`mod@line`]), because an
//! engine is paid by the entry, and so is everybody behind it; one who sends single lines alone never waits for others.
//! The writers of all partitions end that moment together ([`pace`]).
//!
//! What it promises (G1, G5): an `Ok` is sent only after the engine confirmed the entry. What waits is bounded; what
//! does not fit is refused at once. A caller that goes away does not take its lines along. When the engine is away
//! the entry is written again until the deadline, since a broken connection leaves the fate of a write unknown and
//! writing twice is harmless; then all that wait are told so.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use actix::prelude::*;
use bytes::Bytes;
use serde::Serialize;
use tokio::sync::oneshot;

use self::line::{Cohort, Line, Next, Wakes};
use self::pace::Pace;
use self::recent::Recent;
use super::lifeline::Lifeline;
use super::slot::Slot;
use crate::domain::DeliveryId;
use crate::stream::{AppendError, Stream, Streams};

mod line;
mod pace;
mod recent;

pub use line::Joined;

/// Why lines were not taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// Too much waits already. Nothing was written.
    #[error("too many requests are waiting to be written")]
    Full,
    /// The engine is away. Whether something was written is not known.
    #[error("{0}")]
    Unavailable(String),
}

/// The bounds of one writer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub waiting: usize,
    pub batch_lines: usize,
    pub batch_bytes: usize,
    pub in_flight: usize,
    pub timeout: Duration,
    /// Fewer lines than this, on average over those of its group that linger, wait up to `linger` after the last ones.
    pub few: usize,
    pub linger: Duration,
    /// How much of what was written last can be found again.
    pub recent_bytes: usize,
}

type Answer = Result<(), WriteError>;

/// There is something to write.
#[derive(Message)]
#[rtype(result = "()")]
struct Wake;

/// There is much to write for all of the group. They live on one thread, so that one message is the cheapest way to it.
#[derive(Message)]
#[rtype(result = "()")]
struct Call;

/// Looks for the lines of a delivery among those written last, so that a request can be read back before anybody
/// has processed it.
#[derive(Message)]
#[rtype(result = "Vec<Bytes>")]
pub struct Find(pub DeliveryId);

#[derive(Message)]
#[rtype(result = "Observed")]
pub struct Observe;

#[derive(Clone, Copy, Debug, Default, Serialize, MessageResponse)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    pub waiting: usize,
    pub writing: usize,
    pub entries: u64,
    pub lines: u64,
    pub refused: u64,
    pub failed: u64,
}

pub struct Writer {
    stream: Stream,
    streams: Arc<dyn Streams>,
    limits: Limits,
    handle: WriterHandle,
    recent: Recent,
    /// When its moment is over, and with it that of its group.
    moment: Option<SpawnHandle>,
    seen: Observed,
    lifeline: Lifeline,
}

impl Writer {
    /// The writer behind a handle.
    #[must_use]
    pub fn new(
        stream: Stream,
        streams: Arc<dyn Streams>,
        limits: Limits,
        handle: &WriterHandle,
        lifeline: Lifeline,
    ) -> Self {
        let recent = Recent::new(limits.recent_bytes);
        let (handle, seen) = (handle.clone(), Observed::default());
        Self { stream, streams, limits, handle, recent, moment: None, seen, lifeline }
    }

    /// Starts writes while there are lines and a place in flight; rests when there are no lines.
    fn pump(&mut self, ctx: &mut Context<Self>) {
        while self.seen.writing < self.limits.in_flight {
            let next = self.handle.line().next(Instant::now());
            self.moment.take().map(|earlier| ctx.cancel_future(earlier));
            match next {
                Next::Write(cohort) => self.write(cohort, ctx),
                Next::Grow(moment) => {
                    self.moment = Some(ctx.run_later(moment, |me, _| me.handle.call_group()));
                    return;
                }
                Next::Call => {
                    self.handle.call_group();
                    return;
                }
                Next::Rest => return,
            }
        }
    }

    fn write(&mut self, Cohort { lines, count, waiting, .. }: Cohort, ctx: &mut Context<Self>) {
        self.seen.writing += 1;
        let body = lines.freeze();
        let write = write(self.streams.clone(), self.stream, body.clone(), self.limits.timeout);
        ctx.spawn(write.into_actor(self).map(move |written, me, ctx| {
            me.seen.writing -= 1;
            if written.is_ok() {
                me.recent.keep(body);
            }
            me.settle(written, waiting, count);
            me.pump(ctx);
        }));
    }

    fn settle(&mut self, written: Result<(), AppendError>, waiting: Vec<oneshot::Sender<Answer>>, lines: usize) {
        let answer = written.map_err(|error| WriteError::Unavailable(error.to_string()));
        if let Err(error) = &answer {
            tracing::warn!(stream = ?self.stream, lines, %error, "entry not written");
            self.seen.failed += lines as u64;
        } else {
            self.seen.entries += 1;
            self.seen.lines += lines as u64;
        }
        // All that wait have waited for the same engine: a quick answer lets the clients slow down.
        let others = if answer.is_err() { self.handle.line().clear() } else { Vec::new() };
        for reply in waiting.into_iter().chain(others) {
            // A caller that went away wants no answer; its lines are written all the same.
            let _ = reply.send(answer.clone());
        }
    }
}

/// Writes an entry, again and again until the deadline while the engine is away.
async fn write(streams: Arc<dyn Streams>, stream: Stream, body: Bytes, timeout: Duration) -> Result<(), AppendError> {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(20);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let error = match tokio::time::timeout(left, streams.append(stream, body.clone())).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error @ AppendError::Unavailable { .. })) => error,
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(AppendError::TimedOut(timeout)),
        };
        if Instant::now() + pause >= deadline {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

impl Actor for Writer {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        self.pump(ctx);
    }
}

impl Handler<Wake> for Writer {
    type Result = ();
    fn handle(&mut self, _: Wake, ctx: &mut Context<Self>) {
        self.pump(ctx);
    }
}

impl Handler<Call> for Writer {
    type Result = ();
    fn handle(&mut self, _: Call, _: &mut Context<Self>) {
        self.handle.call_group();
    }
}

impl Handler<Find> for Writer {
    type Result = Vec<Bytes>;
    fn handle(&mut self, Find(id): Find, _: &mut Context<Self>) -> Vec<Bytes> {
        self.recent.lines_of(&id)
    }
}

impl Handler<Observe> for Writer {
    type Result = Observed;
    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Observed {
        let line = self.handle.line();
        Observed { waiting: line.waiting(), refused: line.refused(), ..self.seen }
    }
}

/// What callers hold: it finds the writer in place, whichever incarnation that is. What comes before the first writer
/// is there waits for it.
#[derive(Clone)]
pub struct WriterHandle {
    group: Arc<[Member]>,
    at: usize,
}

/// One of the writers that write to the same beat.
struct Member {
    slot: Slot<Writer>,
    line: Mutex<Line>,
}

impl Member {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One message at a time, since the line says only once that its writer waits for it.
    fn send<M: Message<Result = ()> + Send + 'static>(&self, message: M)
    where
        Writer: Handler<M>,
    {
        if let Some(writer) = self.slot.get() {
            writer.do_send(message);
        }
    }
}

impl WriterHandle {
    /// A handle whose writer is yet to be started, with the same limits.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self::group(limits, 1).remove(0)
    }

    /// Handles of several writers, which write together what comes at about the same time.
    #[must_use]
    pub fn group(limits: &Limits, size: usize) -> Vec<Self> {
        let pace = Arc::new(Pace::new(limits.few));
        let line = || Mutex::new(Line::new(*limits, pace.clone()));
        let group: Arc<[Member]> = (0..size).map(|_| Member { slot: Slot::default(), line: line() }).collect();
        (0..size).map(|at| Self { group: group.clone(), at }).collect()
    }

    /// Where the writer is put.
    #[must_use]
    pub fn slot(&self) -> &Slot<Writer> {
        &self.group[self.at].slot
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.group[self.at].line()
    }

    /// Has all of the group write that linger.
    fn call_group(&self) {
        self.group.iter().filter(|member| member.line().call()).for_each(|member| member.send(Wake));
    }

    /// Comes back when the lines are durable. Dropping the future does not take them back.
    ///
    /// # Errors
    /// When they were not taken or not confirmed.
    pub async fn append(&self, lines: &[u8], count: usize) -> Answer {
        match self.join(lines, count, None)?.1 {
            Some(answer) => answer.await.unwrap_or_else(|_| Err(away())),
            None => Err(away()),
        }
    }

    /// Puts lines among those that are written next. Who has the answer of that very cohort in hand already, as told by
    /// its number, gets no second one.
    ///
    /// # Errors
    /// When too much waits already.
    pub fn join(&self, lines: &[u8], count: usize, known: Option<u64>) -> Result<Joined, WriteError> {
        let (joined, wakes) = self.line().join(lines, count, known)?;
        match wakes {
            Wakes::Nobody => {}
            Wakes::Writer => self.group[self.at].send(Wake),
            Wakes::Group => self.group[self.at].send(Call),
        }
        Ok(joined)
    }
}

/// What became of lines whose writer died with them.
#[must_use]
pub fn away() -> WriteError {
    WriteError::Unavailable("the writer is being started again".to_owned())
}
