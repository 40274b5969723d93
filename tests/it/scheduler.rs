//! The scheduler by itself, on both engines: what is asked of a delivery whose request still waits in the work queue (mode
//! `queue`), and of one whose record nobody can read; and what sweeper and compensator make of what it leaves to them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::prelude::*;
use async_trait::async_trait;
use bytes::Bytes;
use drone_delivery::actors::agent::{Agent, Agents};
use drone_delivery::actors::checkpointer::Finished;
use drone_delivery::actors::compensator::{self, Compensator};
use drone_delivery::actors::lifeline::Lifeline;
use drone_delivery::actors::reader::{Offer, Work};
use drone_delivery::actors::scheduler::{Parts, Scheduler};
use drone_delivery::actors::sweeper::{self, Sweeper};
use drone_delivery::actors::writer::{Limits, Writer, WriterHandle};
use drone_delivery::alerts::{AlertKind, Alerts};
use drone_delivery::config::{Compensation, Settings};
use drone_delivery::domain::time::now;
use drone_delivery::domain::workflow::Event;
use drone_delivery::domain::{DeliveryId, Draft, Operation, OperationKind, ReasonCode, Status, StepName, Workflow};
use drone_delivery::services::Local;
use drone_delivery::store::workflows::{Stored, Workflows};
use drone_delivery::store::{State, Txn};
use drone_delivery::stream::{
    AppendError, Bounds, DeadLetter, From, Queue, Queues, ReadError, Settle, Stream, StreamReader, Streams,
};

use crate::conformance::{soon, until};
use crate::services::Told;

/// Makes one test of every named function for every engine.
macro_rules! on_every_engine {
    ($($test:ident),* $(,)?) => {
        mod embedded {
            use super::Rig;
            use crate::conformance::{StreamFixture, embedded::Embedded, state::StateFixture};
            $(#[actix::test]
            async fn $test() {
                let engine = Embedded::start();
                super::$test(Rig::new(engine.streams(), engine.queues(), engine.state())).await;
            })*
        }
        mod cluster {
            use super::Rig;
            use crate::conformance::cluster::{OnRabbitMq, OnRedis};
            use crate::conformance::{StreamFixture, state::StateFixture};
            $(#[actix::test]
            async fn $test() {
                let (broker, store) = (OnRabbitMq::start().await, OnRedis::start().await);
                super::$test(Rig::new(broker.streams(), broker.queues(), store.state())).await;
            })*
        }
    };
}

on_every_engine!(
    a_cancel_waits_for_its_request,
    an_unreadable_record_holds_up_only_its_delivery,
    what_is_set_aside_is_finished_only_then,
    an_overdue_record_is_found_behind_unreadable_ones,
    what_is_damaged_is_stuck_for_that_reason,
);

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

/// An engine, and what the schedulers on it make.
struct Rig {
    streams: Arc<dyn Streams>,
    queues: Arc<dyn Queues>,
    state: Arc<dyn State>,
    workflows: Workflows,
    alerts: Alerts,
    counted: Counted,
}

impl Rig {
    fn new(streams: Arc<dyn Streams>, queues: Arc<dyn Queues>, state: Arc<dyn State>) -> Self {
        let workflows = Workflows::new(state.clone());
        Self { streams, queues, state, workflows, alerts: Alerts::default(), counted: Counted::default() }
    }

    /// A scheduler without agents: steps are never done.
    fn scheduler(&self, patient: bool) -> Addr<Scheduler> {
        let parts = Parts {
            workflows: self.workflows.clone(),
            agents: Agents::default(),
            queues: self.queues.clone(),
            status: status_writer(&self.streams),
            streams: self.streams.clone(),
            alerts: self.alerts.clone(),
            complete_by: COMPLETE_BY,
            patient,
        };
        Scheduler::new(parts, self.counted.clone().start().recipient(), Lifeline::unwatched()).start()
    }

    fn counted(&self) -> Vec<u64> {
        let mut counted = self.counted.0.lock().unwrap().clone();
        counted.sort_unstable();
        counted
    }

    /// So many dead letters, once they are there.
    async fn dead_letters(&self, count: usize) -> Vec<DeadLetter> {
        let (mut reader, mut letters) = (None, Vec::new());
        while letters.len() < count {
            let reader = match &mut reader {
                Some(reader) => reader,
                none => none.insert(soon(self.streams.read(Stream::DeadLetters, From::First)).await.unwrap()),
            };
            let entries = soon(reader.next()).await.unwrap();
            let lines =
                entries.iter().flat_map(|entry| entry.body.split(|b| *b == b'\n')).filter(|line| !line.is_empty());
            letters.extend(lines.map(|line| serde_json::from_slice::<DeadLetter>(line).unwrap()));
        }
        letters
    }
}

