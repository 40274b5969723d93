//! Where ingestion meets the partition writers.

use std::sync::Arc;

use crate::actors::writer::{Find, WriteError, WriterHandle};
use crate::domain::{DeliveryId, Operation, partition_of};

/// The writers of all partitions. Cheap to clone.
#[derive(Clone)]
pub struct Intake(Arc<[WriterHandle]>);

impl Intake {
    /// The writers by partition.
    #[must_use]
    pub fn new(writers: Vec<WriterHandle>) -> Self {
        Self(writers.into())
    }

    /// Writes one or more whole lines to a partition and comes back once they are durable. What was handed in is
    /// written even when the future is dropped.
    ///
    /// # Errors
    /// When they are not known to be durable.
    pub async fn accept(&self, partition: u32, lines: Vec<u8>, count: usize) -> Result<(), WriteError> {
        match self.0.get(partition as usize) {
            Some(writer) => writer.append(lines.into(), count).await,
            None => Err(WriteError::Unavailable(format!("partition {partition} has no writer"))),
        }
    }

    /// The operations on a delivery that this process accepted a moment ago, oldest first.
    pub async fn recent(&self, id: &DeliveryId) -> Vec<Operation> {
        let partition = partition_of(id.as_str(), u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        let writer = self.0.get(partition as usize).and_then(|writer| writer.slot.get());
        let lines = match writer {
            Some(writer) => writer.send(Find(id.clone())).await.unwrap_or_default(),
            None => Vec::new(),
        };
        lines.iter().filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}
