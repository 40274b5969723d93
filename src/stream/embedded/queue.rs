//! The queues of the embedded engine, kept in the state: a message is a member of the queue's set, its body a value, and
//! how often it was delivered another.
//!
//! A publish is confirmed without an fsync, and that is right: the queue lies in the same journal as the checkpoint
//! and the workflow records, and the checkpoint that passes a request is committed after the message that took it over.
//! Whatever a power cut leaves of the journal is a prefix, so if the message is gone, so is the checkpoint, and the
//! request is read and handed over again.
//!
//! A delivery is counted before the message is handed out, so a message that takes the process down with it is counted
//! too. One that was delivered more often than [`DELIVERY_LIMIT`] goes to the dead letters instead of out again; a crash
//! between the two writes can make it two dead letters, never none.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Notify;

use crate::domain::time;
use crate::store::{Scan, State, StoreError, Txn};
use crate::stream::{
    AppendError, DELIVERY_LIMIT, DeadLetter, Message, Messages, Queue, QueueConsumer, Queues, ReadError, Settle,
    Settler, Stream, Streams,
};

/// How many numbers of waiting messages are looked up at once.
const LOOK_AHEAD: usize = 64;

pub struct EmbeddedQueues(BTreeMap<Queue, Arc<Line>>);

/// One queue.
struct Line {
    name: &'static str,
    set: String,
    state: Arc<dyn State>,
    dead_letters: Arc<dyn Streams>,
    /// Held over publishing and over looking for messages: numbers become visible in their order, so none is passed by.
    order: tokio::sync::Mutex<Order>,
    /// Delivered once and given back: they go out before the others.
    returned: Mutex<BTreeSet<u64>>,
    /// Something can be delivered, or a consumer has room for it.
    changed: Notify,
}

#[derive(Default)]
struct Order {
    /// The number of the next message, once it was looked up.
    next: Option<u64>,
    /// The last number that was looked up for delivery.
    seen: Option<u64>,
    ready: VecDeque<u64>,
}

impl EmbeddedQueues {
    pub fn new(state: Arc<dyn State>, dead_letters: Arc<dyn Streams>) -> Self {
        let line = move |queue| (queue, Arc::new(Line::new(queue, state.clone(), dead_letters.clone())));
        Self(Queue::ALL.into_iter().map(line).collect())
    }

    fn line(&self, queue: Queue) -> Option<&Arc<Line>> {
        self.0.get(&queue)
    }
}

#[async_trait]
impl Queues for EmbeddedQueues {
    async fn publish(&self, queue: Queue, bodies: Vec<Bytes>) -> Result<(), AppendError> {
        let line = self.line(queue).ok_or_else(|| AppendError::Unroutable(name_of(queue).to_owned()))?;
        line.publish(bodies).await.map_err(|StoreError { part, reason }| AppendError::Unavailable { part, reason })
    }

    async fn consume(&self, queue: Queue, prefetch: u16) -> Result<QueueConsumer, ReadError> {
        let line = self.line(queue).ok_or_else(|| ReadError::Missing(name_of(queue).to_owned()))?;
        let consumer = Arc::new(Consumer {
            line: line.clone(),
            prefetch: usize::from(prefetch.max(1)),
            unsettled: Mutex::default(),
        });
        Ok(QueueConsumer { messages: Box::new(Incoming(consumer.clone())), settler: consumer })
    }

    async fn depth(&self, queue: Queue) -> Result<u64, ReadError> {
        let line = self.line(queue).ok_or_else(|| ReadError::Missing(name_of(queue).to_owned()))?;
        line.state.count(&line.set).await.map_err(unavailable)
    }
}

