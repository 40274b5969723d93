//! What follows when a package has been delivered: the workflow is `Completed`, and its owner and the status feed hear
//! of it. Whoever tells of the arrival (a drone over HTTP, a simulated flight), it comes through here.
//!
//! It may be repeated: the record is completed once, and only who completed it tells. A crash between the saving and the
//! telling leaves the owner without a notice; the record has it all the same.

use std::sync::Arc;
use std::time::Duration;

use super::delivery::Delivery;
use super::entities::{ROUNDS, pause};
use super::{SharedSink, StepError};
use crate::actors::notice::{Notice, publish};
use crate::domain::status::{EventType, Stage, StatusEvent};
use crate::domain::time::now;
use crate::domain::workflow::Event;
use crate::domain::{DeliveryId, Status, Workflow};
use crate::store::workflows::{Stored, Workflows};
use crate::store::{Outcome, StoreError};
use crate::stream::Queues;

/// How long a notice is tried to be queued.
const NOTICE_FOR: Duration = Duration::from_secs(10);

/// What became of a delivered delivery's workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It is completed, by this call or an earlier one.
    Completed,
    /// It is still being scheduled; worth another try.
    NotYet,
    /// There is no such workflow, or its record is not written yet.
    Unknown,
    /// It ended otherwise or is about to, cancelled for one.
    Otherwise,
}

pub struct Completion {
    workflows: Workflows,
    queues: Arc<dyn Queues>,
    sink: SharedSink,
}

impl Completion {
    #[must_use]
    pub fn new(workflows: Workflows, queues: Arc<dyn Queues>, sink: SharedSink) -> Self {
        Self { workflows, queues, sink }
    }

    /// Completes the workflows of those deliveries that are delivered; whose is to be tried again gets an error.
    pub async fn settle(&self, deliveries: &mut [Result<Option<Delivery>, StepError>]) {
        let mut ids = Vec::new();
        let mut places = Vec::new();
        for (i, delivery) in deliveries.iter().enumerate() {
            if let Ok(Some(delivery)) = delivery
                && delivery.stage == Stage::Delivered
            {
                ids.push(delivery.id.clone());
                // With a flight it has a workflow: a record that is not there is on its way.
                places.push((i, delivery.flight.is_some()));
            }
        }
        if ids.is_empty() {
            return;
        }
        let endings = self.complete(&ids).await;
        for (n, (i, has_workflow)) in places.into_iter().enumerate() {
            match &endings {
                Err(error) => deliveries[i] = Err(error.clone().into()),
                Ok(endings) if endings[n] == Ending::NotYet || (has_workflow && endings[n] == Ending::Unknown) => {
                    deliveries[i] = Err(StepError::Transient("the delivery is not scheduled yet".into()));
                }
                Ok(_) => {}
            }
        }
    }

    /// Completes the workflows of delivered deliveries; the answers are in their order.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn complete(&self, ids: &[DeliveryId]) -> Result<Vec<Ending>, StoreError> {
        let mut endings = vec![Ending::NotYet; ids.len()];
        let mut open: Vec<usize> = (0..ids.len()).collect();
        for round in 0..ROUNDS {
            if open.is_empty() {
                break;
            }
            pause(round).await;
            open = self.complete_once(ids, &open, &mut endings).await?;
        }
        Ok(endings)
    }

    /// Says which were changed by somebody else meanwhile.
    async fn complete_once(
        &self,
        ids: &[DeliveryId],
        open: &[usize],
        endings: &mut [Ending],
    ) -> Result<Vec<usize>, StoreError> {
        let records = self.workflows.load(open.iter().map(|i| &ids[*i])).await?;
        let mut completed: Vec<(usize, Stored)> = Vec::new();
        for (i, loaded) in open.iter().zip(records) {
            let record = match loaded {
                Ok(record) => record,
                Err(error) => {
                    tracing::error!(%error, "cannot be completed");
                    endings[*i] = Ending::NotYet;
                    continue;
                }
            };
            endings[*i] = match record.as_ref().map(|record| record.workflow.status) {
                None => Ending::Unknown,
                Some(Status::Completed) => Ending::Completed,
                Some(Status::Accepted | Status::Scheduling) => Ending::NotYet,
                Some(_) => Ending::Otherwise,
            };
            if let Some(mut record) = record
                && record.workflow.apply(Event::Completed, now()).is_ok()
            {
                completed.push((*i, record));
            }
        }
        if completed.is_empty() {
            return Ok(Vec::new());
        }
        let mut saving: Vec<&mut Stored> = completed.iter_mut().map(|(_, record)| record).collect();
        let outcomes = self.workflows.save(&mut saving).await?;
        let (mut told, mut lost) = (Vec::new(), Vec::new());
        for ((i, record), outcome) in completed.into_iter().zip(outcomes) {
            match outcome {
                Outcome::Done => {
                    endings[i] = Ending::Completed;
                    told.push(record.workflow);
                }
                Outcome::Conflict => lost.push(i),
            }
        }
        self.tell(&told).await;
        Ok(lost)
    }

    async fn tell(&self, completed: &[Box<Workflow>]) {
        for workflow in completed {
            let (id, owner) = (workflow.delivery_id.clone(), workflow.request.owner_id.clone());
            let event = StatusEvent::new(EventType::Status, workflow.updated_at, id, owner);
            self.sink.emit(StatusEvent { status: Some(workflow.status), ..event });
            metrics::counter!(crate::metrics::WORKFLOWS, "status" => workflow.status.as_str()).increment(1);
        }
        let notices = completed.iter().filter_map(|workflow| Notice::of(workflow)).collect();
        if tokio::time::timeout(NOTICE_FOR, publish(&*self.queues, notices)).await.is_err() {
            tracing::warn!(count = completed.len(), "notices of completed deliveries could not be queued");
        }
    }
}
