//! One append-only segmented log that several streams share, so that all of them are made durable by the same fsync.
//!
//! Entries are dropped in whole segments, and only when the log is larger or older than it has to be and everything in
//! the segment that must not be lost was released. Segments are dropped wherever they are: one stream that is held up
//! keeps its own segments, not all later ones. Offsets never begin anew: every segment's preamble has them.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use super::OpenError;
use super::committer::{Active, Append, Committer, begin};
use super::frame::{BODY_BYTES, HEADER_BYTES, Header};
use super::recovery::{Recovery, recover};
use super::segment::{Preamble, Segment};
use crate::domain::time::{from_millis, now_millis};
use crate::store::StoreError;
use crate::stream::{AppendError, Bounds, Entry, From, ReadError, StreamReader};

/// The memory that entries waiting to be written may take.
const WAITING_BYTES: usize = 32 * 1024 * 1024;
/// What an entry takes besides its body.
const ENTRY_BYTES: usize = 256;
/// The most that one [`StreamReader::next`] brings.
const READ_BYTES: usize = 256 * 1024;
const READ_ENTRIES: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Positions are kept in 32 bits, so this is at most 2 GiB.
    pub segment_bytes: u64,
    pub retention_bytes: u64,
    /// How many milliseconds an entry is kept at most.
    pub max_age: i64,
}

impl Limits {
    /// Whether a file that was begun then must take no more, so that its oldest entries can go in time.
    pub fn is_to_end(&self, begun: i64) -> bool {
        now_millis() - begun > self.max_age / 4
    }
}

/// A stream's number in the log, and whether its entries are kept until they are released.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub stream: u32,
    pub until_released: bool,
}

pub(super) struct Log {
    shared: Arc<Shared>,
    waiting: Arc<Semaphore>,
    appends: Option<mpsc::UnboundedSender<Append>>,
    committer: Option<JoinHandle<()>>,
}

/// What the committer and the readers share. Everything in it is durable.
pub(super) struct Shared {
    segments: RwLock<VecDeque<Segment>>,
    streams: BTreeMap<u32, Channel>,
}

/// See [`Log::open`].
pub(super) type Settle = Arc<dyn Fn() -> Result<(), StoreError> + Send + Sync>;

struct Channel {
    next: watch::Receiver<u64>,
    until_released: bool,
    released: AtomicU64,
}

impl Log {
    /// `settle` makes durable what stands for the entries that are released; it is called before any of them goes.
    pub fn open(dir: &Path, members: &[Member], limits: Limits, settle: Settle) -> Result<(Self, Recovery), OpenError> {
        let mut recovered = recover(dir)?;
        let io = |error| OpenError::io(dir, error);
        if recovered.segments.is_empty() {
            let preamble = Preamble { previous: None, next: recovered.next.clone() };
            recovered.segments.push_back(begin(dir, 1, &preamble).map_err(io)?);
        }
        let Some(last) = recovered.segments.back() else { return Err(io(std::io::ErrorKind::NotFound.into())) };
        let active = Active::of(last);
        recovered.confirmed.write(active.id, active.position).map_err(io)?;
        let mut watches = BTreeMap::new();
        let mut streams = BTreeMap::new();
        for Member { stream, until_released } in members.iter().copied() {
            let (sender, next) = watch::channel(recovered.next.get(&stream).copied().unwrap_or(0));
            watches.insert(stream, sender);
            streams.insert(stream, Channel { next, until_released, released: AtomicU64::new(0) });
        }
        let shared = Arc::new(Shared { segments: RwLock::new(recovered.segments), streams });
        let committer = Committer {
            dir: dir.to_owned(),
            limits,
            settle,
            shared: shared.clone(),
            confirmed: recovered.confirmed,
            next: recovered.next,
            watches,
            active,
            buffer: Vec::new(),
        };
        let (appends, receiver) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new().name("log-commit".to_owned());
        let committer = Some(thread.spawn(move || committer.run(receiver)).map_err(io)?);
        let log = Self { shared, waiting: Arc::new(Semaphore::new(WAITING_BYTES)), appends: Some(appends), committer };
        Ok((log, recovered.report))
    }

    pub async fn append(&self, stream: u32, body: Bytes) -> Result<(), AppendError> {
        if !self.shared.streams.contains_key(&stream) {
            return Err(AppendError::Unroutable(stream.to_string()));
        }
        if body.len() > BODY_BYTES {
            let reason = format!("an entry of {} bytes is longer than {BODY_BYTES}", body.len());
            return Err(AppendError::Unavailable { part: "log", reason });
        }
        let closed = || AppendError::Unavailable { part: "log", reason: "it was closed".to_owned() };
        let bytes = u32::try_from(body.len() + ENTRY_BYTES).unwrap_or(u32::MAX);
        let room = self.waiting.clone().acquire_many_owned(bytes).await.map_err(|_| closed())?;
        let (done, confirmed) = oneshot::channel();
        let append = Append { stream, body, done, room };
        self.appends.as_ref().ok_or_else(closed)?.send(append).map_err(|_| closed())?;
        confirmed.await.map_err(|_| closed())?
    }