impl Line {
    fn new(queue: Queue, state: Arc<dyn State>, dead_letters: Arc<dyn Streams>) -> Self {
        let name = name_of(queue);
        Self {
            name,
            set: format!("queue/{name}"),
            state,
            dead_letters,
            order: tokio::sync::Mutex::default(),
            returned: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn body_key(&self, number: u64) -> String {
        format!("queue/{}/{number}/body", self.name)
    }

    fn deliveries_key(&self, number: u64) -> String {
        format!("queue/{}/{number}/deliveries", self.name)
    }

    fn returned(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn publish(&self, bodies: Vec<Bytes>) -> Result<(), StoreError> {
        let mut order = self.order.lock().await;
        let mut next = match order.next {
            Some(next) => next,
            // What was consumed since the start is gone from the set, but its numbers are passed by.
            None => self.last_number().await?.max(order.seen).map_or(0, |last| last + 1),
        };
        let mut txn = Txn::new();
        for body in bodies {
            txn = txn.put(self.body_key(next), body).add(&self.set, next.to_be_bytes().to_vec());
            next += 1;
        }
        // The numbers are spent even if the answer is an error: the messages may be in.
        order.next = Some(next);
        self.state.commit(vec![txn]).await?;
        drop(order);
        self.changed.notify_waiters();
        Ok(())
    }

    async fn last_number(&self) -> Result<Option<u64>, StoreError> {
        let scan = Scan { set: self.set.clone(), limit: 1, backwards: true, ..Scan::default() };
        Ok(self.state.scan(&scan).await?.first().and_then(number_of))
    }

    /// The number of a message that nobody has, if there is one.
    async fn take(&self) -> Result<Option<u64>, StoreError> {
        let mut order = self.order.lock().await;
        if let Some(number) = self.returned().pop_first() {
            return Ok(Some(number));
        }
        if order.ready.is_empty() {
            let after = order.seen.map(|seen| Bytes::copy_from_slice(&seen.to_be_bytes()));
            let scan = Scan { set: self.set.clone(), after, limit: LOOK_AHEAD, ..Scan::default() };
            order.ready = self.state.scan(&scan).await?.iter().filter_map(number_of).collect();
            order.seen = order.ready.back().copied().or(order.seen);
        }
        Ok(order.ready.pop_front())
    }

    /// Counts the delivery of a message; nothing comes back when it is not to be delivered (any more).
    async fn deliver(&self, number: u64) -> Result<Option<Message>, ReadError> {
        let keys = [self.body_key(number), self.deliveries_key(number)];
        let mut values = self.state.get(&keys).await.map_err(unavailable)?;
        let (deliveries, body) = (values.pop().flatten(), values.pop().flatten());
        let Some(body) = body else { return Ok(None) };
        let redelivered = deliveries.and_then(|count| std::str::from_utf8(&count).ok()?.parse().ok()).unwrap_or(0);
        if redelivered > DELIVERY_LIMIT {
            self.bury(number, &body, redelivered).await?;
            return Ok(None);
        }
        let [_, deliveries] = keys;
        let count = Txn::new().put(deliveries, (redelivered + 1).to_string());
        self.state.commit(vec![count]).await.map_err(unavailable)?;
        Ok(Some(Message { tag: number, body, redelivered }))
    }

    async fn bury(&self, number: u64, body: &[u8], deliveries: u32) -> Result<(), ReadError> {
        let letter = DeadLetter {
            at: time::now(),
            source: self.name.to_owned(),
            reason: format!("delivered {deliveries} times without being settled"),
            body: String::from_utf8_lossy(body).into_owned(),
        };
        let away = |reason: String| ReadError::Unavailable { part: "dead letters", reason };
        let line = serde_json::to_vec(&letter).map_err(|error| away(error.to_string()))?;
        let append = self.dead_letters.append(Stream::DeadLetters, line.into());
        append.await.map_err(|error| away(error.to_string()))?;
        tracing::warn!(queue = self.name, number, deliveries, "moved a message to the dead letters");
        self.remove(&[number]).await
    }

    async fn remove(&self, numbers: &[u64]) -> Result<(), ReadError> {
        let removal = |number: &u64| {
            let member = number.to_be_bytes().to_vec();
            Txn::new().remove(&self.set, member).delete(self.body_key(*number)).delete(self.deliveries_key(*number))
        };
        self.state.commit(numbers.iter().map(removal).collect()).await.map_err(unavailable)?;
        Ok(())
    }

    fn give_back(&self, numbers: impl IntoIterator<Item = u64>) {
        self.returned().extend(numbers);
        self.changed.notify_waiters();
    }
}

/// What the two halves of a consumer share. When both are dropped what is unsettled goes back.
struct Consumer {
    line: Arc<Line>,
    prefetch: usize,
    unsettled: Mutex<BTreeSet<u64>>,
}

impl Consumer {
    fn unsettled(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self) -> bool {
        self.unsettled().len() < self.prefetch
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.line.give_back(std::mem::take(&mut *self.unsettled()));
    }
}

struct Incoming(Arc<Consumer>);

#[async_trait]
impl Messages for Incoming {
    async fn next(&mut self) -> Result<Message, ReadError> {
        let line = &self.0.line;
        loop {
            let changed = line.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.0.has_room()
                && let Some(number) = line.take().await.map_err(unavailable)?
            {
                // From here on the message is the consumer's: if this future is dropped it goes back with the rest.
                self.0.unsettled().insert(number);
                if let Some(message) = line.deliver(number).await? {
                    return Ok(message);
                }
                self.0.unsettled().remove(&number);
            } else {
                changed.await;
            }
        }
    }
}

#[async_trait]
impl Settler for Consumer {
    async fn settle(&self, tags: &[u64], how: Settle) -> Result<(), ReadError> {
        let ours: Vec<u64> = tags.iter().copied().filter(|tag| self.unsettled().contains(tag)).collect();
        if how == Settle::Done {
            self.line.remove(&ours).await?;
        }
        self.unsettled().retain(|tag| !ours.contains(tag));
        if how == Settle::Again {
            self.line.give_back(ours);
        } else {
            self.line.changed.notify_waiters();
        }
        Ok(())
    }
}

fn name_of(queue: Queue) -> &'static str {
    match queue {
        Queue::FailedOperations => "failed-operations",
        Queue::Notifications => "notifications",
        Queue::Work => "work",
    }
}

fn number_of(member: &Bytes) -> Option<u64> {
    Some(u64::from_be_bytes(member.as_ref().try_into().ok()?))
}

fn unavailable(StoreError { part, reason }: StoreError) -> ReadError {
    ReadError::Unavailable { part, reason }
}
