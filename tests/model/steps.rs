//! What each action does.

use super::protocol::{Action, Protocol, Rules};
use super::state::*;

impl Protocol {
    /// Begins the first operation of a delivery whose record is known.
    fn begin(&self, operation: Operation, stored: Option<Record>) -> Phase {
        match (operation, stored) {
            (Operation::Schedule(_), None) => call_next(Record::new(), true),
            (Operation::Schedule(_), Some(record)) => call_next(record, false),
            (Operation::Cancel(_), None) => Phase::Through { record: None, changed: false },
            (Operation::Cancel(_), Some(mut record)) => {
                let changed = record.request_cancel();
                Phase::Through { record: Some(record), changed }
            }
        }
    }

    fn read(&self, reader: &mut Reader) {
        let Some(offset) = reader.next else { return };
        reader.next = Some(offset + 1);
        let d = self.stream[offset].delivery();
        match &mut reader.active[d] {
            Some(active) => active.works.push(offset),
            None => reader.active[d] = Some(Active { works: vec![offset], phase: Phase::Waiting }),
        }
    }

    /// Saves what changed. What did not is only handed over once more, if it is half-undone.
    fn save_record(&self, state: &mut State, reader: &mut Reader, d: usize) {
        let Some(active) = &mut reader.active[d] else { return };
        let Phase::Through { record, changed } = active.phase else { return };
        let saved = match record {
            Some(record) if changed => match state.save(self.rules, d, record) {
                Some(record) => Some(record),
                None => {
                    active.phase = Phase::Waiting;
                    return;
                }
            },
            unchanged => unchanged,
        };
        if saved.is_some_and(|record| record.is_undoing()) {
            active.phase = Phase::Saved;
            if !self.rules.hand_over_first {
                reader.finished[active.works[0]] = true;
            }
        } else {
            reader.finish(d);
        }
    }

    fn save_checkpoint(&self, state: &mut State, reader: &mut Reader) -> bool {
        let offset = reader.contiguous();
        if self.rules.fenced && state.epoch != reader.epoch {
            return false;
        }
        state.stale_write |= state.epoch != reader.epoch;
        state.checkpoint = if self.rules.fenced { state.checkpoint.max(offset) } else { offset };
        state.highest = state.highest.max(state.checkpoint);
        reader.saved = offset;
        true
    }

    /// Undoes the step in hand and goes on to the one before it.
    fn cancel_step(&self, state: &mut State, job: &mut Job) {
        let (d, Undo::Cancelling(mut record, step)) = (job.delivery, job.phase) else { return };
        let marked = record.may_have_done(step);
        if self.rules.cancel_every_step || record.steps[step] == Step::Done {
            state.entities[d][step] = 0;
            state.tombstones[d][step] = true;
        }
        if marked {
            record.steps[step] = Step::Undone;
        }
        let before = step.checked_sub(1);
        if before.is_none() {
            record.status = if record.status == Status::Compensating { Status::Failed } else { Status::Cancelled };
        }
        job.phase = match before {
            Some(before) if !marked => Undo::Cancelling(record, before),
            before => Undo::Changed(record, before),
        };
    }

    /// A scheduler's step: it holds its reader while it works.
    fn with_reader(&self, state: &mut State, p: usize, step: impl FnOnce(&mut State, &mut Reader) -> bool) {
        if let Some(mut reader) = state.readers[p].take()
            && step(state, &mut reader)
        {
            state.readers[p] = Some(reader);
        }
    }

    /// The service's answer to the call under way.
    fn answer(&self, state: &mut State, p: usize, d: usize, answer: Answer) {
        self.with_reader(state, p, |state, reader| {
            if let Some(active) = &mut reader.active[d]
                && let Phase::Calling(mut record) = active.phase
                && let Some(step) = record.next_step()
            {
                match answer {
                    Answer::Reached if state.execute(self.rules, d, step) => record.steps[step] = Step::Done,
                    Answer::Reached | Answer::Refused => record.fail(step, Step::Failed),
                    Answer::TimedOut => {
                        state.late[d][step] = 1;
                        record.fail(step, Step::Unknown);
                    }
                }
                if record.steps.iter().all(|step| *step == Step::Done) {
                    record.status = Status::Scheduled;
                }
                active.phase = call_next(record, true);
            }
            true
        });
    }

    /// A compensator's step on the message it holds; it holds none any more when the step says so.
    fn undo(&self, state: &mut State, p: usize, action: Action) {
        let Some(mut job) = state.jobs[p].take() else { return };
        let d = job.delivery;
        match (action, job.phase) {
            (Action::LoadToUndo(_), _) => {
                job.phase = match state.records[d].filter(Record::is_undoing) {
                    Some(record) => Undo::Cancelling(record, STEPS - 1),
                    None => Undo::Settling,
                };
            }
            (Action::CancelStep(_), _) => self.cancel_step(state, &mut job),
            (Action::SaveUndone(_), Undo::Changed(record, before)) => {
                job.phase = match (state.save(self.rules, d, record), before) {
                    (None, _) => Undo::Waiting,
                    (Some(record), Some(before)) => Undo::Cancelling(record, before),
                    (Some(_), None) => Undo::Settling,
                };
            }
            _ => return,
        }
        state.jobs[p] = Some(job);
    }

