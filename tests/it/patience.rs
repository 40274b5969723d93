//! What is asked of a delivery whose request still waits in the work queue (mode `queue`): on both engines.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::prelude::*;
use drone_delivery::actors::agent::Agents;
use drone_delivery::actors::checkpointer::Finished;
use drone_delivery::actors::lifeline::Lifeline;
use drone_delivery::actors::reader::{Offer, Work};
use drone_delivery::actors::scheduler::{Parts, Scheduler};
use drone_delivery::actors::writer::{Limits, Writer, WriterHandle};
use drone_delivery::domain::time::now;
use drone_delivery::domain::{DeliveryId, Draft, Operation, OperationKind, Status, Workflow};
use drone_delivery::store::State;
use drone_delivery::store::workflows::{Stored, Workflows};
use drone_delivery::stream::{Queue, Queues, Settle, Stream, Streams};

use crate::conformance::{StreamFixture, soon, state::StateFixture, until};

/// So short that patience is over long before the test is.
const COMPLETE_BY: Duration = Duration::from_millis(20);

const BODY: &[u8] = br#"{"ownerId":"contoso","pickupLocation":"47.6101,-122.2015",
    "dropOffLocation":"47.6205,-122.3493","packageInfo":{"size":"Small","weight":1.5}}"#;

/// What was counted as finished, by offset.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<Vec<u64>>>);

impl Actor for Counted {
    type Context = Context<Self>;
}

impl Handler<Finished> for Counted {
    type Result = ();
    fn handle(&mut self, Finished(entries): Finished, _: &mut Context<Self>) {
        self.0.lock().unwrap().extend(entries.into_iter().map(|(offset, _)| offset));
    }
}

fn operation(id: &DeliveryId, op: OperationKind) -> Operation {
    Operation { id: id.clone(), at: now(), trace: None, op }
}

fn status_writer(streams: &Arc<dyn Streams>) -> WriterHandle {
    let limits = Limits {
        waiting: 100,
        batch_lines: 100,
        batch_bytes: 100_000,
        in_flight: 1,
        timeout: Duration::from_secs(60),
        few: 1,
        linger: Duration::ZERO,
        recent_bytes: 0,
    };
    let handle = WriterHandle::new(&limits);
    handle.slot().set(Writer::new(Stream::Status, streams.clone(), limits, &handle, Lifeline::unwatched()).start());
    handle
}

async fn a_cancel_waits_for_its_request(streams: Arc<dyn Streams>, queues: Arc<dyn Queues>, state: Arc<dyn State>) {
    let (id, workflows, counted) = (DeliveryId::generate(), Workflows::new(state), Counted::default());
    let parts = Parts {
        workflows: workflows.clone(),
        agents: Agents::default(),
        queues: queues.clone(),
        status: status_writer(&streams),
        complete_by: COMPLETE_BY,
        patient: true,
    };
    let request = Draft::read(BODY, now()).unwrap().complete(&id, now(), Duration::from_secs(3_600));
    let request = Arc::new(request);
    let schedule = operation(&id, OperationKind::Schedule(request.clone()));
    soon(queues.publish(Queue::Work, vec![schedule.to_line().into()])).await.unwrap();
    let scheduler = Scheduler::new(parts, counted.clone().start().recipient(), Lifeline::unwatched()).start();
    scheduler.do_send(Offer(vec![Work { offset: 7, operation: operation(&id, OperationKind::Cancel) }]));
    // Several looks, each long after the time in which a worker should have come to it.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(counted.0.lock().unwrap().is_empty(), "it was given up while its request waited");
    // Now a worker comes to it.
    let mut worker = soon(queues.consume(Queue::Work, 1)).await.unwrap();
    let message = soon(worker.messages.next()).await.unwrap();
    let mut record = Stored::new(Workflow::accepted(&schedule, request, now()));
    soon(workflows.save(&mut [&mut record])).await.unwrap();
    soon(worker.settler.settle(&[message.tag], Settle::Done)).await.unwrap();
    until("the cancel takes effect", || async { *counted.0.lock().unwrap() == [7] }).await;
    let record = soon(workflows.get(&id)).await.unwrap().unwrap();
    assert_eq!(record.workflow.status, Status::Cancelling);
    // One whose request nobody will ever come to does not wait for ever.
    let nobodys = operation(&DeliveryId::generate(), OperationKind::Cancel);
    scheduler.do_send(Offer(vec![Work { offset: 8, operation: nobodys }]));
    until("it is given up", || async { *counted.0.lock().unwrap() == [7, 8] }).await;
}

#[actix::test]
async fn embedded() {
    let engine = crate::conformance::embedded::Embedded::start();
    a_cancel_waits_for_its_request(engine.streams(), engine.queues(), engine.state()).await;
}

#[actix::test]
async fn cluster() {
    use crate::conformance::cluster::{OnRabbitMq, OnRedis};
    let (broker, store) = (OnRabbitMq::start().await, OnRedis::start().await);
    a_cancel_waits_for_its_request(broker.streams(), broker.queues(), store.state()).await;
}
