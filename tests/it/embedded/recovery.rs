//! A torn tail is cut off; damage to what was confirmed is refused or reported, never passed over.

use std::path::{Path, PathBuf};

use drone_delivery::stream::embedded::OpenError;
use drone_delivery::stream::{From, ReadError, Streams};

use super::{P0, P1, all, open, segments};
use crate::conformance::{append, soon};

/// A log of one segment with three entries, the last of which can be taken for unconfirmed.
struct ThreeEntries {
    dir: tempfile::TempDir,
    segment: PathBuf,
    content: Vec<u8>,
    /// Where the last entry begins.
    last: usize,
    /// What `confirmed` held before the last entry and after it.
    confirmed: [Vec<u8>; 2],
}

impl ThreeEntries {
    async fn write() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = open(dir.path()).expect("open");
        append(&*engine.streams, P0, "one").await;
        append(&*engine.streams, P1, "other").await;
        drop(engine);
        let segment = segments(dir.path()).remove(0);
        let last = std::fs::read(&segment).expect("the segment").len();
        let confirmed = || std::fs::read(dir.path().join("data/log/confirmed")).expect("confirmed");
        let before = confirmed();
        let engine = open(dir.path()).expect("open again");
        append(&*engine.streams, P0, "three").await;
        drop(engine);
        let confirmed = [before, confirmed()];
        let content = std::fs::read(&segment).expect("the segment");
        Self { dir, segment, content, last, confirmed }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn put(&self, content: &[u8], confirmed: &[u8]) {
        std::fs::write(&self.segment, content).expect("write");
        std::fs::write(self.path().join("data/log/confirmed"), confirmed).expect("write");
    }

