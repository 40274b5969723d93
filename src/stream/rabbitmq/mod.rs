//! Streams and queues in RabbitMQ: one stream for each partition, one for the status events and one for the dead
//! letters; quorum queues whose messages go to the dead letters after too many deliveries.
//!
//! Publishing and consuming have a connection each: a broker that is short of memory stops reading from those that
//! publish, and must not stop reading the settlements with it. Connections are made again for ever; what was under
//! way on a lost one fails, and whoever called may do it again with the same ids.

mod connection;
mod consumer;
mod dead_letters;
mod errors;
mod layout;
mod publisher;
mod reader;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lapin::Connection;
use tokio::time::{sleep, timeout};
use tracing::warn;

use self::connection::RabbitMqConnector;
use self::errors::{append_failed, read_failed};
use self::layout::{Layout, PrepareError, message_count};
use self::publisher::Publisher;
use self::reader::RabbitMqReader;
use super::{AppendError, Bounds, From, Queue, QueueConsumer, Queues, ReadError, Stream, StreamReader, Streams};
use crate::cluster::OpenError;
use crate::cluster::link::Link;
use crate::cluster::runtime::EngineRuntime;
use crate::config::RabbitMq as Settings;

/// Calls under way at once on one stream or queue, as far as the broker's limit of channels allows.
const CALLS_AT_ONCE: usize = 16;
const CHANNELS: usize = 1_024;

const PREPARE_AGAIN: Duration = Duration::from_secs(1);

pub struct RabbitMq {
    layout: Arc<Layout>,
    publishing: Arc<Link<Arc<Connection>>>,
    consuming: Arc<Link<Arc<Connection>>>,
    streams: HashMap<Stream, Arc<Publisher>>,
    queues: HashMap<Queue, Arc<Publisher>>,
    /// What this process has taken from each queue and not settled: the broker counts only what waits.
    unsettled: HashMap<Queue, Arc<AtomicU64>>,
    patience: Duration,
    runtime: EngineRuntime,
}

impl RabbitMq {
    /// Starts to connect. An error is one of the settings.
    pub fn open(
        settings: &Settings,
        prefix: &str,
        partitions: u32,
        runtime: &EngineRuntime,
    ) -> Result<Self, OpenError> {
        let wrong = |setting, reason: String| OpenError::Setting { setting, reason };
        let layout = Layout::new(prefix, partitions, settings).ok_or_else(|| wrong("prefix", "too long".into()))?;
        let connector = RabbitMqConnector::new(settings).map_err(|reason| wrong("rabbitmq", reason))?;
        let link =
            |name: &str| Link::start(errors::PART, runtime.handle(), connector.named(format!("{prefix} {name}")));
        let (publishing, consuming) = (link("publishing"), link("consuming"));
        let at_once = (CHANNELS / (layout.streams().count() + Queue::ALL.len())).clamp(1, CALLS_AT_ONCE);
        let publisher = |name| Arc::new(Publisher::new(name, publishing.clone(), at_once, settings.publish_timeout));
        Ok(Self {
            streams: layout.streams().map(|stream| (stream, publisher(layout.stream(stream)))).collect(),
            queues: Queue::ALL.into_iter().map(|queue| (queue, publisher(layout.queue(queue)))).collect(),
            unsettled: Queue::ALL.into_iter().map(|queue| (queue, Arc::default())).collect(),
            layout: Arc::new(layout),
            publishing,
            consuming,
            patience: settings.publish_timeout,
            runtime: runtime.clone(),
        })
    }

    /// Declares all streams and queues, waiting for the broker as long as it takes. A broker that is laid out
    /// otherwise is an error. Says whether it was laid out just now.
    pub async fn prepare(&self) -> Result<bool, OpenError> {
        loop {
            self.publishing.wait_until_up().await;
            self.consuming.wait_until_up().await;
            if let Ok(leased) = self.consuming.get(self.patience).await {
                match self.layout.prepare(&leased.connection).await {
                    Ok(fresh) => return Ok(fresh),
                    Err(PrepareError::OtherCount { found }) => return Err(OpenError::OtherPartitionCount { found }),
                    Err(PrepareError::Broker(error)) => warn!(part = errors::PART, %error, "cannot declare yet"),
                }
            }
            sleep(PREPARE_AGAIN).await;
        }
    }

