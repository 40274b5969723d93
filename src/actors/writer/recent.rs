//! What was written last, so that a request can be read back before anybody has processed it.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::domain::DeliveryId;

/// The entries written last, up to so many bytes. Keeping one costs nothing but its memory; looking is a search.
pub(super) struct Recent {
    entries: VecDeque<Bytes>,
    bytes: usize,
    most: usize,
}

impl Recent {
    pub fn new(most: usize) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, most }
    }

    pub fn keep(&mut self, entry: Bytes) {
        self.bytes += entry.len();
        self.entries.push_back(entry);
        while self.bytes > self.most {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.bytes -= oldest.len();
        }
    }

    pub fn lines_of(&self, id: &DeliveryId) -> Vec<Bytes> {
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
