//! The one thread that writes a log. Everything that waits goes out in one write and one fdatasync, then all of it is
//! confirmed and shown to the readers: under load groups grow, and what comes alone waits for nothing.
//!
//! Room is written out as zeros ahead of the entries: an fdatasync within it has only the entries' pages to bring to the
//! disk, while one behind the end of the file has the file's own length to bring there as well.
//!
//! When a write fails the group is refused and what got onto the disk of it is cut off again before anything else is
//! written, so a full disk costs only what was refused. When an fsync fails nothing can be said about the pages it
//! should have written, and a second fsync would succeed without writing them: the group is refused, the segment ends
//! at its last confirmed byte, and writing goes on in a new file.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};

use super::frame::{HEADER_BYTES, Header};
use super::log::{Limits, Settle, Shared};
use super::recovery::Confirmed;
use super::segment::{PREAMBLE, Preamble, Segment};
use crate::domain::time::now_millis;
use crate::stream::AppendError;

/// A group takes no more entries beyond this size.
const GROUP_BYTES: usize = 8 * 1024 * 1024;
/// While several entries come at once, groups are begun this far apart: an fdatasync costs the processor the same for one
/// as for many. An entry that comes alone does not wait.
const APART: Duration = Duration::from_millis(1);
/// How much room is made at once. More would hold up the group that makes it.
static ROOM: [u8; 1024 * 1024] = [0; 1024 * 1024];
/// No room is made behind a group of this size.
const LARGE: usize = 64 * 1024;

pub(super) struct Append {
    pub stream: u32,
    pub body: Bytes,
    pub done: oneshot::Sender<Result<(), AppendError>>,
    /// This entry's part of the memory that waiting entries may take.
    pub room: OwnedSemaphorePermit,
}

pub(super) struct Committer {
    pub dir: PathBuf,
    pub limits: Limits,
    pub settle: Settle,
    pub shared: Arc<Shared>,
    pub confirmed: Confirmed,
    pub next: BTreeMap<u32, u64>,
    /// Tells the readers of each stream its next offset.
    pub watches: BTreeMap<u32, watch::Sender<u64>>,
    pub active: Active,
    pub buffer: Vec<u8>,
}

/// The segment that is written to.
pub(super) struct Active {
    pub id: u64,
    pub file: Arc<File>,
    pub begun: i64,
    /// Where the next group goes: everything before is confirmed.
    pub position: u64,
    /// Where the zeros behind it end.
    pub room: u64,
    pub leftover: Leftover,
}

impl Active {
    pub fn of(segment: &Segment) -> Self {
        let Segment { id, begun, end: position, .. } = *segment;
        Self { id, file: segment.file.clone(), begun, position, room: position, leftover: Leftover::Nothing }
    }

    /// Writes a group and, where it goes beyond the room, more room behind it, up to `most` of the file. A disk that has
    /// none left for that may have some for the group. Behind a large group it would be used up by the next one, and make
    /// the disk write everything twice.
    fn write(&mut self, group: &[u8], most: u64) -> std::io::Result<()> {
        self.file.write_all_at(group, self.position)?;
        let end = self.position + group.len() as u64;
        if end > self.room {
            let more = if group.len() < LARGE { most.saturating_sub(end).min(ROOM.len() as u64) } else { 0 };
            let zeros = &ROOM[..usize::try_from(more).unwrap_or(ROOM.len())];
            self.room = end + more;
            if self.file.write_all_at(zeros, end).is_err() {
                self.cut(end)?;
            }
        }
        Ok(())
    }

    /// Ends the file there.
    fn cut(&mut self, end: u64) -> std::io::Result<()> {
        self.file.set_len(end)?;
        self.room = end;
        Ok(())
    }
}

/// What a failed group left behind `position`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leftover {
    Nothing,
    /// Bytes to be cut off.
    Bytes,
    /// Bytes to be cut off, in a file that is to be written no more.
    Unsynced,
}

impl Committer {
    pub fn run(mut self, mut appends: mpsc::UnboundedReceiver<Append>) {
        let (mut begun, mut entries) = (Instant::now(), 0);
        while let Some(first) = appends.blocking_recv() {
            if entries > 1 {
                std::thread::sleep(APART.saturating_sub(begun.elapsed()));
            }
            begun = Instant::now();
            let mut bytes = first.body.len();
            let mut group = vec![first];
            while bytes < GROUP_BYTES
                && let Ok(append) = appends.try_recv()
            {
                bytes += append.body.len();
                group.push(append);
            }
            entries = group.len();
            self.commit(group);
        }
        self.tidy();
    }

    /// Takes the room back that is not needed any more.
    fn tidy(&mut self) {
        if let Err(error) = self.active.cut(self.active.position) {
            tracing::warn!(%error, "cannot cut the unused room off the log");
        }
    }

    fn commit(&mut self, group: Vec<Append>) {
        self.shared.drop_unneeded(self.limits, &self.settle);
        let result = self.write(&group);
        if let Err(error) = &result {
            tracing::error!(%error, entries = group.len(), "refused entries of the log");
        }
        for Append { done, room, .. } in group {
            drop(room);
            // Whoever asked may be gone; the entry is written all the same.
            let _ = done.send(result.as_ref().copied().map_err(clone_error));
        }
    }

