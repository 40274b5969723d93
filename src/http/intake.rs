//! Where ingestion meets the partition writers.
//!
//! What a thread of the server accepts for one partition goes to the writer as one cohort, and its answer comes back as
//! one: under load the way between the threads is paid for once for all of them. A cohort is handed on as soon as the
//! thread has looked at each of its connections once; what arrives while it is being written is the next one.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use bytes::BytesMut;
use tokio::sync::Notify;

use crate::actors::writer::{Find, WriteError, WriterHandle};
use crate::domain::{DeliveryId, Operation, partition_of};

/// The writers of all partitions, as one thread of the server sees them.
pub struct Intake {
    lanes: Vec<Rc<Lane>>,
}

/// One partition's cohorts.
struct Lane {
    writer: WriterHandle,
    /// The one that is still open; none when nobody hands cohorts on.
    open: RefCell<Option<Cohort>>,
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

impl Intake {
    /// The writers by partition, for one thread.
    #[must_use]
    pub fn new(writers: &[WriterHandle]) -> Self {
        let lane = |writer: &WriterHandle| Rc::new(Lane { writer: writer.clone(), open: RefCell::default() });
        Self { lanes: writers.iter().map(lane).collect() }
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
            if open.is_none() {
                actix_web::rt::spawn(hand_on(lane.clone()));
            }
            let cohort = open.get_or_insert_default();
            cohort.lines.extend_from_slice(lines);
            cohort.count += count;
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
    loop {
        tokio::task::yield_now().await;
        let closed = lane.open.take().filter(|cohort| cohort.count > 0);
        let Some(Cohort { lines, count, end }) = closed else { return };
        *lane.open.borrow_mut() = Some(Cohort::default());
        let outcome = lane.writer.append(lines.freeze(), count).await;
        let _ = end.outcome.set(outcome);
        end.told.notify_waiters();
    }
}
