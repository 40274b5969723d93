//! Where ingestion meets the partition writers.

use std::sync::Arc;

use crate::actors::writer::{WriteError, WriterHandle};

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
}
