//! The group commit in front of one stream: what arrives while a write is under way goes out together in the next
//! one, as one entry. There is never a wait when nothing is under way.
//!
//! What it promises (G1, G5): an `Ok` is sent only after the engine confirmed the entry. What waits is bounded; what
//! does not fit is refused at once. A caller that goes away does not take its lines along. When the engine is away
//! the entry is written again until the deadline, since a broken connection leaves the fate of a write unknown and
//! writing twice is harmless; then all that wait are told so.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use actix::prelude::*;
use bytes::{Bytes, BytesMut};
use serde::Serialize;
use tokio::sync::oneshot;

use super::lifeline::Lifeline;
use super::slot::Slot;
use crate::domain::DeliveryId;
use crate::stream::{AppendError, Stream, Streams};

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
    /// How much of what was written last can be found again.
    pub recent_bytes: usize,
}

type Reply = oneshot::Sender<Result<(), WriteError>>;

/// Whole lines that go into one entry.
struct Append {
    lines: Bytes,
    count: usize,
    reply: Reply,
}

/// What waits to be written. Callers add to it directly and wake the writer only when it rests: under load that saves
/// a message and a switch of threads for every request. It outlives the writer, so a fresh one goes on with it.
#[derive(Default)]
struct Line {
    appends: VecDeque<Append>,
    lines: usize,
    /// How many lines may wait.
    most: usize,
    resting: bool,
    refused: u64,
}

/// There is something to write.
#[derive(Message)]
#[rtype(result = "()")]
struct Wake;

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
    line: SharedLine,
    recent: Recent,
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
        Self { stream, streams, limits, line: handle.line.clone(), recent, seen: Observed::default(), lifeline }
    }

    /// Starts writes while there are lines and a place in flight; rests when there are no lines.
    fn pump(&mut self, ctx: &mut Context<Self>) {
        while self.seen.writing < self.limits.in_flight {
            let Some((body, replies, lines)) = self.line.lock().gather(&self.limits) else { return };
            self.seen.writing += 1;
            let write = write(self.streams.clone(), self.stream, body.clone(), self.limits.timeout);
            ctx.spawn(write.into_actor(self).map(move |written, me, ctx| {
                me.seen.writing -= 1;
                if written.is_ok() {
                    me.recent.keep(body);
                }
                me.settle(written, replies, lines);
                me.pump(ctx);
            }));
        }
    }

    fn settle(&mut self, written: Result<(), AppendError>, replies: Vec<Reply>, lines: usize) {
        let answer = written.map_err(|error| WriteError::Unavailable(error.to_string()));
        if let Err(error) = &answer {
            tracing::warn!(stream = ?self.stream, lines, %error, "entry not written");
            self.seen.failed += lines as u64;
        } else {
            self.seen.entries += 1;
            self.seen.lines += lines as u64;
        }
        // All that wait have waited for the same engine: a quick answer lets the clients slow down.
        let waiting = if answer.is_err() { self.line.lock().clear() } else { VecDeque::new() };
        for reply in replies.into_iter().chain(waiting.into_iter().map(|append| append.reply)) {
            // A caller that went away wants no answer; its lines are written all the same.
            let _ = reply.send(answer.clone());
        }
    }
}

impl Line {
    /// Adds lines; says whether the writer must be woken.
    fn push(&mut self, append: Append) -> Result<bool, WriteError> {
        if append.count > self.most.saturating_sub(self.lines) {
            self.refused += append.count as u64;
            return Err(WriteError::Full);
        }
        self.lines += append.count;
        self.appends.push_back(append);
        Ok(std::mem::replace(&mut self.resting, false))
    }

    /// What goes out together; none when nothing waits.
    fn gather(&mut self, limits: &Limits) -> Option<(Bytes, Vec<Reply>, usize)> {
        let mut body = BytesMut::new();
        let (mut replies, mut lines) = (Vec::new(), 0);
        while let Some(next) = self.appends.front() {
            let fits = next.count <= limits.batch_lines.saturating_sub(lines)
                && body.len() + next.lines.len() <= limits.batch_bytes;
            if lines > 0 && !fits {
                break;
            }
            if let Some(next) = self.appends.pop_front() {
                lines += next.count;
                body.extend_from_slice(&next.lines);
                replies.push(next.reply);
            }
        }
        self.lines -= lines;
        self.resting = replies.is_empty();
        (!replies.is_empty()).then(|| (body.freeze(), replies, lines))
    }

