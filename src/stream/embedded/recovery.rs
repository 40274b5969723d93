//! What is done at the start of a log. The last segment is read in full and checked; the others, which were complete
//! before the last one was begun, by their headers (their bodies are checked when they are read).
//!
//! What does not fit behind the last confirmed byte is a write that a crash cut off: nobody was told that it was
//! durable. It is cut away and reported, unless it is only the room that was made for what was to come. What does not
//! fit before that byte was confirmed, so it is damage: the log does not open, says where it is, and leaves the rest to a
//! person. The file `confirmed` tells the two apart.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::OpenError;
use super::segment::{Bodies, Preamble, Segment, Walked, walk};

const CHANGED: &str = "what was confirmed is not as it was written";
const CUT_OFF: &str = "remove the file `confirmed` beside it: the log then ends there";
const LEAVE_OUT: &str = "move the file away: its entries are then left out";

/// What was cut away at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    pub torn: Vec<Torn>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    pub file: PathBuf,
    pub position: u64,
    pub bytes: u64,
}

pub(super) struct Recovered {
    pub segments: VecDeque<Segment>,
    pub next: BTreeMap<u32, u64>,
    pub confirmed: Confirmed,
    pub report: Recovery,
}

pub(super) fn recover(dir: &Path) -> Result<Recovered, OpenError> {
    let io = |error| OpenError::io(dir, error);
    std::fs::create_dir_all(dir).map_err(io)?;
    let mut ids = segment_ids(dir).map_err(io)?;
    let confirmed = Confirmed::open(dir).map_err(io)?;
    let known = confirmed.read().map_err(io)?;
    if let Some((id, position)) = known
        && ids.last().is_none_or(|last| *last < id)
    {
        let file = Segment::path_of(dir, id);
        return Err(OpenError::Damaged { file, position, reason: "it is missing", remedy: CUT_OFF });
    }
    let mut recovered =
        Recovered { segments: VecDeque::new(), next: BTreeMap::new(), confirmed, report: Recovery::default() };
    let mut preamble = None;
    while let Some(id) = ids.pop() {
        let floor = known.map_or(0, |(segment, position)| if segment == id { position } else { 0 });
        if let Some(walked) = last_segment(dir, id, floor, &mut recovered.report)? {
            recovered.next = walked.preamble.next.clone();
            recovered.next.extend(walked.segment.runs.iter().map(|(stream, run)| (*stream, run.next())));
            recovered.segments.push_front(walked.segment);
            preamble = Some(walked.preamble);
            break;
        }
    }
    while let (Some(id), Some(behind)) = (ids.pop(), &preamble) {
        let walked = sealed_segment(dir, id, behind)?;
        recovered.segments.push_front(walked.segment);
        preamble = Some(walked.preamble);
    }
    Ok(recovered)
}

/// Checks the last segment and cuts a torn tail off; nothing comes back when the file was only begun.
fn last_segment(dir: &Path, id: u64, floor: u64, report: &mut Recovery) -> Result<Option<Walked>, OpenError> {
    let path = Segment::path_of(dir, id);
    let io = |error| OpenError::io(&path, error);
    let length = path.metadata().map_err(io)?.len();
    let walked = walk(&path, id, length, Bodies::Checked).map_err(io)?;
    let end = walked.as_ref().map_or(0, |walked| walked.segment.end);
    if end < floor {
        return Err(OpenError::Damaged { file: path, position: end, reason: CHANGED, remedy: CUT_OFF });
    }
    let torn = end < length && !is_room(&path, end).map_err(io)?;
    if torn {
        tracing::warn!(file = %path.display(), position = end, bytes = length - end, "cut off a torn tail of the log");
        report.torn.push(Torn { file: path.clone(), position: end, bytes: length - end });
    }
    match &walked {
        // Also when nothing is cut off: its last entries may have been written and not synced, and are taken for
        // confirmed from now on.
        Some(walked) => walked.segment.file.set_len(end).and_then(|()| walked.segment.file.sync_all()).map_err(io)?,
        None => std::fs::remove_file(&path).map_err(io)?,
    }
    Ok(walked)
}

/// Reads a segment that was complete when the one behind it was begun.
fn sealed_segment(dir: &Path, id: u64, behind: &Preamble) -> Result<Walked, OpenError> {
    let path = Segment::path_of(dir, id);
    let io = |error| OpenError::io(&path, error);
    let length = path.metadata().map_err(io)?.len();
    let noted = behind.previous.filter(|(previous, _)| *previous == id).map(|(_, end)| end);
    let walked = walk(&path, id, noted.unwrap_or(length).min(length), Bodies::Skipped).map_err(io)?;
    let reached = walked.as_ref().map_or(0, |walked| walked.segment.end);
    // Where the segment behind it is gone, nobody noted where this one ended.
    let whole = match noted {
        Some(end) => reached == end,
        None => is_room(&path, reached).map_err(io)?,
    };
    match walked {
        Some(walked) if whole => {
            if reached < length {
                walked.segment.file.set_len(reached).map_err(io)?;
            }
            Ok(walked)
        }
        _ => Err(OpenError::Damaged { file: path, position: reached, reason: CHANGED, remedy: LEAVE_OUT }),
    }
}

/// Whether a file holds nothing but zeros from there on: room that was made ahead, and no entry got into.
fn is_room(path: &Path, start: u64) -> std::io::Result<bool> {
    let mut file = BufReader::new(File::open(path)?);
    file.seek(SeekFrom::Start(start))?;
    loop {
        let bytes = file.fill_buf()?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        match bytes.len() {
            0 => return Ok(true),
            read => file.consume(read),
        }
    }
}

fn segment_ids(dir: &Path) -> std::io::Result<Vec<u64>> {
    let mut ids = Vec::new();
    for file in std::fs::read_dir(dir)? {
        ids.extend(Segment::id_of(&file?.path()));
    }
    ids.sort_unstable();
    Ok(ids)
}

/// How far the log is confirmed: segment, position and a checksum, written behind every fsync and never fsynced
/// itself. After a crash of the process it is exact; after a power cut it may lag, never lead.
pub(super) struct Confirmed(File);

impl Confirmed {
    fn open(dir: &Path) -> std::io::Result<Self> {
        let path = dir.join("confirmed");
        Ok(Self(File::options().read(true).write(true).create(true).truncate(false).open(path)?))
    }

    fn read(&self) -> std::io::Result<Option<(u64, u64)>> {
        let mut bytes = [0; 20];
        match self.0.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        Ok(Self::decode(&bytes))
    }

    pub fn write(&self, segment: u64, position: u64) -> std::io::Result<()> {
        let mut bytes = [segment.to_le_bytes(), position.to_le_bytes()].concat();
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        self.0.write_all_at(&bytes, 0)
    }

    fn decode(bytes: &[u8]) -> Option<(u64, u64)> {
        let (payload, crc) = bytes.split_last_chunk()?;
        let (segment, rest) = payload.split_first_chunk()?;
        let position = rest.first_chunk()?;
        let is_whole = crc32fast::hash(payload) == u32::from_le_bytes(*crc);
        is_whole.then_some((u64::from_le_bytes(*segment), u64::from_le_bytes(*position)))
    }
}