    pub fn read(&self, stream: u32, from: From) -> Result<Box<dyn StreamReader>, ReadError> {
        let next = self.shared.channel(stream)?.next.clone();
        let end = *next.borrow();
        let at = match from {
            From::First => 0,
            // Past the end there is nothing to wait for: an offset that was lost is given out again.
            From::Offset(offset) => offset.min(end),
            From::New => end,
        };
        Ok(Box::new(Reader { shared: self.shared.clone(), stream, at, segment: 0, next }))
    }

    pub fn bounds(&self, stream: u32) -> Result<Bounds, ReadError> {
        let next = *self.shared.channel(stream)?.next.borrow();
        let first = self
            .shared
            .look(|segments| segments.iter().find_map(|segment| segment.runs.get(&stream).map(|run| run.first)));
        Ok(Bounds { first: first.unwrap_or(next).min(next), next })
    }

    pub fn release(&self, stream: u32, offset: u64) {
        if let Ok(channel) = self.shared.channel(stream) {
            channel.released.fetch_max(offset, Ordering::Relaxed);
        }
    }
}

impl Drop for Log {
    /// Comes back when what was appended is written and the files are closed.
    fn drop(&mut self) {
        self.appends = None;
        if let Some(committer) = self.committer.take()
            && committer.join().is_err()
        {
            tracing::error!("the log's committer had panicked");
        }
    }
}

impl Shared {
    pub fn change<T>(&self, change: impl FnOnce(&mut VecDeque<Segment>) -> T) -> T {
        change(&mut self.segments.write().unwrap_or_else(PoisonError::into_inner))
    }

