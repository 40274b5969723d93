//! One file of the log, and where in it the entries of every stream are. The first frame of a segment, its preamble,
//! says where every stream stood when the segment was begun and where the one before it ended, so that older segments
//! can be dropped whole and a tail left behind by a failed write is never taken for entries.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::frame::{BODY_BYTES, HEADER_BYTES, Header};

/// The stream number of the preamble.
pub(super) const PREAMBLE: u32 = u32::MAX;
const WINDOW_BYTES: usize = 64 * 1024;

#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct Preamble {
    /// The segment before this one and its confirmed length.
    pub previous: Option<(u64, u64)>,
    /// The next offset of every stream that has entries.
    pub next: BTreeMap<u32, u64>,
}

pub(super) struct Segment {
    pub id: u64,
    pub path: PathBuf,
    pub file: Arc<File>,
    /// When the file was begun: every entry is as old as the next one's beginning, or older.
    pub begun: i64,
    /// How much of the file is durable.
    pub end: u64,
    pub runs: BTreeMap<u32, Run>,
}

/// The entries of one stream in one segment: their offsets are contiguous.
pub(super) struct Run {
    pub first: u64,
    pub positions: Vec<u32>,
}

impl Run {
    /// The offset behind the last.
    pub fn next(&self) -> u64 {
        self.first + self.positions.len() as u64
    }
}

impl Segment {
    pub fn path_of(dir: &Path, id: u64) -> PathBuf {
        dir.join(format!("{id:010}.log"))
    }

    /// The number of the segment that a file is, if it is one.
    pub fn id_of(path: &Path) -> Option<u64> {
        path.file_name()?.to_str()?.strip_suffix(".log")?.parse().ok()
    }

    /// Notes an entry; those of a stream come in their order.
    pub fn place(&mut self, stream: u32, offset: u64, position: u32) {
        let run = self.runs.entry(stream).or_insert_with(|| Run { first: offset, positions: Vec::new() });
        run.positions.push(position);
    }
}

/// What was found in a file, up to the first byte that is not as it must be.
pub(super) struct Walked {
    pub segment: Segment,
    pub preamble: Preamble,
}

/// Whether the bodies are read and checked, or only the headers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bodies {
    Checked,
    Skipped,
}

/// Reads the frames of a segment's first `end` bytes. `Walked::segment.end` tells how far they are sound; nothing comes
/// back when not even the preamble is.
pub(super) fn walk(path: &Path, id: u64, end: u64, bodies: Bodies) -> std::io::Result<Option<Walked>> {
    let file = Arc::new(File::options().read(true).write(true).open(path)?);
    let mut window = Window { file: &file, bytes: Vec::new(), start: 0, end };
    let Some((header, body)) = window.frame(0, Bodies::Checked)? else { return Ok(None) };
    let preamble = (header.stream == PREAMBLE && header.offset == id).then(|| serde_json::from_slice(body));
    let Some(Ok(preamble)) = preamble else { return Ok(None) };
    let (preamble, begun): (Preamble, i64) = (preamble, header.at);
    let mut position = header.frame_bytes() as u64;
    let mut next = preamble.next.clone();
    let mut segment =
        Segment { id, path: path.to_owned(), file: file.clone(), begun, end: position, runs: BTreeMap::default() };
    while let Some((header, _)) = window.frame(position, bodies)? {
        let expected = next.entry(header.stream).or_default();
        let Ok(at) = u32::try_from(position) else { break };
        if header.offset != *expected || header.stream == PREAMBLE {
            break;
        }
        *expected += 1;
        segment.place(header.stream, header.offset, at);
        position += header.frame_bytes() as u64;
    }
    segment.end = position;
    Ok(Some(Walked { segment, preamble }))
}

/// A part of a file in memory, moved on as it is read.
struct Window<'a> {
    file: &'a File,
    bytes: Vec<u8>,
    start: u64,
    end: u64,
}

impl Window<'_> {
    /// The frame at a position, if there is a whole and sound one before the end.
    fn frame(&mut self, position: u64, bodies: Bodies) -> std::io::Result<Option<(Header, &[u8])>> {
        let header = self.load(position, HEADER_BYTES)?.and_then(Header::decode);
        // Zeros are room for what was to come; where bodies are skipped nothing else would tell.
        let Some(header) = header.filter(|header| header.at != 0) else { return Ok(None) };
        let bytes = header.frame_bytes();
        if header.body_bytes as usize > BODY_BYTES || position + bytes as u64 > self.end {
            return Ok(None);
        }
        if bodies == Bodies::Skipped {
            return Ok(Some((header, &[])));
        }
        let body = self.load(position, bytes)?.map(|frame| &frame[HEADER_BYTES..]);
        Ok(body.filter(|body| header.matches(body)).map(|body| (header, body)))
    }

    fn load(&mut self, position: u64, bytes: usize) -> std::io::Result<Option<&[u8]>> {
        if position + bytes as u64 > self.end {
            return Ok(None);
        }
        let held = self.start..self.start + self.bytes.len() as u64;
        if !(held.contains(&position) && position + bytes as u64 <= held.end) {
            let left = usize::try_from(self.end - position).unwrap_or(usize::MAX);
            self.bytes.resize(bytes.max(WINDOW_BYTES).min(left), 0);
            self.start = position;
            self.file.read_exact_at(&mut self.bytes, position)?;
        }
        let from = usize::try_from(position - self.start).unwrap_or(usize::MAX);
        Ok(self.bytes.get(from..from + bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_entries_take_a_few_megabytes_of_memory() {
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        let mut segment = Segment { id: 1, path: PathBuf::new(), file, begun: 0, end: 0, runs: BTreeMap::new() };
        for entry in 0..1_000_000 {
            segment.place(entry % 8, u64::from(entry / 8), entry);
        }
        let bytes: usize = segment.runs.values().map(|run| run.positions.capacity() * size_of::<u32>()).sum();
        assert!(bytes < 9_000_000, "{bytes}");
        assert_eq!(segment.runs.values().map(Run::next).sum::<u64>(), 1_000_000);
    }
}
