//! The beat that the writers of a group write to. An engine is paid by the write, whichever streams are in it, and so is
//! every change of threads on the way; so those that linger end that together: when there are many lines on average, or
//! when the moment of one of them is over.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) struct Pace {
    /// So many lines for each writer are not few.
    few: usize,
    lingering: Mutex<Lingering>,
}

#[derive(Default)]
struct Lingering {
    writers: usize,
    lines: usize,
    /// Somebody was told that there are many, which is enough.
    called: bool,
}

impl Pace {
    pub fn new(few: usize) -> Self {
        Self { few, lingering: Mutex::default() }
    }

    /// A writer begins to linger with so many lines. Says whether all are to be called, since with those of the others
    /// there are many now.
    pub fn linger(&self, lines: usize) -> bool {
        self.lock().writers += 1;
        self.more(lines)
    }

    /// One that lingers has so many lines more. Says whether all are to be called, since there are many now.
    pub fn more(&self, lines: usize) -> bool {
        let mut lingering = self.lock();
        lingering.lines += lines;
        let many = lingering.lines >= self.few.saturating_mul(lingering.writers);
        many && !std::mem::replace(&mut lingering.called, many)
    }

    /// One that had so many lines lingers no more.
    pub fn leave(&self, lines: usize) {
        let mut lingering = self.lock();
        lingering.writers -= 1;
        lingering.lines -= lines;
        lingering.called &= lingering.writers > 0;
    }

    fn lock(&self) -> MutexGuard<'_, Lingering> {
        self.lingering.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
