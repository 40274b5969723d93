//! Where ingestion meets the partition writers.
//!
//! What a thread of the server accepts for one partition goes to the writer as one cohort, and its answer comes back as
//! one: under load the way between the threads is paid for once for all of them. A cohort is handed on as soon as the
//! thread has looked at each of its connections once; what arrives while it is being written is the next one. While
//! several clients send at once a small cohort is given a moment to grow, because a broker is paid by the message; a lone
//! client never waits for others.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::sync::Notify;

use crate::actors::writer::{Find, WriteError, WriterHandle};
use crate::domain::{DeliveryId, Operation, partition_of};

/// The writers of all partitions, as one thread of the server sees them.
pub struct Intake {
    lanes: Vec<Rc<Lane>>,
}

/// A cohort of so many lines is large enough not to wait for more.
const LARGE: usize = 16;

/// One partition's cohorts.
struct Lane {
    writer: WriterHandle,
    /// The one that is still open; none when nobody hands cohorts on.
    open: RefCell<Option<Cohort>>,
    /// Told when the open one has become large.
    grown: Notify,
    /// A small cohort is handed on no sooner than this after the last one.
    linger: Duration,
}

/// Lines of one partition that go to the writer together.
#[derive(Default)]
struct Cohort {
    lines: BytesMut,
    count: usize,
    end: Rc<End>,
}

/// What became of a cohort, for everybody in it.
#[derive(Default)]
struct End {
    outcome: OnceCell<Result<(), WriteError>>,
    told: Notify,
}

impl End {
    async fn wait(&self) -> Result<(), WriteError> {
        loop {
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            // Nothing else runs on this thread between the look and the wait.
            self.told.notified().await;
        }
    }
}

impl Lane {
    /// How long the open cohort is given to become larger; none when it is to be handed on now.
    fn moment_to_grow(&self, (began, lines): (Instant, usize)) -> Option<Duration> {
        let grows = self.open.borrow().as_ref().is_some_and(|cohort| (1..LARGE).contains(&cohort.count));
        let left = self.linger.checked_sub(began.elapsed());
        left.filter(|left| grows && lines > 1 && !left.is_zero())
    }
}

impl Intake {
    /// The writers by partition, for one thread.
    #[must_use]
    pub fn new(writers: &[WriterHandle], linger: Duration) -> Self {
        let lane = |writer: &WriterHandle| Lane {
            writer: writer.clone(),
            open: RefCell::default(),
            grown: Notify::new(),
            linger,
        };
        Self { lanes: writers.iter().map(|writer| Rc::new(lane(writer))).collect() }
    }

    /// Writes one or more whole lines to a partition and comes back once they are durable. What was handed in is
    /// written even when the future is dropped.
    ///
    /// # Errors
    /// When they are not known to be durable.
    pub async fn accept(&self, partition: u32, lines: &[u8], count: usize) -> Result<(), WriteError> {
        let Some(lane) = self.lanes.get(partition as usize) else {
            return Err(WriteError::Unavailable(format!("partition {partition} has no writer")));
        };
        let end = {
            let mut open = lane.open.borrow_mut();
            // Behind a write that hangs a cohort grows no larger than what the writer would take.
            if open.as_ref().is_some_and(|cohort| cohort.count + count > lane.writer.most) {
                return Err(WriteError::Full);
            }
            if open.is_none() {
                actix_web::rt::spawn(hand_on(lane.clone()));
            }
            let cohort = open.get_or_insert_default();
            cohort.lines.extend_from_slice(lines);
            cohort.count += count;
            if cohort.count >= LARGE {
                lane.grown.notify_waiters();
            }
            cohort.end.clone()
        };
        end.wait().await
    }

    /// The operations on a delivery that this process accepted a moment ago, oldest first.
    pub async fn recent(&self, id: &DeliveryId) -> Vec<Operation> {
        let partition = partition_of(id.as_str(), u32::try_from(self.lanes.len()).unwrap_or(u32::MAX));
        let writer = self.lanes.get(partition as usize).and_then(|lane| lane.writer.slot.get());
        let lines = match writer {
            Some(writer) => writer.send(Find(id.clone())).await.unwrap_or_default(),
            None => Vec::new(),
        };
        lines.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

/// Closes the open cohort after a round of the thread's connections, has it written and tells everybody in it; and so
/// on while there are more.
async fn hand_on(lane: Rc<Lane>) {
    let mut last = (Instant::now(), 0);
    loop {
        tokio::task::yield_now().await;
        if let Some(moment) = lane.moment_to_grow(last) {
            // Either is a reason to go on.
            let _ = tokio::time::timeout(moment, lane.grown.notified()).await;
        }
        let closed = lane.open.take().filter(|cohort| cohort.count > 0);
        let Some(Cohort { lines, count, end }) = closed else { return };
        *lane.open.borrow_mut() = Some(Cohort::default());
        last = (Instant::now(), count);
        let outcome = lane.writer.append(lines.freeze(), count).await;
        let _ = end.outcome.set(outcome);
        end.told.notify_waiters();
    }
}
