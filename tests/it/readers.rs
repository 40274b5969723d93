//! A reader, its checkpointer and flows that are slow, finish in any order or never: on both engines.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actix::prelude::*;
use bytes::Bytes;
use drone_delivery::actors::checkpointer::{self, Checkpointer, Finished, Pace};
use drone_delivery::actors::lifeline::Lifeline;
use drone_delivery::actors::reader::{self, Begin, Offer, Plan, Reader, Work};
use drone_delivery::alerts::{AlertKind, Alerts};
use drone_delivery::config::Mode;
use drone_delivery::domain::operation::reader_of;
use drone_delivery::domain::time::now;
use drone_delivery::domain::{DeliveryId, Operation, OperationKind};
use drone_delivery::store::State;
use drone_delivery::store::checkpoints::{Checkpoints, Share};
use drone_delivery::stream::{AppendError, Bounds, DeadLetter, Entry, From, ReadError, Stream, StreamReader, Streams};

use crate::conformance::PATIENCE;

macro_rules! on_both_engines {
    ($($test:ident),* $(,)?) => {
        mod embedded {
            use crate::conformance::{StreamFixture, embedded::Embedded, state::StateFixture};
            $(#[actix::test]
            async fn $test() {
                let engine = Embedded::start();
                super::$test(super::Rig::new(engine.streams(), engine.state())).await;
            })*
        }
        mod cluster {
            use crate::conformance::{StreamFixture, cluster::{OnRabbitMq, OnRedis}, state::StateFixture};
            $(#[actix::test]
            async fn $test() {
                let (broker, store) = (OnRabbitMq::start().await, OnRedis::start().await);
                super::$test(super::Rig::new(broker.streams(), store.state())).await;
            })*
        }
    };
}

on_both_engines!(
    out_of_order_ends_never_pass_what_is_open,
    the_window_bounds_what_is_in_flight,
    a_batch_waits_for_the_whole_last_one,
    a_restart_goes_on_after_the_checkpoint,
    readers_that_split_a_partition_share_it_without_overlap,
    what_cannot_be_read_is_parked_with_the_reason,
    a_reader_that_lost_its_lease_ends,
    the_slowest_reader_of_a_partition_decides_what_is_released,
    a_stream_that_was_made_anew_begins_with_a_new_window,
);

/// A flow that takes everything and ends nothing by itself.
#[derive(Clone, Default)]
struct Flow {
    works: Arc<Mutex<Vec<Work>>>,
}

impl Actor for Flow {
    type Context = Context<Self>;
}

impl Handler<Offer> for Flow {
    type Result = ();
    fn handle(&mut self, Offer(works): Offer, _: &mut Context<Self>) {
        self.works.lock().unwrap().extend(works);
    }
}

struct Rig {
    streams: Arc<dyn Streams>,
    state: Arc<dyn State>,
    alerts: Alerts,
}

struct Running {
    reader: Addr<Reader>,
    checkpointer: Addr<Checkpointer>,
    flow: Flow,
    checkpoints: Checkpoints,
    share: Share,
    plan: Plan,
}

const STREAM: Stream = Stream::Requests(0);

impl Rig {
    fn new(streams: Arc<dyn Streams>, state: Arc<dyn State>) -> Self {
        Self { streams, state, alerts: Alerts::default() }
    }

    async fn append(&self, ids: &[&str]) {
        let line = |id: &&str| {
            let id = DeliveryId::parse(id).unwrap();
            Operation { id, at: now(), trace: None, op: OperationKind::Cancel }.to_line()
        };
        self.streams.append(STREAM, ids.iter().flat_map(line).collect::<Vec<u8>>().into()).await.unwrap();
    }

    async fn start(&self, owner: &str, window: usize, mode: Mode, (reader, readers): (u32, u32)) -> Running {
        let checkpoints = Checkpoints::new(self.state.clone(), owner, Duration::from_secs(600));
        let share = Share { partition: 0, reader };
        let lease = checkpoints.acquire(share).await.unwrap().expect("the share is free");
        let checkpoint = checkpoints.load(share).await.unwrap();
        let plan = Plan { lease, readers, window, mode, batch: 3, checkpoint };
        let life = Lifeline::unwatched();
        let (streams, alerts) = (self.streams.clone(), self.alerts.clone());
        let addr = Reader::new(plan.clone(), streams, checkpoints.clone(), alerts, life.share()).start();
        let pace = Pace { requests: 1, time: Duration::from_millis(50) };
        let checkpointer = Checkpointer::new(lease, checkpoints.clone(), pace, addr.clone(), checkpoint, life).start();
        let flow = Flow::default();
        let begin = Begin { flow: flow.clone().start().recipient(), checkpointer: checkpointer.clone() };
        addr.do_send(begin);
        Running { reader: addr, checkpointer, flow, checkpoints, share, plan }
    }
}

