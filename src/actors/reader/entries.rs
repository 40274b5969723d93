//! What is in an entry of a partition: the operations that belong to a reader, and the lines that are none.

use crate::domain::Operation;
use crate::domain::operation::reader_of;
use crate::domain::time::now;
use crate::stream::{DeadLetter, Entry};

/// Far longer than any operation, and short enough to be set aside as one entry, however much JSON has to escape. Of what
/// is longer so much is set aside, and its reason says so.
const LONGEST: usize = 2 * 1024 * 1024;

fn dead_letter(offset: u64, index: usize, line: &[u8], error: &serde_json::Error) -> DeadLetter {
    let kept = &line[..line.len().min(LONGEST)];
    let cut =
        if kept.len() < line.len() { format!("; the first {LONGEST} of {} bytes", line.len()) } else { String::new() };
    DeadLetter {
        at: now(),
        source: format!("requests@{offset}:{index}"),
        reason: format!("not an operation: {error}{cut}"),
        body: String::from_utf8_lossy(kept).into_owned(),
    }
}

/// The operations of an entry that belong to this reader, and the lines that are no operations; those belong to the
/// first reader.
pub(super) fn parse(entry: &Entry, reader: u32, readers: u32) -> (Vec<Operation>, Vec<DeadLetter>) {
    let (mut operations, mut unreadable) = (Vec::new(), Vec::new());
    for (index, line) in entry.body.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        match serde_json::from_slice::<Operation>(line) {
            Ok(operation) if reader_of(operation.id.as_str(), readers) == reader => operations.push(operation),
            Ok(_) => {}
            Err(error) if reader == 0 => unreadable.push(dead_letter(entry.offset, index, line, &error)),
            Err(_) => {}
        }
    }
    (operations, unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::dead_letters::bodies;

    #[test]
    fn only_of_a_line_beyond_all_bounds_a_part_is_set_aside_and_the_reason_says_so() {
        let parked = |line: Vec<u8>| {
            let (operations, letters) = parse(&Entry { offset: 7, at: now(), body: line.into() }, 0, 1);
            assert!(operations.is_empty());
            letters.into_iter().next().unwrap()
        };
        let whole = parked(vec![1; LONGEST]);
        assert_eq!(whole.body.len(), LONGEST);
        assert!(!whole.reason.contains("bytes"), "{}", whole.reason);
        // What JSON escapes takes six bytes instead of one.
        let bodies = bodies(&[whole]);
        assert!(bodies.len() == 1 && bodies[0].len() < 16 * 1024 * 1024);
        let cut = parked(vec![b'x'; LONGEST + 1]);
        assert_eq!(cut.body.len(), LONGEST);
        assert!(cut.reason.ends_with("; the first 2097152 of 2097153 bytes"), "{}", cut.reason);
    }
}
