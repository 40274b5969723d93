//! The actions of the protocol, each one durable or visible step of the code. A crash may come between any two.
//! The code names them where it takes them: `// model: SaveRecord`.

use stateright::{Model, Property};

use super::state::*;

/// The rules that the promises rest on; a test switches one off to see that it is needed.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A step that was cancelled is refused.
    pub tombstones: bool,
    /// A step that was done is not done again.
    pub idempotent: bool,
    /// A failed operation is in the queue before it counts as finished.
    pub hand_over_first: bool,
    /// A checkpoint is written only under the newest epoch.
    pub fenced: bool,
    /// A record is written only when it is what was seen.
    pub checked_records: bool,
    /// Every step is cancelled, not only those known to be done.
    pub cancel_every_step: bool,
}

pub const ALL_RULES: Rules = Rules {
    tombstones: true,
    idempotent: true,
    hand_over_first: true,
    fenced: true,
    checked_records: true,
    cancel_every_step: true,
};

/// What may go wrong, how often.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub crashes: u8,
    pub timeouts: u8,
    pub refusals: u8,
    pub freezes: u8,
    pub sweeps: u8,
}

pub struct Protocol {
    pub stream: Vec<Operation>,
    pub rules: Rules,
    pub faults: Faults,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Partitions: takes the lease and raises the epoch.
    Acquire(usize),
    /// Partitions: loads the checkpoint to begin after.
    LoadCheckpoint(usize),
    /// Partitions: finds its lease gone and ends the reader.
    Retire(usize),
    Read(usize),
    /// Scheduler: loads the record and begins the operation.
    LoadRecord(usize, usize),
    /// The service does the step, or refuses it by its tombstone, and answers.
    Execute(usize, usize),
    /// The service refuses the step for good.
    Refuse(usize, usize),
    /// No answer in time; the call may take effect later.
    TimeOut(usize, usize),
    /// A call whose caller is gone takes effect.
    LateEffect(usize, usize),
    /// Scheduler: saves how far a workflow is.
    SaveProgress(usize, usize),
    SaveRecord(usize, usize),
    HandOver(usize, usize),
    SaveCheckpoint(usize),
    /// Sweeper: gives up a workflow that nobody holds, as far as it can tell.
    Sweep(usize),
    /// Compensator: receives a message.
    Receive(usize, usize),
    LoadToUndo(usize),
    CancelStep(usize),
    SaveUndone(usize),
    Settle(usize),
    /// The lease of a process that is gone, or frozen, ends.
    LeaseEnds,
    Crash(usize),
}

impl Protocol {
    /// What goes on by itself, as long as there is something to do.
    fn work(&self, state: &State) -> Vec<Action> {
        let mut actions = Vec::new();
        for p in 0..PROCESSES {
            match &state.readers[p] {
                None if state.lease.is_none_or(|owner| owner == p) => actions.push(Action::Acquire(p)),
                None => {}
                Some(reader) => self.work_of(state, p, reader, &mut actions),
            }
            self.undo_work(state, p, &mut actions);
        }
        for d in 0..DELIVERIES {
            actions.extend((0..STEPS).filter(|s| state.late[d][*s] > 0).map(|s| Action::LateEffect(d, s)));
        }
        if state.lease.is_some_and(|owner| state.readers[owner].is_none()) {
            actions.push(Action::LeaseEnds);
        }
        actions
    }

    fn work_of(&self, state: &State, p: usize, reader: &Reader, actions: &mut Vec<Action>) {
        if state.lease != Some(p) || state.epoch != reader.epoch {
            actions.push(Action::Retire(p));
        }
        let Some(next) = reader.next else {
            actions.push(Action::LoadCheckpoint(p));
            return;
        };
        if next < self.stream.len() {
            actions.push(Action::Read(p));
        }
        if reader.contiguous() > reader.saved {
            actions.push(Action::SaveCheckpoint(p));
        }
        for (d, active) in reader.active.iter().enumerate() {
            match active.as_ref().map(|active| &active.phase) {
                Some(Phase::Waiting) => actions.push(Action::LoadRecord(p, d)),
                Some(Phase::Calling(_)) => actions.push(Action::Execute(p, d)),
                Some(Phase::Through { .. }) => actions.push(Action::SaveRecord(p, d)),
                Some(Phase::Saved) => actions.push(Action::HandOver(p, d)),
                None => {}
            }
        }
    }

