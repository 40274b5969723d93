//! Where ingestion meets the partition writers.
//!
//! Everybody on one thread of the server whose request goes into the same entry waits for one answer: under load the way
//! back from the writer is paid for once for all of them.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;

use tokio::sync::{Notify, oneshot};

use crate::actors::writer::{Find, WriteError, WriterHandle, away};
use crate::domain::{DeliveryId, Operation, partition_of};

/// The writers of all partitions, as one thread of the server sees them.
pub struct Intake {
    lanes: Vec<Lane>,
}

/// The way to one partition.
struct Lane {
    writer: WriterHandle,
    /// The cohort that requests of this thread went into last.
    last: RefCell<Option<(u64, Rc<End>)>>,
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

    async fn tell(self: Rc<Self>, answer: oneshot::Receiver<Result<(), WriteError>>) {
        let _ = self.outcome.set(answer.await.unwrap_or_else(|_| Err(away())));
        self.told.notify_waiters();
    }
}

impl Intake {
    /// The writers by partition, for one thread.
    #[must_use]
    pub fn new(writers: &[WriterHandle]) -> Self {
        let lane = |writer: &WriterHandle| Lane { writer: writer.clone(), last: RefCell::default() };
        Self { lanes: writers.iter().map(lane).collect() }
    }

    /// Writes one or more whole lines to a partition and comes back once they are durable. What was handed in is
    /// written even when the future is dropped; it is not kept meanwhile, since the memory of hundreds that wait would be
    /// out of the processor's cache when they go on.
    ///
    /// # Errors
    /// When they are not known to be durable.
    pub async fn accept(&self, partition: u32, lines: Vec<u8>, count: usize) -> Result<(), WriteError> {
        let Some(lane) = self.lanes.get(partition as usize) else {
            return Err(WriteError::Unavailable(format!("partition {partition} has no writer")));
        };
        let end = lane.join(&lines, count)?;
        drop(lines);
        end.wait().await
    }

    /// The operations on a delivery that this process accepted a moment ago, oldest first.
    pub async fn recent(&self, id: &DeliveryId) -> Vec<Operation> {
        let partition = partition_of(id.as_str(), u32::try_from(self.lanes.len()).unwrap_or(u32::MAX));
        let writer = self.lanes.get(partition as usize).and_then(|lane| lane.writer.slot().get());
        let lines = match writer {
            Some(writer) => writer.send(Find(id.clone())).await.unwrap_or_default(),
            None => Vec::new(),
        };
        lines.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

impl Lane {
    fn join(&self, lines: &[u8], count: usize) -> Result<Rc<End>, WriteError> {
        let mut last = self.last.borrow_mut();
        let known = last.as_ref().map(|(number, _)| *number);
        let (number, answer) = self.writer.join(lines, count, known)?;
        if let Some(answer) = answer {
            let end = Rc::new(End::default());
            actix_web::rt::spawn(end.clone().tell(answer));
            *last = Some((number, end));
        }
        Ok(last.as_ref().map(|(_, end)| end.clone()).unwrap_or_default())
    }
}
