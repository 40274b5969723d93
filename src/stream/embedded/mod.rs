//! The embedded engine: streams, queues and state in one directory of this disk, for one process.
//!
//! ```text
//! data_dir/lock          held while a process uses the directory
//! data_dir/layout        format and number of partitions
//! data_dir/log/          the requests and the status stream, see `log`
//! data_dir/dead-letters/ the dead letters: a log of their own that drops nothing before its time
//! data_dir/state/        the state and the queues
//! ```

mod committer;
mod frame;
mod log;
mod queue;
mod recovery;
mod segment;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use self::log::{Limits, Log, Member, Settle};
pub use self::queue::EmbeddedQueues;
pub use self::recovery::{Recovery, Torn};
use super::{AppendError, Bounds, From, ReadError, Stream, StreamReader, Streams};
use crate::store::embedded::EmbeddedState;

const FORMAT: u32 = 4;
const STATUS: u32 = u32::MAX - 2;
const DEAD_LETTERS: u32 = u32::MAX - 1;
/// Positions in a segment are 32 bits wide, and the last group may go past this.
const SEGMENT_BYTES_MAX: u64 = 1 << 31;

#[derive(Clone, Debug)]
pub struct Settings {
    pub data_dir: PathBuf,
    pub partitions: u32,
    /// How large a file of a log becomes before the next is begun.
    pub segment_bytes: u64,
    /// How much of what nobody needs any more is kept.
    pub retention_bytes: u64,
    /// How long it is kept at most; none: for ever.
    pub max_age: Option<Duration>,
    /// How long dead letters are kept.
    pub dead_letters: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another process uses {}: stop it first, or use another data directory", .0.display())]
    InUse(PathBuf),
    #[error(
        "{} was laid out with {found} partitions and {wanted} are configured: operations of one delivery would go to \
         different partitions. Set partitions.count to {found}, or begin with another data directory",
        .dir.display()
    )]
    OtherPartitions { dir: PathBuf, found: u32, wanted: u32 },
    #[error(
        "{} was laid out in format {found} and this version writes {FORMAT}: use the version that wrote it, or begin with \
         another data directory",
        .dir.display()
    )]
    OtherFormat { dir: PathBuf, found: u32 },
    #[error("{} does not tell how the data beside it is laid out: {reason}. Restore it from a backup", .file.display())]
    Layout { file: PathBuf, reason: String },
    #[error(
        "{} is damaged at byte {position}: {reason}. Restore the file from a backup. To go on without what was \
         confirmed there, keep a copy and {remedy}",
        .file.display()
    )]
    Damaged { file: PathBuf, position: u64, reason: &'static str, remedy: &'static str },
    #[error("{}: {error}", .path.display())]
    Io { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    State(#[from] crate::store::embedded::OpenError),
}

impl OpenError {
    fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

/// The parts of the engine, and what was cut away when it was opened.
pub struct Embedded {
    pub state: Arc<EmbeddedState>,
    pub streams: Arc<EmbeddedStreams>,
    pub queues: Arc<EmbeddedQueues>,
    pub recovery: Recovery,
}

/// Opens the engine, making the directory when there is none. It is closed when the last of its parts is dropped.
pub fn open(settings: &Settings) -> Result<Embedded, OpenError> {
    let dir = &settings.data_dir;
    std::fs::create_dir_all(dir).map_err(|error| OpenError::io(dir, error))?;
    let lock = lock(dir)?;
    check_layout(dir, settings.partitions)?;
    let state = Arc::new(EmbeddedState::open(&dir.join("state"))?);
    let durable = state.clone();
    let (streams, recovery) = EmbeddedStreams::open(settings, lock, Arc::new(move || durable.sync()))?;
    let streams = Arc::new(streams);
    let queues = Arc::new(EmbeddedQueues::new(state.clone(), streams.clone()));
    Ok(Embedded { state, streams, queues, recovery })
}

/// Keeps others out of the directory.
struct Lock(File);

impl Drop for Lock {
    /// Closing the file would not do: a child process that is just being started has it as well.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "cannot unlock the data directory");
        }
    }
}

fn lock(dir: &Path) -> Result<Lock, OpenError> {
    let path = dir.join("lock");
    let io = |error| OpenError::io(&path, error);
    let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(io(error)),
    }
}