    fn look<T>(&self, look: impl FnOnce(&VecDeque<Segment>) -> T) -> T {
        look(&self.segments.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn channel(&self, stream: u32) -> Result<&Channel, ReadError> {
        self.streams.get(&stream).ok_or_else(|| ReadError::Missing(stream.to_string()))
    }

    /// Drops the oldest segments that nobody needs until the log is as small and as young as it has to be. What stands for
    /// their entries is durable first: after a power cut the state may be an older one, whose checkpoint asks for them.
    pub fn drop_unneeded(&self, limits: Limits, settle: &Settle) {
        let unneeded = self.unneeded(limits);
        if unneeded.is_empty() {
            return;
        }
        if let Err(error) = settle() {
            tracing::warn!(%error, "no segment of the log is dropped before the state is durable");
            return;
        }
        let dropped = self.change(|segments| {
            let (dropped, kept): (VecDeque<Segment>, _) =
                segments.drain(..).partition(|segment| unneeded.contains(&segment.id));
            *segments = kept;
            dropped
        });
        for segment in dropped {
            match std::fs::remove_file(&segment.path) {
                Ok(()) => tracing::info!(file = %segment.path.display(), "dropped a segment of the log"),
                Err(error) => {
                    tracing::warn!(file = %segment.path.display(), %error, "cannot drop a segment of the log");
                }
            }
        }
    }

    /// The segments to drop, by their ids.
    fn unneeded(&self, Limits { retention_bytes, max_age, .. }: Limits) -> Vec<u64> {
        let oldest = now_millis().saturating_sub(max_age);
        self.look(|segments| {
            let total: u64 = segments.iter().map(|segment| segment.end).sum();
            let mut excess = total.saturating_sub(retention_bytes);
            let mut unneeded = Vec::new();
            for (segment, following) in segments.iter().zip(segments.iter().skip(1)) {
                // Segments are in the order of their age.
                if excess == 0 && following.begun >= oldest {
                    break;
                }
                if self.is_released(segment) {
                    excess = excess.saturating_sub(segment.end);
                    unneeded.push(segment.id);
                }
            }
            unneeded
        })
    }

    fn is_released(&self, segment: &Segment) -> bool {
        segment.runs.iter().all(|(stream, run)| {
            self.streams.get(stream).is_some_and(|channel| {
                !channel.until_released || run.next() <= channel.released.load(Ordering::Relaxed)
            })
        })
    }
}

struct Reader {
    shared: Arc<Shared>,
    stream: u32,
    /// The next offset to bring.
    at: u64,
    /// Where the last ones were.
    segment: u64,
    next: watch::Receiver<u64>,
}

/// Where some entries are that follow each other.
struct Found {
    segment: u64,
    path: std::path::PathBuf,
    file: Arc<File>,
    end: u64,
    first: u64,
    positions: Vec<u32>,
}

#[async_trait]
impl StreamReader for Reader {
    async fn next(&mut self) -> Result<Vec<Entry>, ReadError> {
        loop {
            if let Some(found) = self.find() {
                let entries = found.read(self.stream)?;
                self.segment = found.segment;
                self.at = entries.last().map_or(self.at, |last| last.offset + 1);
                return Ok(entries);
            }
            let at = self.at;
            let closed = |_| ReadError::Unavailable { part: "log", reason: "it was closed".to_owned() };
            self.next.wait_for(|next| *next > at).await.map_err(closed)?;
        }
    }
}

impl Reader {
    fn find(&self) -> Option<Found> {
        self.shared.look(|segments| {
            let start = segments.partition_point(|segment| segment.id < self.segment);
            segments.range(start..).find_map(|segment| {
                let run = segment.runs.get(&self.stream).filter(|run| run.next() > self.at)?;
                let first = self.at.max(run.first);
                let skip = usize::try_from(first - run.first).ok()?;
                Some(Found {
                    segment: segment.id,
                    path: segment.path.clone(),
                    file: segment.file.clone(),
                    end: segment.end,
                    first,
                    positions: run.positions[skip..].iter().take(READ_ENTRIES).copied().collect(),
                })
            })
        })
    }
}

impl Found {
    /// Reads the entries: in one go those that lie close together, the first in any case.
    fn read(&self, stream: u32) -> Result<Vec<Entry>, ReadError> {
        let start = u64::from(self.positions.first().copied().unwrap_or(0));
        let mut window = self.load(start, READ_BYTES)?;
        if let Some(header) = Header::decode(&window)
            && header.frame_bytes() > window.len()
            && header.body_bytes as usize <= BODY_BYTES
        {
            window = self.load(start, header.frame_bytes())?;
        }
        let mut entries = Vec::with_capacity(self.positions.len());
        for (offset, position) in (self.first..).zip(&self.positions) {
            let from = usize::try_from(u64::from(*position) - start).unwrap_or(usize::MAX);
            let frame = window.get(from..).unwrap_or_default();
            let header = Header::decode(frame);
            let body = header.and_then(|header| frame.get(HEADER_BYTES..header.frame_bytes()));
            match header.zip(body) {
                Some((header, body)) if header.matches(body) && (header.stream, header.offset) == (stream, offset) => {
                    entries.push(Entry { offset, at: from_millis(header.at), body: Bytes::copy_from_slice(body) });
                }
                None if !entries.is_empty() => break,
                _ => return self.damaged_unless_some(entries, *position),
            }
        }
        Ok(entries)
    }

    fn load(&self, start: u64, bytes: usize) -> Result<Vec<u8>, ReadError> {
        let left = usize::try_from(self.end.saturating_sub(start)).unwrap_or(usize::MAX);
        let mut window = vec![0; bytes.min(left)];
        self.file.read_exact_at(&mut window, start).map_err(|error| ReadError::Unavailable {
            part: "log",
            reason: format!("{}: {error}", self.path.display()),
        })?;
        Ok(window)
    }

    /// What comes before a damaged entry is still brought; the error comes when it is the next.
    fn damaged_unless_some(&self, entries: Vec<Entry>, position: u32) -> Result<Vec<Entry>, ReadError> {
        if entries.is_empty() {
            return Err(ReadError::Corrupt(format!("{} at byte {position}", self.path.display())));
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[tokio::test]
    async fn nothing_is_dropped_before_the_state_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let durable = Arc::new(AtomicBool::new(false));
        let is_durable = durable.clone();
        let settle: Settle = Arc::new(move || match is_durable.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(StoreError { part: "state", reason: "not yet".to_owned() }),
        });
        let limits = Limits { segment_bytes: 1_000, retention_bytes: 0, max_age: i64::MAX };
        let (log, _) = Log::open(dir.path(), &[Member { stream: 0, until_released: true }], limits, settle).unwrap();
        let fill = async || {
            for _ in 0..10 {
                log.append(0, Bytes::from(vec![b'x'; 500])).await.unwrap();
            }
            log.release(0, log.bounds(0).unwrap().next);
            log.append(0, Bytes::from_static(b"x")).await.unwrap();
            log.bounds(0).unwrap().first
        };
        assert_eq!(fill().await, 0);
        durable.store(true, Ordering::Relaxed);
        assert!(fill().await > 10);
    }
}