    fn assert_damaged(&self, at: u64) {
        match open(self.path()).err() {
            Some(OpenError::Damaged { file, position, .. }) => assert_eq!((file, position), (self.segment.clone(), at)),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_tail_torn_at_any_byte_is_cut_off_and_reported() {
    let log = ThreeEntries::write().await;
    for cut in log.last..=log.content.len() {
        log.put(&log.content[..cut], &log.confirmed[0]);
        let engine = open(log.path()).expect("a torn tail is no damage");
        let is_whole = cut == log.content.len();
        let mut expected = vec!["one"];
        expected.extend(is_whole.then_some("three"));
        assert_eq!(all(&*engine.streams, P0).await.expect("read"), expected, "cut at {cut}");
        assert_eq!(all(&*engine.streams, P1).await.expect("read"), ["other"]);
        let torn: Vec<_> = engine.recovery.torn.iter().map(|torn| (torn.position, torn.bytes)).collect();
        if is_whole || cut == log.last {
            assert_eq!(torn, []);
        } else {
            assert_eq!(torn, [(log.last as u64, (cut - log.last) as u64)]);
        }
        append(&*engine.streams, P0, "next").await;
        expected.push("next");
        drop(engine);
        let engine = open(log.path()).expect("open again");
        assert_eq!(engine.recovery.torn, []);
        assert_eq!(all(&*engine.streams, P0).await.expect("read"), expected);
    }
}

#[tokio::test]
async fn a_tail_of_rubbish_is_cut_off() {
    let log = ThreeEntries::write().await;
    let zeros_and_one = [&[0; 5000][..], b"1"].concat();
    for rubbish in [&zeros_and_one[..], &[255; 40], &log.content[log.last..], b"x"] {
        log.put(&[&log.content[..], rubbish].concat(), &log.confirmed[1]);
        let engine = open(log.path()).expect("open");
        assert_eq!(engine.recovery.torn[0].bytes, rubbish.len() as u64);
        assert_eq!(all(&*engine.streams, P0).await.expect("read"), ["one", "three"]);
    }
}

#[tokio::test]
async fn room_made_ahead_is_used_and_a_crash_in_it_is_nothing_to_report() {
    let log = ThreeEntries::write().await;
    log.put(&[&log.content[..], &[0; 5000]].concat(), &log.confirmed[1]);
    let engine = open(log.path()).expect("open");
    assert_eq!(engine.recovery.torn, []);
    let length = || log.segment.metadata().expect("the segment").len();
    assert_eq!(length(), log.content.len() as u64);
    append(&*engine.streams, P0, "four").await;
    let with_room = length();
    append(&*engine.streams, P0, "five").await;
    assert_eq!(length(), with_room, "there was room for it");
    assert_eq!(all(&*engine.streams, P0).await.expect("read"), ["one", "three", "four", "five"]);
    drop(engine);
    assert!(length() < with_room, "what is not needed is given back");
}

#[tokio::test]
async fn a_confirmed_entry_cut_at_any_byte_is_damage() {
    let log = ThreeEntries::write().await;
    for cut in log.last..log.content.len() {
        log.put(&log.content[..cut], &log.confirmed[1]);
        log.assert_damaged(log.last as u64);
    }
    let message = open(log.path()).err().expect("still damaged").to_string();
    assert!(message.contains("backup") && message.contains("damaged at byte"), "{message}");
    log.put(&log.content, &log.confirmed[1]);
    drop(open(log.path()).expect("nothing was changed"));
    log.put(&log.content[..log.last + 1], &[]);
    let engine = open(log.path()).expect("the remedy works");
    assert_eq!(all(&*engine.streams, P0).await.expect("read"), ["one"]);
}

#[tokio::test]
async fn a_confirmed_entry_with_any_byte_flipped_is_damage() {
    let log = ThreeEntries::write().await;
    for place in log.last..log.content.len() {
        let mut content = log.content.clone();
        content[place] ^= 0x10;
        log.put(&content, &log.confirmed[1]);
        log.assert_damaged(log.last as u64);
    }
}

#[tokio::test]
async fn a_missing_file_is_damage() {
    let log = ThreeEntries::write().await;
    std::fs::remove_file(&log.segment).expect("remove");
    log.assert_damaged(log.content.len() as u64);
}

/// Fills a few segments; comes back with what was appended.
async fn several_segments(dir: &Path) -> Vec<String> {
    let engine = open(dir).expect("open");
    let bodies: Vec<String> = (0..30).map(|n| format!("{n:02}-{}", "x".repeat(500))).collect();
    for body in &bodies {
        append(&*engine.streams, P0, body.clone()).await;
    }
    drop(engine);
    assert!(segments(dir).len() > 2);
    bodies
}

#[tokio::test]
async fn a_segment_that_was_only_begun_is_made_anew() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut bodies = several_segments(dir.path()).await;
    let begun = dir.path().join("data/log/0000000099.log");
    for content in [&b""[..], b"not a whole preamble"] {
        std::fs::write(&begun, content).expect("write");
        let engine = open(dir.path()).expect("open");
        assert!(!begun.exists());
        append(&*engine.streams, P0, "more").await;
        bodies.push("more".to_owned());
        assert_eq!(all(&*engine.streams, P0).await.expect("read"), bodies);
    }
}

/// As when it could not be given back, and the segment that says where this one ends was dropped since.
#[tokio::test]
async fn room_left_behind_an_older_segment_is_no_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    let bodies = several_segments(dir.path()).await;
    let files = segments(dir.path());
    let content = std::fs::read(&files[0]).expect("the segment");
    let with_room = [&content[..], &[0; 3000]].concat();
    std::fs::write(&files[0], &with_room).expect("write");
    drop(open(dir.path()).expect("it is noted where it ends"));
    assert_eq!(std::fs::read(&files[0]).expect("the segment"), content);
    std::fs::write(&files[0], &with_room).expect("write");
    std::fs::remove_file(&files[1]).expect("remove");
    let engine = open(dir.path()).expect("zeros are nothing that was confirmed");
    assert_eq!(std::fs::read(&files[0]).expect("the segment"), content);
    let mut reader = soon(engine.streams.read(P0, From::First)).await.expect("read");
    let first = soon(reader.next()).await.expect("entries");
    assert_eq!(first.iter().map(|entry| entry.body.clone()).collect::<Vec<_>>(), bodies[..first.len()]);
    drop(engine);
    std::fs::write(&files[0], [&with_room[..], b"1"].concat()).expect("write");
    assert!(matches!(open(dir.path()).err(), Some(OpenError::Damaged { .. })), "anything else is");
}

#[tokio::test]
async fn damage_in_an_older_body_is_found_by_its_reader() {
    let dir = tempfile::tempdir().expect("a directory");
    let bodies = several_segments(dir.path()).await;
    let oldest = segments(dir.path()).remove(0);
    let mut content = std::fs::read(&oldest).expect("the segment");
    let place = content.windows(3).position(|window| window == b"02-").expect("the third entry") + 100;
    content[place] ^= 1;
    std::fs::write(&oldest, &content).expect("write");
    let engine = open(dir.path()).expect("the headers are sound");
    let mut reader = soon(engine.streams.read(P0, From::First)).await.expect("read");
    let sound = soon(reader.next()).await.expect("what comes before");
    assert_eq!(sound.iter().map(|entry| entry.body.clone()).collect::<Vec<_>>(), bodies[..2]);
    let error = soon(reader.next()).await.expect_err("it is damaged");
    assert!(matches!(&error, ReadError::Corrupt(reason) if reason.contains("0000000001.log")), "{error}");
    let mut behind = soon(engine.streams.read(P0, From::Offset(3))).await.expect("read");
    assert_eq!(soon(behind.next()).await.expect("what comes behind")[0].body, bodies[3]);
}

#[tokio::test]
async fn damage_in_an_older_header_or_length_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    several_segments(dir.path()).await;
    let oldest = segments(dir.path()).remove(0);
    let content = std::fs::read(&oldest).expect("the segment");
    let body = content.windows(3).position(|window| window == b"02-").expect("the third entry");
    let mut flipped = content.clone();
    flipped[body - 16] ^= 1;
    for damaged in [&flipped[..], &content[..content.len() - 1], &content[..body], b""] {
        std::fs::write(&oldest, damaged).expect("write");
        let refused = open(dir.path()).err().expect("it is damaged");
        assert!(matches!(&refused, OpenError::Damaged { file, .. } if *file == oldest), "{refused}");
    }
    let away = dir.path().join("moved away");
    std::fs::rename(&oldest, &away).expect("move");
    let engine = open(dir.path()).expect("the remedy works");
    assert!(engine.streams.bounds(P0).await.expect("bounds").first > 0);
    drop(engine);
    std::fs::write(&oldest, [&content[..], b"what a failed write left"].concat()).expect("write");
    open(dir.path()).expect("what is behind the end of a segment was never confirmed");
}