fn schedule(id: &DeliveryId) -> (Operation, Workflow) {
    let request = Draft::read(BODY, now()).unwrap().complete(id, now(), Duration::from_secs(3_600));
    let request = Arc::new(request);
    let schedule = operation(id, OperationKind::Schedule(request.clone()));
    let workflow = Workflow::accepted(&schedule, request, now());
    (schedule, workflow)
}

async fn a_cancel_waits_for_its_request(rig: Rig) {
    let Rig { queues, workflows, counted, .. } = &rig;
    let id = DeliveryId::generate();
    let (schedule, workflow) = schedule(&id);
    soon(queues.publish(Queue::Work, vec![schedule.to_line().into()])).await.unwrap();
    let scheduler = rig.scheduler(true);
    scheduler.do_send(Offer(vec![Work { offset: 7, operation: operation(&id, OperationKind::Cancel) }]));
    // Several looks, each long after the time in which a worker should have come to it.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(counted.0.lock().unwrap().is_empty(), "it was given up while its request waited");
    // Now a worker comes to it.
    let mut worker = soon(queues.consume(Queue::Work, 1)).await.unwrap();
    let message = soon(worker.messages.next()).await.unwrap();
    let mut record = Stored::new(workflow);
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

/// Damage, or what a later version wrote: whatever is asked of that delivery is set aside, and nobody else notices.
async fn an_unreadable_record_holds_up_only_its_delivery(rig: Rig) {
    let (damaged, sound) = (DeliveryId::generate(), DeliveryId::generate());
    let key = format!("workflow/{damaged}");
    soon(rig.state.commit(vec![Txn::new().put(&key, "no record")])).await.unwrap();
    let mut record = Stored::new(schedule(&sound).1);
    soon(rig.workflows.save(&mut [&mut record])).await.unwrap();
    let cancel = |id: &DeliveryId| operation(id, OperationKind::Cancel);
    let asked = [schedule(&damaged).0, cancel(&sound), cancel(&damaged)];
    let works =
        asked.iter().zip(1..).map(|(operation, offset)| Work { offset, operation: operation.clone() }).collect();
    rig.scheduler(false).do_send(Offer(works));
    until("all of them come to an end", || async { rig.counted() == [1, 2, 3] }).await;
    let letters = rig.dead_letters(2).await;
    for (letter, operation) in letters.iter().zip([&asked[0], &asked[2]]) {
        assert_eq!(serde_json::from_str::<Operation>(&letter.body).unwrap(), *operation, "in their order");
        assert!(letter.reason.contains(&key) && letter.source == format!("requests/{damaged}"), "{letter:?}");
    }
    assert_eq!(rig.alerts.list()[0].kind, AlertKind::DeadLetter);
    let kept = soon(rig.state.get(&[key])).await.unwrap();
    assert_eq!(kept, [Some("no record".into())], "what is left of it is not touched");

    // The other one waits to be undone by now. It has no agents, so one that is through already stands for it.
    let mut other = Stored::new(schedule(&DeliveryId::generate()).1);
    for event in [Event::CancelRequested, Event::Undone] {
        other.workflow.apply(event, now()).unwrap();
    }
    soon(rig.workflows.save(&mut [&mut other])).await.unwrap();
    let mut consumer = soon(rig.queues.consume(Queue::FailedOperations, 1)).await.unwrap();
    let handed_over = soon(consumer.messages.next()).await.unwrap();
    assert_eq!(handed_over.body, sound.as_str());
    soon(consumer.settler.settle(&[handed_over.tag], Settle::Done)).await.unwrap();
    drop(consumer);
    let messages = [&damaged, &other.workflow.delivery_id].map(|id| Bytes::copy_from_slice(id.as_str().as_bytes()));
    soon(rig.queues.publish(Queue::FailedOperations, messages.to_vec())).await.unwrap();
    let parts = compensator::Parts {
        workflows: rig.workflows.clone(),
        agents: Agents::default(),
        queues: rig.queues.clone(),
        status: status_writer(&rig.streams),
        settings: Settings::builtin().unwrap().compensation,
        alerts: rig.alerts.clone(),
    };
    Compensator::new(parts, Lifeline::unwatched()).start();
    let letter = rig.dead_letters(3).await.pop().unwrap();
    assert_eq!((letter.source.as_str(), letter.body.as_str()), ("failed-operations", damaged.as_str()));
    until("the other is settled", || async { matches!(rig.queues.depth(Queue::FailedOperations).await, Ok(0)) }).await;
}

/// Its step is ordered again and again while its record is found to be damaged: the end of the one is not the other's.
async fn what_is_set_aside_is_finished_only_then(mut rig: Rig) {
    let letters = Arc::new(SlowLetters { inner: rig.streams, written: AtomicUsize::new(0) });
    rig.streams = letters.clone();
    let (id, other) = (DeliveryId::generate(), DeliveryId::generate());
    let asked = [schedule(&id).0, operation(&id, OperationKind::Cancel), schedule(&other).0];
    let works =
        asked.iter().zip(1..).map(|(operation, offset)| Work { offset, operation: operation.clone() }).collect();
    rig.scheduler(false).do_send(Offer(works));
    // Without agents its first step is lost and ordered again, until how far it is is saved.
    until("its progress is saved", || async { matches!(rig.workflows.get(&id).await, Ok(Some(_))) }).await;
    soon(rig.state.commit(vec![Txn::new().put(format!("workflow/{id}"), "no record")])).await.unwrap();
    let ended = || async {
        let counted = rig.counted();
        assert!(counted.len() <= letters.written.load(Ordering::SeqCst), "{counted:?} are not set aside yet");
        counted == [1, 2]
    };
    until("what was asked of it comes to an end", ended).await;
    for (letter, operation) in rig.dead_letters(2).await.iter().zip(&asked) {
        assert_eq!(serde_json::from_str::<Operation>(&letter.body).unwrap(), *operation, "each of them is there");
    }
}

/// Takes its time with dead letters.
struct SlowLetters {
    inner: Arc<dyn Streams>,
    written: AtomicUsize,
}

#[async_trait]
impl Streams for SlowLetters {
    async fn append(&self, stream: Stream, body: Bytes) -> Result<(), AppendError> {
        if stream != Stream::DeadLetters {
            return self.inner.append(stream, body).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        self.inner.append(stream, body).await?;
        self.written.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn read(&self, stream: Stream, from: From) -> Result<Box<dyn StreamReader>, ReadError> {
        self.inner.read(stream, from).await
    }

    async fn bounds(&self, stream: Stream) -> Result<Bounds, ReadError> {
        self.inner.bounds(stream).await
    }

    async fn release(&self, stream: Stream, offset: u64) {
        self.inner.release(stream, offset).await;
    }

    async fn ensure(&self, stream: Stream) -> Result<(), AppendError> {
        self.inner.ensure(stream).await
    }
}

async fn an_overdue_record_is_found_behind_unreadable_ones(rig: Rig) {
    let unreadable = |n: u64| {
        let id = DeliveryId::generate();
        let member = format!("{n:012x}{id}");
        Txn::new().put(format!("workflow/{id}"), "no record").add("workflows/status/Scheduling", member)
    };
    soon(rig.state.commit((0..450).map(unreadable).collect())).await.unwrap();
    let id = DeliveryId::generate();
    let mut record = Stored::new(schedule(&id).1);
    record.workflow.apply(Event::Started, now()).unwrap();
    soon(rig.workflows.save(&mut [&mut record])).await.unwrap();
    let parts = sweeper::Parts {
        workflows: rig.workflows.clone(),
        queues: rig.queues.clone(),
        status: status_writer(&rig.streams),
        every: Duration::from_millis(50),
        grace: Duration::ZERO,
    };
    Sweeper::new(parts, Lifeline::unwatched()).start();
    let mut consumer = soon(rig.queues.consume(Queue::FailedOperations, 1)).await.unwrap();
    assert_eq!(soon(consumer.messages.next()).await.unwrap().body, id.as_str());
    let record = soon(rig.workflows.get(&id)).await.unwrap().unwrap();
    assert_eq!(record.workflow.status, Status::Compensating);
}

/// The delivery's entity is damaged, so its step cannot be undone: it ends, and says why.
async fn what_is_damaged_is_stuck_for_that_reason(rig: Rig) {
    let id = DeliveryId::generate();
    let mut record = Stored::new(schedule(&id).1);
    record.workflow.apply(Event::CancelRequested, now()).unwrap();
    soon(rig.workflows.save(&mut [&mut record])).await.unwrap();
    soon(rig.state.commit(vec![Txn::new().put(format!("delivery/{id}"), "no delivery")])).await.unwrap();
    let settings = Settings::builtin().unwrap();
    let local = Local::new(&rig.state, Arc::new(Told::default()), &settings).unwrap();
    let agents = Agents::default();
    let of_step = settings.agents.get(StepName::Delivery).clone();
    let agent = Agent::new(local.of(StepName::Delivery), of_step, rig.alerts.clone(), Lifeline::unwatched());
    agents.slot(StepName::Delivery).set(agent.start());
    let parts = compensator::Parts {
        workflows: rig.workflows.clone(),
        agents,
        queues: rig.queues.clone(),
        status: status_writer(&rig.streams),
        settings: Compensation { attempts: 1, ..settings.compensation },
        alerts: rig.alerts.clone(),
    };
    Compensator::new(parts, Lifeline::unwatched()).start();
    let message = Bytes::copy_from_slice(id.as_str().as_bytes());
    soon(rig.queues.publish(Queue::FailedOperations, vec![message])).await.unwrap();
    until("it is settled", || async { matches!(rig.queues.depth(Queue::FailedOperations).await, Ok(0)) }).await;
    let workflow = soon(rig.workflows.get(&id)).await.unwrap().unwrap().workflow;
    assert_eq!(
        (workflow.status, workflow.reason.map(|reason| reason.code)),
        (Status::Stuck, Some(ReasonCode::Damaged))
    );
}
