//! Taking from a queue. A consumer has a channel of its own: when both of its halves are dropped the channel closes,
//! and the broker delivers again what was not settled.
//!
//! What was delivered here and not settled is counted as it comes in, because the broker's own count leaves it out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, Consumer};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::errors::{read_failed, read_failed_at};
use crate::stream::{Message, Messages, QueueConsumer, ReadError, Settle, Settler};

/// What a consumer is opened with.
pub struct Opening {
    pub name: ShortString,
    pub prefetch: u16,
    pub unsettled: Arc<AtomicU64>,
    pub patience: Duration,
}

impl Opening {
    pub async fn open(self, connection: &Connection, runtime: &Handle) -> Result<QueueConsumer, ReadError> {
        let failed = |error| read_failed_at(self.name.as_str(), error);
        let prefetch = self.prefetch.max(1);
        let channel = connection.create_channel().await.map_err(failed)?;
        channel.basic_qos(prefetch, BasicQosOptions::default()).await.map_err(failed)?;
        let consumer = channel
            .basic_consume(self.name.clone(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await
            .map_err(failed)?;
        let held = Arc::new(Held { all: self.unsettled, here: AtomicU64::new(0) });
        // The prefetch bounds what can be in it; the last place is for how it ended.
        let (sender, messages) = mpsc::channel(usize::from(prefetch) + 1);
        let receiving = Receiving { name: self.name, channel: channel.clone(), consumer, held: held.clone() };
        let task = runtime.spawn(receiving.run(sender)).abort_handle();
        let messages = Box::new(RabbitMqMessages { messages, task });
        let settler = Arc::new(RabbitMqSettler { channel, held, patience: self.patience });
        Ok(QueueConsumer { messages, settler })
    }
}

/// How many messages a consumer holds, as a part of what all consumers of the queue hold.
struct Held {
    all: Arc<AtomicU64>,
    here: AtomicU64,
}

impl Held {
    fn took_one(&self) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.here.fetch_add(1, Ordering::Relaxed);
    }

    fn settled_one(&self) {
        // A tag that is settled twice is the broker's to refuse, and must not upset the count.
        if self.here.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |here| here.checked_sub(1)).is_ok() {
            self.all.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.here.get_mut(), Ordering::Relaxed);
    }
}

struct Receiving {
    name: ShortString,
    channel: Channel,
    consumer: Consumer,
    held: Arc<Held>,
}

impl Receiving {
    async fn run(mut self, sender: mpsc::Sender<Result<Message, ReadError>>) {
        loop {
            let received = match self.consumer.next().await {
                Some(Ok(delivery)) => {
                    self.held.took_one();
                    Ok(message(delivery))
                }
                Some(Err(error)) => Err(read_failed_at(self.name.as_str(), error)),
                // Called off by the broker, mostly because the queue is gone.
                None if self.channel.status().connected() => Err(ReadError::Missing(self.name.as_str().into())),
                None => Err(read_failed("connection closed")),
            };
            let ended = received.is_err();
            if sender.send(received).await.is_err() || ended {
                return;
            }
        }
    }
}

fn message(delivery: Delivery) -> Message {
    Message {
        tag: delivery.delivery_tag,
        redelivered: deliveries_before(&delivery.properties, delivery.redelivered),
        body: Bytes::from(delivery.data),
    }
}

/// What a quorum queue counted, or at least that there was one.
fn deliveries_before(properties: &BasicProperties, redelivered: bool) -> u32 {
    let headers = properties.headers().as_ref();
    match headers.and_then(|headers| headers.inner().get("x-delivery-count")) {
        Some(AMQPValue::LongLongInt(count)) => u32::try_from(*count).unwrap_or_default(),
        _ => u32::from(redelivered),
    }
}

struct RabbitMqMessages {
    messages: mpsc::Receiver<Result<Message, ReadError>>,
    task: AbortHandle,
}

#[async_trait]
impl Messages for RabbitMqMessages {
    async fn next(&mut self) -> Result<Message, ReadError> {
        self.messages.recv().await.unwrap_or_else(|| Err(read_failed("the consumer has ended")))
    }
}

impl Drop for RabbitMqMessages {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct RabbitMqSettler {
    channel: Channel,
    held: Arc<Held>,
    patience: Duration,
}

impl RabbitMqSettler {
    async fn settle_all(&self, tags: &[u64], how: Settle) -> lapin::Result<()> {
        for tag in tags {
            match how {
                Settle::Done => self.channel.basic_ack(*tag, BasicAckOptions::default()).await?,
                Settle::Again => {
                    let back = BasicNackOptions { multiple: false, requeue: true };
                    self.channel.basic_nack(*tag, back).await?;
                }
            }
            self.held.settled_one();
        }
        Ok(())
    }
}

#[async_trait]
impl Settler for RabbitMqSettler {
    async fn settle(&self, tags: &[u64], how: Settle) -> Result<(), ReadError> {
        match timeout(self.patience, self.settle_all(tags, how)).await {
            Ok(result) => result.map_err(read_failed),
            Err(_) => Err(read_failed(format!("not settled within {:?}", self.patience))),
        }
    }
}
