//! Where ingestion meets the partition writers.
//!
//! What a thread of the server accepts for one partition in one round of its connections goes to the writer as one
//! cohort, and its answer comes back as one: under load the way between the threads is paid for once for all of them.
//! Nobody is waited for: a cohort is handed on as soon as the thread has looked at each of its connections once.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::sync::Notify;

use crate::actors::writer::{Find, WriteError, WriterHandle};
use crate::domain::{DeliveryId, Operation, partition_of};

/// The writers of all partitions, as one thread of the server sees them.
pub struct Intake {
    writers: Arc<[WriterHandle]>,
    /// What is still open, by partition.
    open: Rc<RefCell<Vec<Option<Cohort>>>>,
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
    pub fn new(writers: Arc<[WriterHandle]>) -> Self {
        let open = writers.iter().map(|_| None).collect();
        Self { writers, open: Rc::new(RefCell::new(open)) }
    }

    /// Writes one or more whole lines to a partition and comes back once they are durable. What was handed in is
    /// written even when the future is dropped.
    ///
    /// # Errors
    /// When they are not known to be durable.
    pub async fn accept(&self, partition: u32, lines: &[u8], count: usize) -> Result<(), WriteError> {
        let number = partition as usize;
        let Some(writer) = self.writers.get(number) else {
            return Err(WriteError::Unavailable(format!("partition {partition} has no writer")));
        };
        let end = {
            let cohort = &mut self.open.borrow_mut()[number];
            if cohort.is_none() {
                actix_web::rt::spawn(hand_on(self.open.clone(), number, writer.clone()));
            }
            let cohort = cohort.get_or_insert_default();
            cohort.lines.extend_from_slice(lines);
            cohort.count += count;
            cohort.end.clone()
        };
        end.wait().await
    }

    /// The operations on a delivery that this process accepted a moment ago, oldest first.
    pub async fn recent(&self, id: &DeliveryId) -> Vec<Operation> {
        let partition = partition_of(id.as_str(), u32::try_from(self.writers.len()).unwrap_or(u32::MAX));
        let writer = self.writers.get(partition as usize).and_then(|writer| writer.slot.get());
        let lines = match writer {
            Some(writer) => writer.send(Find(id.clone())).await.unwrap_or_default(),
            None => Vec::new(),
        };
        lines.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

/// Closes a cohort after a round of the thread's connections, has it written, and tells everybody in it.
async fn hand_on(open: Rc<RefCell<Vec<Option<Cohort>>>>, number: usize, writer: WriterHandle) {
    tokio::task::yield_now().await;
    let Some(Cohort { lines, count, end }) = open.borrow_mut()[number].take() else { return };
    let outcome = writer.append(lines.freeze(), count).await;
    let _ = end.outcome.set(outcome);
    end.told.notify_waiters();
}