    /// Whether the broker is there and takes messages; the error says why not.
    pub async fn health(&self) -> Result<(), String> {
        self.consuming.health()?;
        let leased = self.publishing.get(Duration::ZERO).await?;
        if leased.connection.status().blocked() { Err(publisher::BLOCKED.into()) } else { Ok(()) }
    }

    async fn consuming(&self) -> Result<Arc<Connection>, ReadError> {
        self.consuming.get(self.patience).await.map(|leased| leased.connection).map_err(read_failed)
    }

    /// Publishes on the engine's runtime, so that it is done even when nobody waits for it any more.
    async fn publish_with(&self, publisher: &Arc<Publisher>, bodies: Vec<Bytes>) -> Result<(), AppendError> {
        let publisher = publisher.clone();
        let publishing = self.runtime.handle().spawn(async move { publisher.publish(&bodies).await });
        publishing.await.unwrap_or_else(|error| Err(append_failed(error)))
    }

    /// Bounds a wait for the broker.
    async fn in_time<T>(&self, call: impl Future<Output = Result<T, ReadError>>) -> Result<T, ReadError> {
        let late = |_| Err(read_failed(format!("no answer within {:?}", self.patience)));
        timeout(self.patience, call).await.unwrap_or_else(late)
    }
}

#[async_trait]
impl Streams for RabbitMq {
    async fn append(&self, stream: Stream, body: Bytes) -> Result<(), AppendError> {
        match self.streams.get(&stream) {
            Some(publisher) => self.publish_with(publisher, vec![body]).await,
            None => Err(AppendError::Unroutable(self.layout.stream(stream).as_str().into())),
        }
    }

    async fn read(&self, stream: Stream, from: From) -> Result<Box<dyn StreamReader>, ReadError> {
        let connection = self.consuming().await?;
        let name = self.layout.stream(stream);
        let reader = self.in_time(RabbitMqReader::open(&connection, self.layout.clone(), name, from)).await?;
        Ok(Box::new(reader))
    }

    async fn bounds(&self, stream: Stream) -> Result<Bounds, ReadError> {
        let connection = self.consuming().await?;
        let name = self.layout.stream(stream);
        let used = self.streams.get(&stream).is_some_and(|publisher| publisher.has_published());
        let quiet = if used { self.patience / 2 } else { reader::QUIET.min(self.patience) };
        let bounds = self.in_time(reader::bounds(&connection, &name, quiet)).await?;
        Ok(bounds.unwrap_or(Bounds { first: 0, next: 0 }))
    }

    /// The broker drops by its own retention.
    async fn release(&self, _: Stream, _: u64) {}

    async fn ensure(&self, stream: Stream) -> Result<(), AppendError> {
        let leased = self.consuming.get(self.patience).await.map_err(append_failed)?;
        match timeout(self.patience, self.layout.declare_stream(&leased.connection, stream)).await {
            Ok(result) => result.map_err(append_failed),
            Err(_) => Err(AppendError::TimedOut(self.patience)),
        }
    }
}

#[async_trait]
impl Queues for RabbitMq {
    async fn publish(&self, queue: Queue, bodies: Vec<Bytes>) -> Result<(), AppendError> {
        match self.queues.get(&queue) {
            Some(publisher) => self.publish_with(publisher, bodies).await,
            None => Err(AppendError::Unroutable(self.layout.queue(queue).as_str().into())),
        }
    }

    async fn consume(&self, queue: Queue, prefetch: u16) -> Result<QueueConsumer, ReadError> {
        let connection = self.consuming().await?;
        let unsettled = self.unsettled.get(&queue).cloned().unwrap_or_default();
        let opening =
            consumer::Opening { name: self.layout.queue(queue), prefetch, unsettled, patience: self.patience };
        self.in_time(opening.open(&connection, self.runtime.handle())).await
    }

    async fn depth(&self, queue: Queue) -> Result<u64, ReadError> {
        let connection = self.consuming().await?;
        let name = self.layout.queue(queue);
        let count = async {
            let channel = connection.create_channel().await.map_err(read_failed)?;
            message_count(&channel, name.clone()).await.map_err(read_failed)
        };
        let waiting = self.in_time(count).await?.ok_or_else(|| ReadError::Missing(name.as_str().into()))?;
        let unsettled = self.unsettled.get(&queue).map_or(0, |unsettled| unsettled.load(Ordering::Relaxed));
        Ok(waiting + unsettled)
    }
}