#[derive(Serialize, Deserialize)]
struct Layout {
    format: u32,
    partitions: u32,
}

/// Compares the layout with what is configured, or writes it down when there is no data yet.
fn check_layout(dir: &Path, partitions: u32) -> Result<(), OpenError> {
    let file = dir.join("layout");
    let unclear = |reason: String| OpenError::Layout { file: file.clone(), reason };
    match std::fs::read(&file) {
        Ok(bytes) => {
            let layout: Layout = serde_json::from_slice(&bytes).map_err(|error| unclear(error.to_string()))?;
            if layout.format != FORMAT {
                return Err(OpenError::OtherFormat { dir: dir.to_owned(), found: layout.format });
            }
            if layout.partitions != partitions {
                return Err(OpenError::OtherPartitions {
                    dir: dir.to_owned(),
                    found: layout.partitions,
                    wanted: partitions,
                });
            }
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if dir.join("log").exists() {
                return Err(unclear("it is missing".to_owned()));
            }
            write_layout(&file, &Layout { format: FORMAT, partitions }).map_err(|error| OpenError::io(&file, error))
        }
        Err(error) => Err(OpenError::io(&file, error)),
    }
}

/// Writes the file beside its place and moves it there, so that it is whole or missing.
fn write_layout(file: &Path, layout: &Layout) -> std::io::Result<()> {
    let beside = file.with_extension("new");
    std::fs::write(&beside, serde_json::to_vec(layout)?)?;
    File::open(&beside)?.sync_all()?;
    std::fs::rename(&beside, file)?;
    file.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The streams of the engine, in two logs.
pub struct EmbeddedStreams {
    log: Log,
    dead_letters: Log,
    _lock: Lock,
}

impl EmbeddedStreams {
    fn open(settings: &Settings, lock: Lock, settle: Settle) -> Result<(Self, Recovery), OpenError> {
        let segment_bytes = settings.segment_bytes.min(SEGMENT_BYTES_MAX);
        let max_age = settings.max_age.map_or(i64::MAX, millis);
        let limits = Limits { segment_bytes, retention_bytes: settings.retention_bytes, max_age };
        let member = |stream, until_released| Member { stream, until_released };
        let mut members: Vec<Member> = (0..settings.partitions).map(|partition| member(partition, true)).collect();
        members.push(member(STATUS, false));
        let (log, mut recovery) = Log::open(&settings.data_dir.join("log"), &members, limits, settle)?;
        let limits = Limits { segment_bytes, retention_bytes: u64::MAX, max_age: millis(settings.dead_letters) };
        let dir = settings.data_dir.join("dead-letters");
        // Nothing stands for a dead letter.
        let (dead_letters, torn) = Log::open(&dir, &[member(DEAD_LETTERS, false)], limits, Arc::new(|| Ok(())))?;
        recovery.torn.extend(torn.torn);
        Ok((Self { log, dead_letters, _lock: lock }, recovery))
    }

    fn place(&self, stream: Stream) -> (&Log, u32) {
        match stream {
            Stream::Requests(partition) => (&self.log, partition),
            Stream::Status => (&self.log, STATUS),
            Stream::DeadLetters => (&self.dead_letters, DEAD_LETTERS),
        }
    }
}

#[async_trait]
impl Streams for EmbeddedStreams {
    async fn append(&self, stream: Stream, body: Bytes) -> Result<(), AppendError> {
        let (log, number) = self.place(stream);
        log.append(number, body).await
    }

    async fn read(&self, stream: Stream, from: From) -> Result<Box<dyn StreamReader>, ReadError> {
        let (log, number) = self.place(stream);
        log.read(number, from)
    }

    async fn bounds(&self, stream: Stream) -> Result<Bounds, ReadError> {
        let (log, number) = self.place(stream);
        log.bounds(number)
    }

    async fn release(&self, stream: Stream, offset: u64) {
        let (log, number) = self.place(stream);
        log.release(number, offset);
    }

    /// The streams are there from the start.
    async fn ensure(&self, _stream: Stream) -> Result<(), AppendError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_free_though_a_child_process_has_its_lock_open() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path()).unwrap();
        let _of_a_child = held.0.try_clone().unwrap();
        assert!(matches!(lock(dir.path()), Err(OpenError::InUse(_))));
        drop(held);
        assert!(lock(dir.path()).is_ok());
    }
}