    pub fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Acquire(p) => {
                (state.lease, state.epoch) = (Some(p), state.epoch + 1);
                state.readers[p] = Some(Reader::new(state.epoch, self.stream.len()));
            }
            Action::LoadCheckpoint(p) => self.with_reader(state, p, |state, reader| {
                (reader.next, reader.saved) = (Some(state.checkpoint), state.checkpoint);
                true
            }),
            Action::Retire(p) => state.retire(p),
            Action::Read(p) => self.with_reader(state, p, |_, reader| {
                self.read(reader);
                true
            }),
            Action::LoadRecord(p, d) => self.with_reader(state, p, |state, reader| {
                if let Some(active) = &mut reader.active[d] {
                    active.phase = self.begin(self.stream[active.works[0]], state.records[d]);
                }
                true
            }),
            Action::Execute(p, d) => self.answer(state, p, d, Answer::Reached),
            Action::Refuse(p, d) => {
                state.refusals -= 1;
                self.answer(state, p, d, Answer::Refused);
            }
            Action::TimeOut(p, d) => {
                state.timeouts -= 1;
                self.answer(state, p, d, Answer::TimedOut);
            }
            Action::LateEffect(d, s) => {
                state.late[d][s] -= 1;
                state.execute(self.rules, d, s);
            }
            Action::SaveProgress(p, d) => self.with_reader(state, p, |state, reader| {
                if let Some(active) = &mut reader.active[d]
                    && let Phase::Calling(record) = active.phase
                {
                    active.phase = state.save(self.rules, d, record).map_or(Phase::Waiting, Phase::Calling);
                }
                true
            }),
            Action::SaveRecord(p, d) => self.with_reader(state, p, |state, reader| {
                self.save_record(state, reader, d);
                true
            }),
            Action::HandOver(p, d) => self.with_reader(state, p, |state, reader| {
                state.queue[d] += 1;
                reader.finish(d);
                true
            }),
            Action::SaveCheckpoint(p) => {
                self.with_reader(state, p, |state, reader| self.save_checkpoint(state, reader));
            }
            Action::Sweep(d) => {
                state.sweeps -= 1;
                if let Some(mut record) = state.records[d] {
                    record.status = Status::Compensating;
                    state.save(self.rules, d, record);
                    state.queue[d] += 1;
                }
            }
            Action::Receive(p, d) => {
                state.queue[d] -= 1;
                state.jobs[p] = Some(Job { delivery: d, phase: Undo::Waiting });
            }
            Action::LoadToUndo(p) | Action::CancelStep(p) | Action::SaveUndone(p) => self.undo(state, p, action),
            Action::Settle(p) => state.jobs[p] = None,
            Action::LeaseEnds => {
                if state.lease.take().is_some_and(|owner| state.readers[owner].is_some()) {
                    state.freezes -= 1;
                }
            }
            Action::Crash(p) => {
                state.crashes -= 1;
                state.crash(p);
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Answer {
    /// The call reached the service, which did the step or refused it by its tombstone.
    Reached,
    Refused,
    TimedOut,
}

/// Calls the service of the next step, if there is one.
fn call_next(mut record: Record, changed: bool) -> Phase {
    match record.next_step() {
        Some(step) => {
            record.steps[step] = Step::Running;
            Phase::Calling(record)
        }
        None => Phase::Through { record: Some(record), changed },
    }
}

impl Reader {
    pub fn new(epoch: u8, entries: usize) -> Self {
        Self { epoch, next: None, active: vec![None; DELIVERIES], finished: vec![false; entries], saved: 0 }
    }

    /// The offset below which everything is finished.
    pub fn contiguous(&self) -> usize {
        self.saved + self.finished[self.saved..].iter().take_while(|finished| **finished).count()
    }

    /// The first operation of a delivery is finished; the next one begins.
    pub fn finish(&mut self, d: usize) {
        let Some(active) = &mut self.active[d] else { return };
        self.finished[active.works.remove(0)] = true;
        if active.works.is_empty() {
            self.active[d] = None;
        } else {
            active.phase = Phase::Waiting;
        }
    }
}

impl State {
    /// A service is called: what it does and whether it refuses.
    pub fn execute(&mut self, rules: Rules, d: usize, s: usize) -> bool {
        if rules.tombstones && self.tombstones[d][s] {
            return false;
        }
        self.entities[d][s] = if rules.idempotent { 1 } else { self.entities[d][s] + 1 };
        true
    }

    /// Writes a record on condition that it is what was seen; comes back with it as it is then.
    pub fn save(&mut self, rules: Rules, d: usize, mut record: Record) -> Option<Record> {
        let stored = self.records[d].map_or(0, |stored| stored.version);
        if rules.checked_records && stored != record.version {
            return None;
        }
        record.version = stored + 1;
        self.records[d] = Some(record);
        Some(record)
    }

    pub fn some(&self, statuses: &[Status]) -> bool {
        self.records.iter().flatten().any(|record| statuses.contains(&record.status))
    }

    pub fn handed_over(&self, d: usize) -> bool {
        self.queue[d] > 0 || self.jobs.iter().flatten().any(|job| job.delivery == d)
    }

    /// A reader ends; what it has called may yet take effect.
    pub fn retire(&mut self, p: usize) {
        let Some(reader) = self.readers[p].take() else { return };
        for (d, active) in reader.active.iter().enumerate() {
            if let Some(Active { phase: Phase::Calling(record), .. }) = active
                && let Some(step) = record.next_step()
            {
                self.late[d][step] = 1;
            }
        }
    }

    /// A process ends; the queue delivers its message again.
    pub fn crash(&mut self, p: usize) {
        self.retire(p);
        if let Some(job) = self.jobs[p].take() {
            self.queue[job.delivery] += 1;
        }
    }
}
