//! What others hear of a workflow: lines for the status stream, and notices for its owner.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::backoff::Backoff;
use super::writer::WriterHandle;
use crate::domain::status::{EventType, Stage, StatusEvent};
use crate::domain::time::Timestamp;
use crate::domain::{DeliveryId, Status, StepName, StepState, Workflow};
use crate::stream::{Queue, Queues, pieces};

/// Lines for the status stream, gathered so that many go out together; changes of one delivery that come one after the
/// other share a line.
#[derive(Debug, Default)]
pub struct StatusLines {
    lines: Vec<u8>,
    count: usize,
    /// Whose the last line is.
    last: Option<DeliveryId>,
}

/// How a line ends.
const END: &[u8] = b"]}\n";

impl StatusLines {
    pub fn push(&mut self, event: &StatusEvent) {
        if self.last.as_ref() == Some(&event.delivery_id) {
            self.lines.truncate(self.lines.len() - END.len());
            self.lines.push(b',');
        } else {
            // An id holds nothing that JSON would escape.
            self.lines.extend_from_slice(br#"{"deliveryId":""#);
            self.lines.extend_from_slice(event.delivery_id.as_str().as_bytes());
            self.lines.extend_from_slice(br#"","ownerId":"#);
            // Plain data to memory cannot fail.
            let _ = serde_json::to_writer(&mut self.lines, &event.owner_id);
            self.lines.extend_from_slice(br#","events":["#);
            self.last = Some(event.delivery_id.clone());
        }
        let _ = serde_json::to_writer(&mut self.lines, event);
        self.lines.extend_from_slice(END);
        self.count += 1;
    }

    pub fn status(&mut self, workflow: &Workflow, status: Status, at: Timestamp) {
        let told = matches!(status, Status::Compensating | Status::Failed | Status::Stuck);
        let reason = workflow.reason.as_ref().filter(|_| told);
        let detail = reason.map(|r| format!("{}: {}", r.code.as_str(), r.text).into());
        self.push(&StatusEvent { status: Some(status), detail, ..event_of(workflow, EventType::Status, at) });
    }

    pub fn step(&mut self, workflow: &Workflow, step: StepName, state: StepState, at: Timestamp) {
        let detail = Some(state.as_str().into());
        self.push(&StatusEvent { step: Some(step), detail, ..event_of(workflow, EventType::Step, at) });
    }

    pub fn created(&mut self, workflow: &Workflow, at: Timestamp) {
        self.push(&StatusEvent { stage: Some(Stage::Created), ..event_of(workflow, EventType::Stage, at) });
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn append(&mut self, other: &Self) {
        self.lines.extend_from_slice(&other.lines);
        self.count += other.count;
        self.last.clone_from(&other.last);
    }

    /// The lines as the body of one entry.
    #[must_use]
    pub fn into_body(self) -> Bytes {
        self.lines.into()
    }

    /// Appends the lines to the status stream, until it works.
    pub async fn tell(self, status: &WriterHandle) {
        let count = self.count;
        let bodies = pieces(self.into_body());
        let each = count.div_ceil(bodies.len().max(1));
        for lines in bodies {
            let append = async || status.append(&lines, each).await;
            Backoff::ENGINE.until_ok("telling the status stream", append).await;
        }
    }
}

fn event_of(workflow: &Workflow, kind: EventType, at: Timestamp) -> StatusEvent<'_> {
    StatusEvent::new(kind, at, workflow.delivery_id.clone(), workflow.request.owner_id.as_str())
}

/// What an owner is told: how a delivery ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    pub delivery_id: DeliveryId,
    pub owner_id: String,
    pub status: Status,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Notice {
    /// The same for the same end of the same delivery, so that a receiver can drop what it has seen.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}-{}", self.delivery_id, self.status.as_str())
    }

    /// The notice of a workflow, if it came to an end that its owner wants to hear of.
    #[must_use]
    pub fn of(workflow: &Workflow) -> Option<Self> {
        let ended = matches!(workflow.status, Status::Failed | Status::Stuck | Status::Cancelled | Status::Completed);
        ended.then(|| Self {
            delivery_id: workflow.delivery_id.clone(),
            owner_id: workflow.request.owner_id.clone(),
            status: workflow.status,
            at: workflow.updated_at,
            reason: workflow.reason.as_ref().map(|r| format!("{}: {}", r.code.as_str(), r.text)),
        })
    }
}

/// Puts notices into the queue of notifications, until it works.
pub async fn publish(queues: &dyn Queues, notices: Vec<Notice>) {
    if !notices.is_empty() {
        let bodies: Vec<Bytes> = notices.iter().map(|n| serde_json::to_vec(n).unwrap_or_default().into()).collect();
        let publish = async || queues.publish(Queue::Notifications, bodies.clone()).await;
        Backoff::ENGINE.until_ok("queueing notices", publish).await;
    }
}
