//! What the model remembers: what is durable, what is under way in the services, and what each process holds in its
//! memory and loses in a crash.

/// Deliveries, steps of a workflow and processes.
pub const DELIVERIES: usize = 2;
pub const STEPS: usize = 2;
pub const PROCESSES: usize = 2;

/// One entry of the stream: an operation on a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Schedule(usize),
    Cancel(usize),
}

impl Operation {
    pub fn delivery(self) -> usize {
        let (Self::Schedule(delivery) | Self::Cancel(delivery)) = self;
        delivery
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    Scheduling,
    Scheduled,
    Compensating,
    Failed,
    Cancelling,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Pending,
    Running,
    Done,
    Failed,
    Unknown,
    Undone,
}

/// The workflow record. The version stands for its bytes, which differ from write to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub version: u8,
    pub status: Status,
    pub steps: [Step; STEPS],
}

impl Record {
    pub fn new() -> Self {
        Self { version: 0, status: Status::Scheduling, steps: [Step::Pending; STEPS] }
    }

    pub fn next_step(&self) -> Option<usize> {
        let open = |step: &usize| self.steps[*step] != Step::Done;
        if self.status == Status::Scheduling { (0..STEPS).find(open) } else { None }
    }

    pub fn is_undoing(&self) -> bool {
        matches!(self.status, Status::Compensating | Status::Cancelling)
    }

    pub fn may_have_done(&self, step: usize) -> bool {
        matches!(self.steps[step], Step::Done | Step::Unknown | Step::Running)
    }

    pub fn fail(&mut self, step: usize, how: Step) {
        (self.steps[step], self.status) = (how, Status::Compensating);
    }

    pub fn request_cancel(&mut self) -> bool {
        let legal = matches!(self.status, Status::Scheduling | Status::Scheduled | Status::Compensating);
        if legal {
            self.status = Status::Cancelling;
        }
        legal
    }
}

/// A delivery in the hands of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Active {
    /// The offsets of its operations, the first being carried out.
    pub works: Vec<usize>,
    pub phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Its record is to be loaded.
    Waiting,
    /// A service was called for the step and has not answered.
    Calling(Record),
    /// To be saved, if the operation changed anything.
    Through { record: Option<Record>, changed: bool },
    /// Saved; to be handed to the compensator.
    Saved,
}

/// Reader, scheduler and checkpointer of the partition in one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    pub epoch: u8,
    /// The next offset to read; none before the checkpoint was loaded.
    pub next: Option<usize>,
    pub active: Vec<Option<Active>>,
    pub finished: Vec<bool>,
    /// What it knows to be saved.
    pub saved: usize,
}

/// A compensator at work on one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    pub delivery: usize,
    pub phase: Undo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Undo {
    Waiting,
    Cancelling(Record, usize),
    /// To be saved, then go on with the step, or settle when there is none.
    Changed(Record, Option<usize>),
    Settling,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    pub lease: Option<usize>,
    pub epoch: u8,
    pub checkpoint: usize,
    /// The highest checkpoint there ever was, and whether one was written under an old epoch: for the properties.
    pub highest: usize,
    pub stale_write: bool,
    pub records: [Option<Record>; DELIVERIES],
    /// How many entities each step has made.
    pub entities: [[u8; STEPS]; DELIVERIES],
    pub tombstones: [[bool; STEPS]; DELIVERIES],
    /// Calls whose caller is gone; they may yet take effect.
    pub late: [[u8; STEPS]; DELIVERIES],
    /// Messages of the failed-operations queue that nobody holds.
    pub queue: [u8; DELIVERIES],
    pub readers: [Option<Reader>; PROCESSES],
    pub jobs: [Option<Job>; PROCESSES],
    /// What may still go wrong.
    pub crashes: u8,
    pub timeouts: u8,
    pub refusals: u8,
    pub freezes: u8,
    pub sweeps: u8,
}
