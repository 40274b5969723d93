//! What waits to be written. Callers add to it directly and wake the writer only when it rests: under load that saves a
//! message and a switch of threads for every request. It outlives the writer, so a fresh one goes on with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::sync::oneshot;

use super::pace::Pace;
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
    pace: Arc<Pace>,
    /// How long the entry before was.
    length: usize,
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
    /// It waits for more; it is to be called, with all others that linger, when there are many or a moment is over.
    Lingering,
    /// It is to write what there is.
    Called,
}

/// Who is to be woken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wakes {
    Nobody,
    Writer,
    /// All writers of the group that linger.
    Group,
}

/// The number of the cohort that lines went into, and what will become of it unless that was known.
pub type Joined = (u64, Option<oneshot::Receiver<Answer>>);

/// What there is to do.
pub(super) enum Next {
    Write(Cohort),
    /// There are few lines: all that linger are to be called after this time.
    Grow(Duration),
    /// With those of the others there are many: all are to write.
    Call,
    Rest,
}

impl Line {
    /// Nobody is there to be woken at first: a writer looks for itself when it starts.
    pub fn new(limits: Limits, pace: Arc<Pace>) -> Self {
        let (cohorts, writer) = (VecDeque::new(), WriterIs::Busy);
        Self { limits, cohorts, lines: 0, numbers: 0, writer, pace, length: 0, last: None, refused: 0 }
    }

    /// Adds lines; also says who must be woken.
    pub fn join(&mut self, lines: &[u8], count: usize, known: Option<u64>) -> Result<(Joined, Wakes), WriteError> {
        if count > self.limits.waiting.saturating_sub(self.lines) {
            self.refused += count as u64;
            return Err(WriteError::Full);
        }
        self.lines += count;
        let joined = self.last_cohort(lines.len(), count).add(lines, count, known);
        let wake = match self.writer {
            WriterIs::Resting => Wakes::Writer,
            WriterIs::Lingering if self.pace.more(count) => Wakes::Group,
            _ => Wakes::Nobody,
        };
        if wake == Wakes::Writer {
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
            let lines = BytesMut::with_capacity(self.length.max(bytes));
            self.cohorts.push_back(Cohort { number: self.numbers, lines, ..Cohort::default() });
        }
        let last = self.cohorts.len() - 1;
        &mut self.cohorts[last]
    }

    pub fn next(&mut self, now: Instant) -> Next {
        let was = std::mem::replace(&mut self.writer, WriterIs::Busy);
        if was == WriterIs::Lingering {
            self.pace.leave(self.lines);
        }
        if was != WriterIs::Called
            && let Some(moment) = self.moment_to_grow(now)
        {
            self.writer = WriterIs::Lingering;
            return if self.pace.linger(self.lines) { Next::Call } else { Next::Grow(moment) };
        }
        let Some(cohort) = self.cohorts.pop_front() else {
            self.writer = WriterIs::Resting;
            return Next::Rest;
        };
        self.lines -= cohort.count;
        self.length = cohort.lines.len();
        self.last = Some((now, cohort.count));
        Next::Write(cohort)
    }

    /// Has a writer that lingers write what there is; says whether it did, and is to be woken.
    pub fn call(&mut self) -> bool {
        let lingers = self.writer == WriterIs::Lingering;
        if lingers {
            self.pace.leave(self.lines);
            self.writer = WriterIs::Called;
        }
        lingers
    }

    /// How long what waits is given to become more; none when it is to be written now. That there were several in the
    /// last write says that several send.
    fn moment_to_grow(&self, now: Instant) -> Option<Duration> {
        let (written, count) = self.last?;
        let left = self.limits.linger.checked_sub(now.duration_since(written));
        left.filter(|left| count > 1 && self.lines > 0 && !left.is_zero())
    }