    fn write(&mut self, group: &[Append]) -> Result<(), AppendError> {
        self.clear_leftover().map_err(|error| refused(&error))?;
        if self.active.position >= self.limits.segment_bytes || self.limits.is_to_end(self.active.begun) {
            self.roll().map_err(|error| refused(&error))?;
        }
        let placed = self.encode(group);
        let written = self.active.write(&self.buffer, self.limits.segment_bytes);
        written.map_err(|error| self.give_up(Leftover::Bytes, &error))?;
        self.active.file.sync_data().map_err(|error| self.give_up(Leftover::Unsynced, &error))?;
        self.active.position += self.buffer.len() as u64;
        self.publish(&placed);
        Ok(())
    }

    /// Puts the group's frames into the buffer; comes back with where they will be.
    fn encode(&mut self, group: &[Append]) -> Vec<(u32, u64, u32)> {
        let at = now_millis();
        let mut next = BTreeMap::new();
        self.buffer.clear();
        self.buffer.shrink_to(GROUP_BYTES);
        let mut placed = Vec::with_capacity(group.len());
        for Append { stream, body, .. } in group {
            let offset = next.entry(*stream).or_insert_with(|| self.next.get(stream).copied().unwrap_or(0));
            let position = self.active.position + self.buffer.len() as u64;
            // Segments end far below 4 GiB: `Limits` sees to it.
            placed.push((*stream, *offset, u32::try_from(position).unwrap_or(u32::MAX)));
            self.buffer.extend(Header::of(*stream, *offset, at, body).encode());
            self.buffer.extend_from_slice(body);
            *offset += 1;
        }
        placed
    }

    fn publish(&mut self, placed: &[(u32, u64, u32)]) {
        self.confirm();
        self.shared.change(|segments| {
            if let Some(segment) = segments.back_mut() {
                placed.iter().for_each(|(stream, offset, position)| segment.place(*stream, *offset, *position));
                segment.end = self.active.position;
            }
        });
        for (stream, offset, _) in placed {
            self.next.insert(*stream, offset + 1);
        }
        for (stream, watch) in &self.watches {
            let next = self.next.get(stream).copied().unwrap_or(0);
            watch.send_if_modified(|shown| std::mem::replace(shown, next) != next);
        }
    }

    fn confirm(&self) {
        if let Err(error) = self.confirmed.write(self.active.id, self.active.position) {
            tracing::warn!(%error, "cannot note how far the log is confirmed");
        }
    }

    /// Tidies up after a failed group and says what its writers are told.
    fn give_up(&mut self, leftover: Leftover, error: &std::io::Error) -> AppendError {
        self.active.leftover = leftover;
        match (self.clear_leftover(), leftover) {
            (Ok(()), Leftover::Bytes) => refused(error),
            (Ok(()), _) => unknown(error),
            (Err(again), _) => unknown(&again),
        }
    }

    fn clear_leftover(&mut self) -> std::io::Result<()> {
        if self.active.leftover != Leftover::Nothing {
            self.active.cut(self.active.position)?;
        }
        if self.active.leftover == Leftover::Unsynced {
            self.roll()?;
        }
        self.active.leftover = Leftover::Nothing;
        Ok(())
    }

    /// Begins a new segment. A file left by an attempt that failed is written over.
    fn roll(&mut self) -> std::io::Result<()> {
        self.tidy();
        let previous = Some((self.active.id, self.active.position));
        let segment = begin(&self.dir, self.active.id + 1, &Preamble { previous, next: self.next.clone() })?;
        self.active = Active::of(&segment);
        self.shared.change(|segments| segments.push_back(segment));
        self.confirm();
        Ok(())
    }
}

/// Makes a segment file that holds only its preamble, durably.
pub(super) fn begin(dir: &std::path::Path, id: u64, preamble: &Preamble) -> std::io::Result<Segment> {
    let path = Segment::path_of(dir, id);
    let body = serde_json::to_vec(preamble)?;
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    let begun = now_millis();
    let frame = [&Header::of(PREAMBLE, id, begun, &body).encode()[..], &body].concat();
    file.write_all_at(&frame, 0)?;
    file.sync_all()?;
    File::open(dir)?.sync_all()?;
    let end = (HEADER_BYTES + body.len()) as u64;
    Ok(Segment { id, path, file: Arc::new(file), begun, end, runs: BTreeMap::new() })
}

/// Nothing of it was kept.
fn refused(error: &std::io::Error) -> AppendError {
    AppendError::NoRoom(error.to_string())
}

/// A crash just now could bring it back.
fn unknown(error: &std::io::Error) -> AppendError {
    AppendError::Unavailable { part: "log", reason: error.to_string() }
}

fn clone_error(error: &AppendError) -> AppendError {
    match error {
        AppendError::NoRoom(reason) => AppendError::NoRoom(reason.clone()),
        error => AppendError::Unavailable { part: "log", reason: error.to_string() },
    }
}
