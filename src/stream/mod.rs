//! The stream and queue contracts. A stream is append-only and read from any offset; a queue hands each message to
//! one consumer until it is settled. Two implementations with one conformance suite (`tests/it/conformance`):
//! [`embedded`] on this disk and [`rabbitmq`].
//!
//! No type of the broker's client leaves this folder.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::domain::time::Timestamp;

pub mod embedded;
pub mod rabbitmq;

/// The streams of an installation. Their names on disk or on the broker are the engine's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    /// The accepted operations of one partition.
    Requests(u32),
    /// Every change of every delivery.
    Status,
    /// What could not be parsed or was given up, with the reason.
    DeadLetters,
}

/// The queues of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Queue {
    /// Workflows that failed for good and wait to be undone.
    FailedOperations,
    /// What the owner is to be told.
    Notifications,
    /// Copies of the requests, for the consumption mode `queue`.
    Work,
}

impl Queue {
    pub const ALL: [Self; 3] = [Self::FailedOperations, Self::Notifications, Self::Work];
}

/// One entry of a stream: one append, many lines.
#[derive(Clone, Debug)]
pub struct Entry {
    pub offset: u64,
    /// When it was written.
    pub at: Timestamp,
    pub body: Bytes,
}

/// Where to begin to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// The oldest entry there is.
    First,
    /// This entry, or the nearest after it when it is gone. Whoever asks compares the first offset it gets.
    Offset(u64),
    /// Only what is appended from now on.
    New,
}

/// Why an append or publish was not confirmed.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The engine is away or refused it; nothing was written, or it is not known whether it was. The same ids may be
    /// written again.
    #[error("the {part} is not available: {reason}")]
    Unavailable { part: &'static str, reason: String },
    /// The confirm did not come in time: it may have been written.
    #[error("not confirmed within {0:?}")]
    TimedOut(Duration),
    /// The stream or queue is not there, so the broker returned the message.
    #[error("there is no such stream or queue: {0}")]
    Unroutable(String),
    /// No room: nothing was written.
    #[error("no room on the disk: {0}")]
    NoRoom(String),
}

/// Why reading stopped. The reader is then of no use; open another after a while.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("the {part} is not available: {reason}")]
    Unavailable { part: &'static str, reason: String },
    /// The stream or queue does not exist (any more).
    #[error("there is no such stream or queue: {0}")]
    Missing(String),
    /// What was confirmed is damaged on the disk.
    #[error("damaged data: {0}")]
    Corrupt(String),
}

/// Append-only streams.
#[async_trait]
pub trait Streams: Send + Sync + 'static {
    /// Appends one entry and comes back when it is durable. Dropping the future does not undo the append. Appends to
    /// one stream that wait for each other keep their order; concurrent ones have none.
    async fn append(&self, stream: Stream, body: Bytes) -> Result<(), AppendError>;

    /// Reads on and on from a place. Only durable entries are seen.
    async fn read(&self, stream: Stream, from: From) -> Result<Box<dyn StreamReader>, ReadError>;

    /// The offset the next entry will get and the offset of the oldest entry there is, as well as the engine knows.
    async fn bounds(&self, stream: Stream) -> Result<Bounds, ReadError>;

    /// Lets the engine drop entries below `offset` when its retention says so: nobody needs them any more.
    /// A broker with a retention of its own ignores it.
    async fn release(&self, stream: Stream, offset: u64);

    /// Makes a stream that has gone missing anew. Harmless when it is there.
    async fn ensure(&self, stream: Stream) -> Result<(), AppendError>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub first: u64,
    pub next: u64,
}

/// One reader's place in one stream.
#[async_trait]
pub trait StreamReader: Send {
    /// The next entries in order, at least one; waits for them. How many come at once is bounded by the engine.
    async fn next(&mut self) -> Result<Vec<Entry>, ReadError>;
}

/// Queues with settlement.
#[async_trait]
pub trait Queues: Send + Sync + 'static {
    /// Puts messages in and comes back when all of them are confirmed. On an error some of them may be in.
    async fn publish(&self, queue: Queue, bodies: Vec<Bytes>) -> Result<(), AppendError>;

    /// Takes messages, at most `prefetch` unsettled at once. What is unsettled when the consumer is dropped is
    /// delivered again.
    async fn consume(&self, queue: Queue, prefetch: u16) -> Result<QueueConsumer, ReadError>;

    /// How many messages wait, delivered and unsettled ones included as far as the engine knows.
    async fn depth(&self, queue: Queue) -> Result<u64, ReadError>;
}

/// Both halves of a consumer: one task waits for messages while others settle.
pub struct QueueConsumer {
    pub messages: Box<dyn Messages>,
    pub settler: Arc<dyn Settler>,
}

#[async_trait]
pub trait Messages: Send {
    async fn next(&mut self) -> Result<Message, ReadError>;
}

#[async_trait]
pub trait Settler: Send + Sync {
    /// Settles messages of this consumer. A message that was delivered more than the queue's limit is dead-lettered
    /// by the engine instead of being put back.
    async fn settle(&self, tags: &[u64], how: Settle) -> Result<(), ReadError>;
}

#[derive(Clone, Debug)]
pub struct Message {
    pub tag: u64,
    pub body: Bytes,
    /// How often it was delivered before this time.
    pub redelivered: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settle {
    Done,
    /// Back to the queue.
    Again,
}

/// How often a message is delivered before it goes to the dead letters: what RabbitMQ 4 sets by default, so that both
/// engines and all broker versions agree.
pub const DELIVERY_LIMIT: u32 = 20;

/// Lines of any length together are cut into pieces of about this size: the engines refuse an entry that is too long.
const PIECE: usize = 1 << 20;

/// A body as the bodies of several entries, cut at the ends of its lines.
#[must_use]
pub fn pieces(mut body: Bytes) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    while body.len() > PIECE
        && let Some(end) = memchr::memchr(b'\n', &body[PIECE..])
    {
        pieces.push(body.split_to(PIECE + end + 1));
    }
    if !body.is_empty() {
        pieces.push(body);
    }
    pieces
}

/// One line of the dead-letter stream.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadLetter {
    pub at: Timestamp,
    /// Where it came from: `requests-3@17:4`, `failed-operations`.
    pub source: String,
    pub reason: String,
    /// What it was; bytes that are not UTF-8 are replaced.
    pub body: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_body_is_cut_at_the_ends_of_lines() {
        let line = |n: usize| [vec![b'a'; n], vec![b'\n']].concat();
        let body = Bytes::from([line(PIECE / 2), line(PIECE), line(10), line(3 * PIECE), line(5)].concat());
        let cut = pieces(body.clone());
        assert_eq!(cut.iter().map(Bytes::len).collect::<Vec<_>>(), [PIECE / 2 + PIECE + 2, 3 * PIECE + 12, 6]);
        assert_eq!(cut.concat(), body);
        assert_eq!(pieces(Bytes::from_static(b"a\nb\n")).len(), 1);
        assert!(pieces(Bytes::new()).is_empty());
    }
}
