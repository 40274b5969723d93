//! The checkpoint window (G4): which entries of a partition were read and are not finished, and the offset up to
//! which everything is.
//!
//! Entries are opened in the order they are read, each with the number of its operations, and finished in any order.
//! The checkpoint is the highest offset such that it and every entry before it are finished. It therefore never
//! passes unfinished work and never goes back. After a crash reading begins at checkpoint + 1: what was finished
//! beyond it is read again and skipped by its workflow record.

use std::collections::VecDeque;

/// The entries between the checkpoint and the last one read.
#[derive(Debug, Default)]
pub struct Window {
    entries: VecDeque<OpenEntry>,
    /// The last offset with nothing open at or before it.
    done: Option<u64>,
    open: usize,
}

#[derive(Debug)]
struct OpenEntry {
    offset: u64,
    open: u32,
}

impl Window {
    /// A window that goes on after `done`.
    #[must_use]
    pub fn after(done: Option<u64>) -> Self {
        Self { done, ..Self::default() }
    }

    /// An entry was read that holds this many operations of ours; with none it is finished at once.
    pub fn open(&mut self, offset: u64, operations: u32) {
        debug_assert!(self.entries.back().is_none_or(|last| last.offset < offset));
        self.entries.push_back(OpenEntry { offset, open: operations });
        self.open += operations as usize;
        self.advance();
    }

    /// So many operations of an entry came to their end. What is not open is ignored: an answer that comes twice
    /// must not finish another's work.
    pub fn finish(&mut self, offset: u64, operations: u32) {
        if let Ok(at) = self.entries.binary_search_by_key(&offset, |e| e.offset) {
            let entry = &mut self.entries[at];
            let finished = operations.min(entry.open);
            entry.open -= finished;
            self.open -= finished as usize;
            self.advance();
        }
    }

    fn advance(&mut self) {
        while let Some(entry) = self.entries.front()
            && entry.open == 0
        {
            self.done = Some(entry.offset);
            self.entries.pop_front();
        }
    }

    /// The offset to save, if anything is finished.
    #[must_use]
    pub fn checkpoint(&self) -> Option<u64> {
        self.done
    }

    /// How many operations are read and not finished.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.open
    }

    /// The oldest entry that is not finished.
    #[must_use]
    pub fn oldest_open(&self) -> Option<u64> {
        self.entries.front().map(|e| e.offset)
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "a handful of entries")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads entries with these many operations and finishes them in an order drawn from `order`, crashing after
    /// `crash` finishes; then replays from the checkpoint and finishes all. Compares with the definition at each step.
    fn play(sizes: &[u32], order: &[usize], crash: usize) {
        let mut finished = vec![0_u32; sizes.len()];
        let highest = |finished: &[u32]| {
            let prefix = finished.iter().zip(sizes).take_while(|(done, all)| done == all).count();
            prefix.checked_sub(1).map(|last| last as u64)
        };
        let mut window = Window::after(None);
        for (offset, size) in sizes.iter().enumerate() {
            window.open(offset as u64, *size);
        }
        assert_eq!(window.checkpoint(), highest(&finished));
        for pick in order.iter().take(crash) {
            let open: Vec<usize> = (0..sizes.len()).filter(|i| finished[*i] < sizes[*i]).collect();
            let Some(entry) = open.get(pick % open.len().max(1)).copied() else { break };
            finished[entry] += 1;
            window.finish(entry as u64, 1);
            assert_eq!(window.checkpoint(), highest(&finished));
            assert_eq!(window.in_flight() as u32, sizes.iter().sum::<u32>() - finished.iter().sum::<u32>());
        }
        let saved = window.checkpoint();
        let mut replay = Window::after(saved);
        let first = saved.map_or(0, |done| done + 1);
        for offset in first..sizes.len() as u64 {
            replay.open(offset, sizes[offset as usize]);
        }
        for offset in (first..sizes.len() as u64).rev() {
            assert!(replay.checkpoint() >= saved, "a replay never goes back");
            replay.finish(offset, sizes[offset as usize]);
        }
        assert_eq!(replay.checkpoint(), (sizes.len() as u64).checked_sub(1));
        assert_eq!(replay.in_flight(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]

        #[test]
        fn the_checkpoint_is_the_highest_contiguous_finished_offset(
            sizes in prop::collection::vec(0_u32..4, 0..8),
            order in prop::collection::vec(any::<usize>(), 0..24),
            crash in 0_usize..24,
        ) {
            play(&sizes, &order, crash);
        }
    }

    #[test]
    fn an_answer_that_comes_twice_finishes_nothing_else() {
        let mut window = Window::after(Some(4));
        window.open(5, 1);
        window.open(6, 1);
        window.finish(6, 1);
        window.finish(6, 1);
        assert_eq!(window.checkpoint(), Some(4));
        window.finish(5, 1);
        assert_eq!(window.checkpoint(), Some(6));
        window.finish(5, 1);
        assert_eq!(window.checkpoint(), Some(6));
    }
}