    fn clear(&mut self) -> VecDeque<Append> {
        self.lines = 0;
        std::mem::take(&mut self.appends)
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

impl Handler<Find> for Writer {
    type Result = Vec<Bytes>;
    fn handle(&mut self, Find(id): Find, _: &mut Context<Self>) -> Vec<Bytes> {
        self.recent.lines_of(&id)
    }
}

impl Handler<Observe> for Writer {
    type Result = Observed;
    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Observed {
        let line = self.line.lock();
        Observed { waiting: line.lines, refused: line.refused, ..self.seen }
    }
}

/// The entries written last, up to so many bytes. Keeping one costs nothing but its memory; looking is a search.
struct Recent {
    entries: VecDeque<Bytes>,
    bytes: usize,
    most: usize,
}

impl Recent {
    fn new(most: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, most }
    }

    fn keep(&mut self, entry: Bytes) {
        self.bytes += entry.len();
        self.entries.push_back(entry);
        while self.bytes > self.most {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }

    fn lines_of(&self, id: &DeliveryId) -> Vec<Bytes> {
        // How every operation's line begins; see `Operation`.
        let begin = format!("{{\"id\":\"{id}\"");
        let finder = memchr::memmem::Finder::new(&begin);
        let in_entry = |entry: &Bytes| {
            let at: Vec<usize> = finder.find_iter(entry).collect();
            let starts = at.into_iter().filter(|at| *at == 0 || entry[at - 1] == b'\n');
            starts
                .map(|at| {
                    let end = memchr::memchr(b'\n', &entry[at..]).map_or(entry.len(), |len| at + len);
                    entry.slice(at..end)
                })
                .collect::<Vec<_>>()
        };
        self.entries.iter().flat_map(in_entry).collect()
    }
}

#[derive(Clone)]
struct SharedLine(Arc<Mutex<Line>>);

impl SharedLine {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn away() -> WriteError {
    WriteError::Unavailable("the writer is being started again".to_owned())
}

/// What callers hold: it finds the writer in place, whichever incarnation that is. What comes before the first writer
/// is there waits for it.
#[derive(Clone)]
pub struct WriterHandle {
    pub slot: Slot<Writer>,
    /// How many lines may wait.
    pub most: usize,
    line: SharedLine,
}

impl WriterHandle {
    /// A handle whose writer is yet to be started, with the same limits.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let line = Line { most: limits.waiting, ..Line::default() };
        Self { slot: Slot::default(), most: limits.waiting, line: SharedLine(Arc::new(Mutex::new(line))) }
    }

    /// Comes back when the lines are durable. Dropping the future does not take them back.
    ///
    /// # Errors
    /// When they were not taken or not confirmed.
    pub async fn append(&self, lines: Bytes, count: usize) -> Result<(), WriteError> {
        let (reply, answer) = oneshot::channel();
        let wake = self.line.lock().push(Append { lines, count, reply })?;
        if wake && let Some(writer) = self.slot.get() {
            // One at a time, since the line says that it rests only once.
            writer.do_send(Wake);
        }
        answer.await.unwrap_or_else(|_| Err(away()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::domain::request::samples;
    use crate::domain::time::from_millis;
    use crate::domain::{Operation, OperationKind};

    fn line(id: &str, op: OperationKind) -> Vec<u8> {
        Operation { id: DeliveryId::parse(id).unwrap(), at: from_millis(1), trace: None, op }.to_line()
    }

    /// A server may be reached before its writers are up: its first requests wait for them.
    #[test]
    fn what_comes_before_the_writer_waits_for_it() {
        let limits = Limits {
            waiting: 2,
            batch_lines: 10,
            batch_bytes: 1_000,
            in_flight: 1,
            timeout: Duration::from_secs(1),
            recent_bytes: 0,
        };
        let handle = WriterHandle::new(&limits);
        let push = || {
            let (reply, answer) = oneshot::channel();
            let append = Append { lines: Bytes::from_static(b"x\n"), count: 1, reply };
            (handle.line.lock().push(append), answer)
        };
        let waiting: Vec<_> = (0..2).map(|_| push()).collect();
        assert!(waiting.iter().all(|(pushed, _)| pushed.is_ok()));
        assert!(matches!(push().0, Err(WriteError::Full)));
        let (body, replies, lines) = handle.line.lock().gather(&limits).unwrap();
        assert_eq!((&body[..], replies.len(), lines), (&b"x\nx\n"[..], 2, 2));
        assert!(handle.line.lock().gather(&limits).is_none());
        assert!(push().0.unwrap(), "a writer that rests must be woken");
        assert!(!push().0.unwrap(), "but only once");
    }

    #[test]
    fn what_was_written_last_is_found_and_the_rest_forgotten() {
        let schedule = |id: &str| line(id, OperationKind::Schedule(Arc::new(samples::request())));
        let mut recent = Recent::new(3 * schedule("a-1").len());
        recent.keep([schedule("a-1"), schedule("a-2"), line("a-1", OperationKind::Cancel)].concat().into());
        let found = recent.lines_of(&DeliveryId::parse("a-1").unwrap());
        let kinds: Vec<_> = found.iter().map(|l| serde_json::from_slice::<Operation>(l).unwrap().op).collect();
        assert!(matches!(kinds[..], [OperationKind::Schedule(_), OperationKind::Cancel]));
        assert!(recent.lines_of(&DeliveryId::parse("a").unwrap()).is_empty());
        recent.keep([schedule("b-1"), schedule("b-2")].concat().into());
        assert!(recent.lines_of(&DeliveryId::parse("a-1").unwrap()).is_empty());
        assert_eq!(recent.lines_of(&DeliveryId::parse("b-2").unwrap()).len(), 1);
    }
}