    /// Drops what waits; the writer is to look again.
    pub fn clear(&mut self) -> Vec<oneshot::Sender<Answer>> {
        self.call();
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

    fn limits() -> Limits {
        Limits {
            waiting: 6,
            batch_lines: 4,
            batch_bytes: 1_000,
            in_flight: 1,
            timeout: Duration::from_secs(1),
            few: 3,
            linger: LINGER,
            recent_bytes: 0,
        }
    }

    fn line() -> Line {
        Line::new(limits(), Arc::new(Pace::new(3)))
    }

    fn join(line: &mut Line, known: Option<u64>) -> (u64, bool, Wakes) {
        let ((number, answer), wake) = line.join(b"x\n", 1, known).unwrap();
        (number, answer.is_some(), wake)
    }

    fn written(next: Next) -> usize {
        match next {
            Next::Write(cohort) => {
                assert_eq!(cohort.lines.len(), 2 * cohort.count);
                cohort.count
            }
            Next::Grow(_) | Next::Call | Next::Rest => 0,
        }
    }

    /// A server may be reached before its writers are up: its first requests wait for them.
    #[test]
    fn what_comes_before_the_writer_waits_for_it_up_to_the_limit() {
        let mut line = line();
        for _ in 0..6 {
            assert_eq!(join(&mut line, None).2, Wakes::Nobody, "nobody is there");
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
        assert_eq!(join(&mut line, None).2, Wakes::Writer, "one that rests must be woken");
        assert_eq!(join(&mut line, None).2, Wakes::Nobody, "but only once");
    }

    #[test]
    fn who_waits_for_a_cohort_already_gets_no_second_answer() {
        let mut line = line();
        let (first, answered, _) = join(&mut line, None);
        assert!(answered);
        assert_eq!(join(&mut line, Some(first)), (first, false, Wakes::Nobody));
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
        assert_eq!(join(&mut line, None).2, Wakes::Nobody, "two are few");
        assert_eq!(join(&mut line, None).2, Wakes::Group, "three are not");
        assert!(line.call() && !line.call(), "it is woken once");
        assert_eq!(written(line.next(later)), 3);
        join(&mut line, None);
        assert_eq!(written(line.next(later + LINGER)), 1, "the moment is over");
    }

    /// Two lines that several have just been written of, each with so many waiting.
    fn lingering(waiting: [usize; 2]) -> ([Line; 2], Instant, [Next; 2]) {
        let (pace, now) = (Arc::new(Pace::new(3)), Instant::now());
        let mut lines = [(); 2].map(|()| Line::new(limits(), pace.clone()));
        let nexts = std::array::from_fn(|at| {
            let line = &mut lines[at];
            join(line, None);
            join(line, None);
            assert_eq!(written(line.next(now)), 2);
            for _ in 0..waiting[at] {
                join(line, None);
            }
            line.next(now)
        });
        (lines, now, nexts)
    }

    #[test]
    fn those_of_one_group_are_written_together() {
        let ([mut one, mut other], now, nexts) = lingering([2, 1]);
        assert!(matches!(nexts, [Next::Grow(_), Next::Grow(_)]));
        assert_eq!(join(&mut one, None).2, Wakes::Nobody, "three and one are few for two");
        assert_eq!(join(&mut other, None).2, Wakes::Nobody);
        assert_eq!(join(&mut other, None).2, Wakes::Group, "six are not");
        assert!(one.call() && other.call());
        assert_eq!([one.next(now), other.next(now)].map(written), [3, 3]);
        let (_, _, nexts) = lingering([2, 4]);
        assert!(matches!(nexts, [Next::Grow(_), Next::Call]), "who comes last calls the others");
    }

    #[test]
    fn a_group_is_called_once_for_all_that_is_there_and_again_the_next_time() {
        let ([mut one, mut other], now, _) = lingering([2, 1]);
        let wakes = [join(&mut one, None), join(&mut one, None), join(&mut other, None), join(&mut other, None)];
        let wakes = wakes.map(|(_, _, wakes)| wakes);
        assert_eq!(wakes, [Wakes::Nobody, Wakes::Nobody, Wakes::Group, Wakes::Nobody]);
        assert!(one.call() && other.call());
        assert_eq!([one.next(now), other.next(now)].map(written), [4, 3]);
        for line in [&mut one, &mut other] {
            join(line, None);
            assert!(matches!(line.next(now), Next::Grow(_)));
        }
        let wakes: Vec<_> = (0..4).map(|_| join(&mut one, None).2).collect();
        assert_eq!(wakes, [Wakes::Nobody, Wakes::Nobody, Wakes::Nobody, Wakes::Group]);
    }

    #[test]
    fn one_whose_others_are_busy_or_gone_waits_for_itself_only() {
        let ([mut one, mut other], now, _) = lingering([2, 1]);
        assert_eq!(written(other.next(now + LINGER)), 1, "its moment is over");
        assert_eq!(join(&mut one, None).2, Wakes::Group, "three are enough for one");
        let ([mut one, mut other], ..) = lingering([2, 1]);
        assert_eq!(other.clear().len(), 1);
        assert_eq!(join(&mut one, None).2, Wakes::Group);
    }
}
