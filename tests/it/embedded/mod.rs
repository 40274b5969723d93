//! What only the embedded engine promises: what it does about torn, damaged and full disks, and what it drops.

mod full_disk;
mod opening;
mod recovery;
mod retention;

use std::path::{Path, PathBuf};
use std::time::Duration;

use drone_delivery::stream::embedded::{self, Embedded, OpenError, Settings};
use drone_delivery::stream::{From, ReadError, Stream, Streams};

use crate::conformance::{soon, take};

const P0: Stream = Stream::Requests(0);
const P1: Stream = Stream::Requests(1);

fn settings(dir: &Path) -> Settings {
    Settings {
        data_dir: dir.join("data"),
        partitions: 2,
        segment_bytes: 4096,
        retention_bytes: 0,
        max_age: None,
        dead_letters: Duration::from_secs(3600),
    }
}

fn open(dir: &Path) -> Result<Embedded, OpenError> {
    embedded::open(&settings(dir))
}

/// The files of the log, oldest first.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir.join("data/log")).expect("the log").map(|file| file.expect("a file").path());
    let mut segments: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "log")).collect();
    segments.sort();
    segments
}

/// Everything in a stream, as text.
async fn all(streams: &dyn Streams, stream: Stream) -> Result<Vec<String>, ReadError> {
    let bounds = soon(streams.bounds(stream)).await?;
    let mut reader = soon(streams.read(stream, From::First)).await?;
    let count = usize::try_from(bounds.next - bounds.first).expect("a count");
    let entries = if count == 0 { Vec::new() } else { take(&mut *reader, count).await };
    Ok(entries.iter().map(|entry| String::from_utf8_lossy(&entry.body).into_owned()).collect())
}