    fn undo_work(&self, state: &State, p: usize, actions: &mut Vec<Action>) {
        match state.jobs[p].map(|job| job.phase) {
            None => actions.extend((0..DELIVERIES).filter(|d| state.queue[*d] > 0).map(|d| Action::Receive(p, d))),
            Some(Undo::Waiting) => actions.push(Action::LoadToUndo(p)),
            Some(Undo::Cancelling(..)) => actions.push(Action::CancelStep(p)),
            Some(Undo::Changed(..)) => actions.push(Action::SaveUndone(p)),
            Some(Undo::Settling) => actions.push(Action::Settle(p)),
        }
    }

    /// What may go wrong.
    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        for (p, reader) in state.readers.iter().enumerate() {
            if state.crashes > 0 && (reader.is_some() || state.jobs[p].is_some()) {
                actions.push(Action::Crash(p));
            }
            for (d, active) in reader.iter().flat_map(|reader| reader.active.iter().enumerate()) {
                let Some(Active { phase: Phase::Calling(record), .. }) = active else { continue };
                if state.refusals > 0 {
                    actions.push(Action::Refuse(p, d));
                }
                if state.timeouts > 0 {
                    actions.push(Action::TimeOut(p, d));
                }
                if state.sweeps > 0 && state.records[d].is_none_or(|stored| stored.steps != record.steps) {
                    actions.push(Action::SaveProgress(p, d));
                }
            }
        }
        if state.freezes > 0 && state.lease.is_some_and(|owner| state.readers[owner].is_some()) {
            actions.push(Action::LeaseEnds);
        }
        let overdue = |d: &usize| state.records[*d].is_some_and(|record| record.status == Status::Scheduling);
        if state.sweeps > 0 {
            actions.extend((0..DELIVERIES).filter(overdue).map(Action::Sweep));
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let Faults { crashes, timeouts, refusals, freezes, sweeps } = self.faults;
        vec![State { crashes, timeouts, refusals, freezes, sweeps, ..State::default() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(self.work(state));
        self.faults(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ENDS, ends),
            Property::always(ONCE, once),
            Property::always(NEVER_PASSES, never_passes),
            Property::always(ONLY_GROWS, |_, state: &State| state.checkpoint == state.highest && !state.stale_write),
            Property::sometimes(SCHEDULED, |_, state: &State| state.some(&[Status::Scheduled])),
            Property::sometimes(UNDONE, |_, state: &State| state.some(&[Status::Failed, Status::Cancelled])),
        ]
    }
}

/// G2: when nothing is left to do, everything is scheduled with all its steps, or undone without a trace.
pub const ENDS: &str = "every accepted request ends, whole or without a trace";
/// G3: one entity a step, none once it is cancelled.
pub const ONCE: &str = "a step has one effect, and none after it was cancelled";
/// G4: what is below the checkpoint is at its end, or handed over.
pub const NEVER_PASSES: &str = "the checkpoint never passes unfinished work";
pub const ONLY_GROWS: &str = "the checkpoint only grows, and an old epoch is refused";

/// That the model gets anywhere.
pub const SCHEDULED: &str = "something is scheduled";
pub const UNDONE: &str = "something is undone";

fn ends(model: &Protocol, state: &State) -> bool {
    let whole = |d: usize, entities: u8| (0..STEPS).all(|s| state.entities[d][s] == entities);
    let ended = |operation: &Operation| {
        let d = operation.delivery();
        match (operation, state.records[d].map(|record| record.status)) {
            (Operation::Schedule(_), Some(Status::Scheduled)) => whole(d, 1),
            (_, Some(Status::Failed | Status::Cancelled)) => whole(d, 0),
            _ => false,
        }
    };
    let at_rest = || model.work(state).is_empty();
    let done = || state.checkpoint == model.stream.len() && model.stream.iter().all(ended);
    !at_rest() || done()
}

fn once(_: &Protocol, state: &State) -> bool {
    let sound = |(entities, cancelled): (&u8, &bool)| *entities <= u8::from(!cancelled);
    state.entities.as_flattened().iter().zip(state.tombstones.as_flattened()).all(sound)
}

fn never_passes(model: &Protocol, state: &State) -> bool {
    (0..DELIVERIES).all(|d| {
        let offsets = (0..model.stream.len()).filter(|offset| model.stream[*offset].delivery() == d);
        let (passed, open): (Vec<_>, Vec<_>) = offsets.partition(|offset| *offset < state.checkpoint);
        let Some(record) = state.records[d] else { return passed.is_empty() };
        match record.status {
            Status::Scheduling => passed.is_empty(),
            // A later operation of the delivery, not passed yet, may be about to hand it over.
            Status::Compensating | Status::Cancelling => passed.is_empty() || !open.is_empty() || state.handed_over(d),
            Status::Scheduled | Status::Failed | Status::Cancelled => true,
        }
    })
}