impl Running {
    fn ids(&self) -> Vec<String> {
        self.flow.works.lock().unwrap().iter().map(|w| w.operation.id.to_string()).collect()
    }

    async fn until(&self, what: &str, done: impl AsyncFn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self).await {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.ids());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_seen(&self, count: usize) {
        self.until("not all was seen", async |me| me.ids().len() >= count).await;
    }

    fn finish(&self, id: &str) {
        let works = self.flow.works.lock().unwrap();
        let work = works.iter().find(|w| w.operation.id.as_str() == id).expect("it was seen");
        self.checkpointer.do_send(Finished(vec![(work.offset, 1)]));
    }

    async fn until_saved(&self, offset: Option<u64>) {
        self.until("not saved", async |me| me.checkpoints.load(me.share).await.unwrap() == offset).await;
    }

    /// What is in flight once everything sent so far was looked at.
    async fn in_flight(&self) -> usize {
        self.checkpointer.send(checkpointer::Observe).await.unwrap();
        self.reader.send(reader::Observe).await.unwrap().in_flight
    }
}

async fn out_of_order_ends_never_pass_what_is_open(rig: Rig) {
    for entry in [["a", "b"], ["c", "d"], ["e", "f"]] {
        rig.append(&entry).await;
    }
    let running = rig.start("one", 100, Mode::Stream, (0, 1)).await;
    running.until_seen(6).await;
    assert_eq!(running.ids(), ["a", "b", "c", "d", "e", "f"], "in the stream's order");
    for id in ["f", "e", "c", "d", "b"] {
        running.finish(id);
    }
    let seen = running.checkpointer.send(checkpointer::Observe).await.unwrap();
    assert_eq!((seen.checkpoint, seen.in_flight, seen.oldest_open), (None, 1, Some(0)));
    running.finish("b");
    assert_eq!(
        running.checkpoints.load(running.share).await.unwrap(),
        None,
        "an end that comes twice ends nothing else"
    );
    running.finish("a");
    running.until_saved(Some(2)).await;
}

