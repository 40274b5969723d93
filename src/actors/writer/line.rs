//! What waits to be written. Callers add to it directly and wake the writer only when it rests: under load that saves a
//! message and a switch of threads for every request. It outlives the writer, so a fresh one goes on with it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::sync::oneshot;

use super::{Answer, Limits, WriteError};

/// Lines that go into one entry, and who waits for it.
#[derive(Default)]
pub(super) struct Cohort {
    number: u64,
    pub lines: BytesMut,
    pub count: usize,
    pub waiting: Vec<oneshot::Sender<Answer>>,
}

pub(super) struct Line {
    limits: Limits,
    /// By age; lines are added to the last one while they fit.
    cohorts: VecDeque<Cohort>,
    lines: usize,
    numbers: u64,
    writer: WriterIs,
    /// When lines were written last, and how many.
    last: Option<(Instant, usize)>,
    refused: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum WriterIs {
    /// It looks again when a write has ended.
    Busy,
    /// It is to be woken by whatever comes.
    Resting,
    /// It looks again in a moment; it is to be woken when there are many.
    Lingering,
}

/// The number of the cohort that lines went into, and what will become of it unless that was known.
pub type Joined = (u64, Option<oneshot::Receiver<Answer>>);

/// What there is to do.
pub(super) enum Next {
    Write(Cohort),
    /// There are few lines: look again after this time.
    Grow(Duration),
    Rest,
}

impl Line {
    /// Nobody is there to be woken at first: a writer looks for itself when it starts.
    pub fn new(limits: Limits) -> Self {
        let (cohorts, writer) = (VecDeque::new(), WriterIs::Busy);
        Self { limits, cohorts, lines: 0, numbers: 0, writer, last: None, refused: 0 }
    }

    /// Adds lines; also says whether the writer must be woken.
    pub fn join(&mut self, lines: &[u8], count: usize, known: Option<u64>) -> Result<(Joined, bool), WriteError> {
        if count > self.limits.waiting.saturating_sub(self.lines) {
            self.refused += count as u64;
            return Err(WriteError::Full);
        }
        self.lines += count;
        let joined = self.last_cohort(lines.len(), count).add(lines, count, known);
        let many = self.lines >= self.limits.few;
        let wake = self.writer == WriterIs::Resting || self.writer == WriterIs::Lingering && many;
        if wake {
            self.writer = WriterIs::Busy;
        }
        Ok((joined, wake))
    }

    /// The one that takes so much more.
    fn last_cohort(&mut self, bytes: usize, count: usize) -> &mut Cohort {
        let Limits { batch_lines, batch_bytes, .. } = self.limits;
        let fits =
            |last: &Cohort| count <= batch_lines.saturating_sub(last.count) && last.lines.len() + bytes <= batch_bytes;
        if !self.cohorts.back().is_some_and(fits) {
            self.numbers += 1;
            self.cohorts.push_back(Cohort { number: self.numbers, ..Cohort::default() });
        }
        let last = self.cohorts.len() - 1;
        &mut self.cohorts[last]
    }

    pub fn next(&mut self, now: Instant) -> Next {
        if let Some(moment) = self.moment_to_grow(now) {
            self.writer = WriterIs::Lingering;
            return Next::Grow(moment);
        }
        let Some(cohort) = self.cohorts.pop_front() else {
            self.writer = WriterIs::Resting;
            return Next::Rest;
        };
        self.writer = WriterIs::Busy;
        self.lines -= cohort.count;
        self.last = Some((now, cohort.count));
        Next::Write(cohort)
    }

    /// How long what waits is given to become more; none when it is to be written now. That there were several in the
    /// last write says that several send.
    fn moment_to_grow(&self, now: Instant) -> Option<Duration> {
        let (written, count) = self.last?;
        let grows = count > 1 && (1..self.limits.few).contains(&self.lines);
        let left = self.limits.linger.checked_sub(now.duration_since(written));
        left.filter(|left| grows && !left.is_zero())
    }

    pub fn clear(&mut self) -> Vec<oneshot::Sender<Answer>> {
        self.lines = 0;
        std::mem::take(&mut self.cohorts).into_iter().flat_map(|cohort| cohort.waiting).collect()
    }

    pub fn waiting(&self) -> usize {
        self.lines
    }

    pub fn refused(&self) -> u64 {
        self.refused
    }
}

impl Cohort {
    fn add(&mut self, lines: &[u8], count: usize, known: Option<u64>) -> Joined {
        self.lines.extend_from_slice(lines);
        self.count += count;
        if known == Some(self.number) {
            return (self.number, None);
        }
        let (reply, answer) = oneshot::channel();
        self.waiting.push(reply);
        (self.number, Some(answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_secs(8);

    fn line() -> Line {
        Line::new(Limits {
            waiting: 6,
            batch_lines: 4,
            batch_bytes: 1_000,
            in_flight: 1,
            timeout: Duration::from_secs(1),
            few: 3,
            linger: LINGER,
            recent_bytes: 0,
        })
    }

    fn join(line: &mut Line, known: Option<u64>) -> (u64, bool, bool) {
        let ((number, answer), wake) = line.join(b"x\n", 1, known).unwrap();
        (number, answer.is_some(), wake)
    }

    fn written(next: Next) -> usize {
        match next {
            Next::Write(cohort) => {
                assert_eq!(cohort.lines.len(), 2 * cohort.count);
                cohort.count
            }
            Next::Grow(_) | Next::Rest => 0,
        }
    }

    /// A server may be reached before its writers are up: its first requests wait for them.
    #[test]
    fn what_comes_before_the_writer_waits_for_it_up_to_the_limit() {
        let mut line = line();
        for _ in 0..6 {
            assert!(!join(&mut line, None).2, "there is nobody to be woken");
        }
        assert!(matches!(line.join(b"x\n", 1, None), Err(WriteError::Full)));
        assert_eq!((line.waiting(), line.refused()), (6, 1));
        let now = Instant::now();
        assert_eq!(
            [line.next(now), line.next(now + LINGER)].map(written),
            [4, 2],
            "no more at once than goes into one"
        );
        assert!(matches!(line.next(now + 2 * LINGER), Next::Rest));
        assert!(join(&mut line, None).2, "a writer that rests must be woken");
        assert!(!join(&mut line, None).2, "but only once");
    }

    #[test]
    fn who_waits_for_a_cohort_already_gets_no_second_answer() {
        let mut line = line();
        let (first, answered, _) = join(&mut line, None);
        assert!(answered);
        assert_eq!(join(&mut line, Some(first)), (first, false, false));
        assert!(join(&mut line, None).1, "another caller gets its own");
        written(line.next(Instant::now()));
        let (second, answered, _) = join(&mut line, Some(first));
        assert!(answered && second != first);
    }

    #[test]
    fn few_wait_for_more_after_several_and_a_lone_sender_never() {
        let (mut line, now) = (line(), Instant::now());
        for _ in 0..3 {
            join(&mut line, None);
            assert_eq!(written(line.next(now)), 1, "it sends alone");
        }
        join(&mut line, None);
        join(&mut line, None);
        assert_eq!(written(line.next(now)), 2);
        join(&mut line, None);
        let later = now + LINGER / 4;
        assert!(matches!(line.next(later), Next::Grow(moment) if moment == LINGER * 3 / 4));
        assert!(!join(&mut line, None).2, "two are few");
        assert!(join(&mut line, None).2, "three are not");
        assert_eq!(written(line.next(later)), 3);
        join(&mut line, None);
        assert_eq!(written(line.next(later + LINGER)), 1, "the moment is over");
    }
}