async fn the_window_bounds_what_is_in_flight(rig: Rig) {
    let ids: Vec<String> = (0..30).map(|n| format!("w-{n}")).collect();
    for entry in ids.chunks(5) {
        rig.append(&entry.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let running = rig.start("one", 6, Mode::Stream, (0, 1)).await;
    for (n, id) in ids.iter().enumerate() {
        running.until_seen(30.min(n + 6)).await;
        assert_eq!((running.in_flight().await, running.ids().len()), (6.min(30 - n), 30.min(n + 6)));
        running.finish(id);
    }
    running.until_saved(Some(5)).await;
    assert_eq!(running.ids(), ids);
}

async fn a_batch_waits_for_the_whole_last_one(rig: Rig) {
    rig.append(&["a", "b", "c", "d", "e", "f", "g"]).await;
    rig.append(&["h"]).await;
    let running = rig.start("one", 100, Mode::Batch, (0, 1)).await;
    for batch in [["a", "b", "c"].as_slice(), &["d", "e", "f"], &["g"]] {
        let first = running.ids().len();
        running.until_seen(first + batch.len()).await;
        // The last of an entry goes with what comes next, if that is there already.
        assert_eq!(running.ids()[first..][..batch.len()], *batch);
        let [ends_last, others @ ..] = batch else { unreachable!("no batch is empty") };
        others.iter().for_each(|id| running.finish(id));
        let seen = running.ids();
        assert!(seen.len() <= first + 3, "{seen:?}");
        assert!(running.in_flight().await >= 1);
        assert_eq!(running.ids(), seen, "nothing new while one is open");
        running.finish(ends_last);
    }
    running.until_seen(8).await;
    running.finish("h");
    running.until_saved(Some(1)).await;
}

async fn a_restart_goes_on_after_the_checkpoint(rig: Rig) {
    for entry in [["a"], ["b"], ["c"]] {
        rig.append(&entry).await;
    }
    let first = rig.start("one", 100, Mode::Stream, (0, 1)).await;
    first.until_seen(3).await;
    first.finish("a");
    first.finish("c");
    first.until_saved(Some(0)).await;
    first.checkpoints.release(first.plan.lease).await.unwrap();
    let second = rig.start("two", 100, Mode::Stream, (0, 1)).await;
    second.until_seen(2).await;
    assert_eq!(second.ids(), ["b", "c"], "what was open, and what came after it");
    second.finish("b");
    second.finish("c");
    second.until_saved(Some(2)).await;
}

async fn readers_that_split_a_partition_share_it_without_overlap(rig: Rig) {
    let ids: Vec<String> = (0..60).map(|n| format!("s-{n}")).collect();
    for chunk in ids.chunks(6) {
        rig.append(&chunk.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let mine = |reader| ids.iter().filter(|id| reader_of(id, 3) == reader).cloned().collect::<Vec<_>>();
    for reader in 0..3 {
        let running = rig.start(&format!("r{reader}"), 1_000, Mode::Stream, (reader, 3)).await;
        let expected = mine(reader);
        assert!(!expected.is_empty());
        running.until_seen(expected.len()).await;
        assert_eq!(running.ids(), expected);
        for id in &expected {
            running.finish(id);
        }
        running.until_saved(Some(9)).await;
    }
}

async fn what_cannot_be_read_is_parked_with_the_reason(rig: Rig) {
    rig.append(&["a"]).await;
    rig.streams.append(STREAM, Bytes::from_static(b"{\"id\":\"no op\"}\nnot json at all\n")).await.unwrap();
    rig.append(&["b"]).await;
    let running = rig.start("one", 100, Mode::Stream, (0, 1)).await;
    running.until_seen(2).await;
    assert_eq!(running.ids(), ["a", "b"]);
    running.finish("a");
    running.finish("b");
    running.until_saved(Some(2)).await;
    let mut letters = rig.streams.read(Stream::DeadLetters, From::First).await.unwrap();
    let entries = tokio::time::timeout(PATIENCE, letters.next()).await.unwrap().unwrap();
    let lines: Vec<DeadLetter> = entries
        .iter()
        .flat_map(|e| {
            e.body.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(|l| serde_json::from_slice(l).unwrap())
        })
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1].body, "not json at all");
    assert!(lines.iter().all(|letter| letter.reason.starts_with("not an operation")));
    let alerts = rig.alerts.list();
    assert_eq!(alerts.iter().filter(|a| a.kind == AlertKind::DeadLetter).count(), 2);
    assert!(!alerts.iter().any(|a| a.kind == AlertKind::StreamGap));
}

async fn a_reader_that_lost_its_lease_ends(rig: Rig) {
    rig.append(&["a"]).await;
    let first = rig.start("one", 100, Mode::Stream, (0, 1)).await;
    first.until_seen(1).await;
    first.checkpoints.release(first.plan.lease).await.unwrap();
    let second = rig.start("two", 100, Mode::Stream, (0, 1)).await;
    second.until_seen(1).await;
    second.finish("a");
    second.until_saved(Some(0)).await;
    first.finish("a");
    first.until("a fenced reader goes on", async |me| !me.reader.connected() && !me.checkpointer.connected()).await;
    assert_eq!(second.checkpoints.load(second.share).await.unwrap(), Some(0));
}

async fn the_slowest_reader_of_a_partition_decides_what_is_released(rig: Rig) {
    let watched = Arc::new(Watched::of(&rig));
    let rig = Rig { streams: watched.clone(), ..rig };
    let of = |reader| (0..).map(|n| format!("r-{n}")).find(|id| reader_of(id, 2) == reader).unwrap();
    let (fast, slow) = (of(0), of(1));
    rig.append(&[&fast, &slow]).await;
    rig.append(&[&fast]).await;
    let one = rig.start("one", 100, Mode::Stream, (0, 2)).await;
    one.until_seen(2).await;
    one.checkpointer.do_send(Finished(vec![(0, 1), (1, 1)]));
    one.until_saved(Some(1)).await;
    let two = rig.start("two", 100, Mode::Stream, (1, 2)).await;
    two.until_seen(1).await;
    assert_eq!(watched.released(), None, "the other one has not done anything yet");
    two.finish(&slow);
    // The second entry holds nothing of its own.
    two.until_saved(Some(1)).await;
    two.until("not released", async |_| watched.released() == Some(2)).await;
}

/// Its checkpointer still counts the entries that are gone.
async fn a_stream_that_was_made_anew_begins_with_a_new_window(rig: Rig) {
    let watched = Arc::new(Watched::of(&rig));
    let rig = Rig { streams: watched.clone(), ..rig };
    for id in ["a", "b", "c"] {
        rig.append(&[id]).await;
    }
    let first = rig.start("one", 100, Mode::Stream, (0, 1)).await;
    first.until_seen(3).await;
    first.finish("a");
    first.until_saved(Some(0)).await;
    watched.lose();
    rig.append(&["d"]).await;
    first.until("it goes on counting", async |me| !me.reader.connected() && !me.checkpointer.connected()).await;
    assert_eq!(first.checkpoints.load(first.share).await.unwrap(), None);
    assert!(rig.alerts.list().iter().any(|alert| alert.kind == AlertKind::StreamMissing));
}

/// Entries that were gone before they were read are told, wherever reading began.
#[actix::test]
async fn entries_that_are_gone_raise_an_alert() {
    use crate::conformance::{StreamFixture, embedded::Embedded, state::StateFixture};
    let engine = Embedded::start();
    let rig = Rig::new(engine.streams(), engine.state());
    for id in ["a", "b", "c"] {
        rig.append(&[id]).await;
    }
    let holes = Arc::new(Holes { streams: rig.streams.clone(), gone: 2 });
    let rig = Rig { streams: holes, ..rig };
    let running = rig.start("one", 100, Mode::Stream, (0, 1)).await;
    running.until_seen(1).await;
    assert_eq!(running.ids(), ["c"]);
    let alerts = rig.alerts.list();
    let gap = alerts.iter().find(|a| a.kind == AlertKind::StreamGap).expect("an alert");
    assert!(gap.text.contains("0 to 1"), "{}", gap.text);
}

/// Streams whose first entries retention has taken.
struct Holes {
    streams: Arc<dyn Streams>,
    gone: u64,
}

#[async_trait::async_trait]
impl Streams for Holes {
    async fn append(&self, stream: Stream, body: Bytes) -> Result<(), AppendError> {
        self.streams.append(stream, body).await
    }
    async fn read(&self, stream: Stream, _: From) -> Result<Box<dyn StreamReader>, ReadError> {
        self.streams.read(stream, From::Offset(self.gone)).await
    }
    async fn bounds(&self, stream: Stream) -> Result<Bounds, ReadError> {
        self.streams.bounds(stream).await
    }
    async fn release(&self, stream: Stream, offset: u64) {
        self.streams.release(stream, offset).await;
    }
    async fn ensure(&self, stream: Stream) -> Result<(), AppendError> {
        self.streams.ensure(stream).await
    }
}

/// Streams that say what was released of them, and that can be lost: the reader under way breaks, and there is no entry
/// any more when it looks.
struct Watched {
    streams: Arc<dyn Streams>,
    released: Mutex<Option<u64>>,
    lost: Arc<AtomicBool>,
}

impl Watched {
    fn of(rig: &Rig) -> Self {
        Self { streams: rig.streams.clone(), released: Mutex::default(), lost: Arc::default() }
    }

    fn released(&self) -> Option<u64> {
        *self.released.lock().unwrap()
    }

    fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }
}

/// A reader that breaks with the first entry behind the loss of its stream.
struct Breaking {
    reader: Box<dyn StreamReader>,
    lost: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl StreamReader for Breaking {
    async fn next(&mut self) -> Result<Vec<Entry>, ReadError> {
        let entries = self.reader.next().await?;
        if self.lost.load(Ordering::Relaxed) {
            return Err(ReadError::Unavailable { part: "stream", reason: "it was made anew".to_owned() });
        }
        Ok(entries)
    }
}

#[async_trait::async_trait]
impl Streams for Watched {
    async fn append(&self, stream: Stream, body: Bytes) -> Result<(), AppendError> {
        self.streams.append(stream, body).await
    }
    async fn read(&self, stream: Stream, from: From) -> Result<Box<dyn StreamReader>, ReadError> {
        Ok(Box::new(Breaking { reader: self.streams.read(stream, from).await?, lost: self.lost.clone() }))
    }
    async fn bounds(&self, stream: Stream) -> Result<Bounds, ReadError> {
        if self.lost.load(Ordering::Relaxed) {
            return Ok(Bounds { first: 0, next: 0 });
        }
        self.streams.bounds(stream).await
    }
    async fn release(&self, _: Stream, offset: u64) {
        *self.released.lock().unwrap() = Some(offset);
    }
    async fn ensure(&self, stream: Stream) -> Result<(), AppendError> {
        self.streams.ensure(stream).await
    }
}
