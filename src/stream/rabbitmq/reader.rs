//! Reading a stream. The broker sends as many entries as the prefetch says; what is taken is acknowledged when it is half
//! of that or nothing more comes, which is only credit for more: where a reader is, it knows itself. So what is buffered
//! is bounded, and nothing more is sent to a reader that does not read.
//!
//! A reader ends with its connection. Whoever reads opens another at the offset it wants.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, Consumer};
use tokio::time::timeout;

use super::dead_letters;
use super::errors::{read_failed, read_failed_at};
use super::layout::Layout;
use super::publisher::AT_HEADER;
use crate::domain::time::{Timestamp, from_millis};
use crate::stream::{Bounds, Entry, From, ReadError, StreamReader};

/// Entries that the broker sends ahead.
const PREFETCH: u16 = 64;
/// An acknowledgement costs the broker nearly what an entry costs, so there is one for so many.
const ACKNOWLEDGED_AT_ONCE: u16 = PREFETCH / 2;

/// A stream that has sent nothing for so long is empty.
pub const QUIET: Duration = Duration::from_secs(1);

/// What is less is acknowledged when nothing comes for this long: a broker closes a channel that holds something for half
/// an hour.
const ACKNOWLEDGED_AFTER: Duration = Duration::from_secs(60);

const OFFSET_HEADER: &str = "x-stream-offset";

pub struct RabbitMqReader {
    name: ShortString,
    layout: Arc<Layout>,
    channel: Channel,
    consumer: Consumer,
    /// Entries before this were not asked for; the broker sends whole chunks.
    wanted: u64,
    taken: Taken,
}

/// What was received and not handed out: a call that is dropped half-way loses nothing.
#[derive(Default)]
struct Taken {
    entries: VecDeque<Entry>,
    /// How many were not acknowledged, and the last of them.
    unacknowledged: (u16, u64),
}

impl RabbitMqReader {
    pub async fn open(
        connection: &Connection,
        layout: Arc<Layout>,
        name: ShortString,
        from: From,
    ) -> Result<Self, ReadError> {
        let from = not_past_the_end(connection, &name, from).await?;
        let (channel, consumer) = consume(connection, &name, start(from), PREFETCH).await?;
        let wanted = if let From::Offset(offset) = from { offset } else { 0 };
        Ok(Self { name, layout, channel, consumer, wanted, taken: Taken::default() })
    }

    fn take(&mut self, delivery: Delivery) -> Result<(), ReadError> {
        let (count, _) = self.taken.unacknowledged;
        self.taken.unacknowledged = (count + 1, delivery.delivery_tag);
        let offset = offset_of(&delivery.properties)
            .ok_or_else(|| ReadError::Corrupt(format!("an entry of {} without an offset", self.name)))?;
        if offset >= self.wanted {
            let at = written_at(&delivery.properties);
            let body = dead_letters::presented(&self.layout, &delivery.properties, at, delivery.data);
            self.taken.entries.push_back(Entry { offset, at, body: Bytes::from(body) });
        }
        Ok(())
    }

    /// Acknowledges what was taken, if it is so much at least.
    async fn acknowledge(&mut self, least: u16) -> Result<(), ReadError> {
        let (count, tag) = self.taken.unacknowledged;
        if count >= least {
            self.channel.basic_ack(tag, BasicAckOptions { multiple: true }).await.map_err(read_failed)?;
            self.taken.unacknowledged = (0, tag);
        }
        Ok(())
    }

    async fn receive(&mut self) -> Result<(), ReadError> {
        let mut next = Some(self.consumer.next().await);
        while let Some(received) = next {
            match received {
                Some(Ok(delivery)) => self.take(delivery)?,
                Some(Err(error)) => return Err(read_failed_at(self.name.as_str(), error)),
                // Called off by the broker, mostly because the stream is gone.
                None if self.channel.status().connected() => {
                    return Err(ReadError::Missing(self.name.as_str().into()));
                }
                None => return Err(read_failed("connection closed")),
            }
            let room = self.taken.entries.len() < usize::from(PREFETCH);
            next = if room { self.consumer.next().now_or_never() } else { None };
        }
        Ok(())
    }
}

#[async_trait]
impl StreamReader for RabbitMqReader {
    async fn next(&mut self) -> Result<Vec<Entry>, ReadError> {
        loop {
            self.acknowledge(ACKNOWLEDGED_AT_ONCE).await?;
            if !self.taken.entries.is_empty() {
                return Ok(self.taken.entries.drain(..).collect());
            }
            match timeout(ACKNOWLEDGED_AFTER, self.receive()).await {
                Ok(received) => received?,
                Err(_) => self.acknowledge(1).await?,
            }
        }
    }
}

/// Where a stream begins and ends, by reading its first entry and its last chunk: the protocol has no call for it.
/// Nothing, when it is empty.
pub async fn bounds(connection: &Connection, name: &ShortString, quiet: Duration) -> Result<Option<Bounds>, ReadError> {
    let Some(last) = last_offset(connection, name, quiet).await? else { return Ok(None) };
    let (_channel, mut consumer) = consume(connection, name, text("first"), 1).await?;
    let first = place(consumer.next().await)?;
    Ok(Some(Bounds { first, next: last + 1 }))
}

/// All of a chunk is sent at once. A channel does one thing after the other, so when a call that was made after the
/// chunk's first entry came is answered, its last has come as well. An empty stream sends nothing: it is taken for
/// empty when nothing came in a `quiet` time, and the broker still answers behind that.
async fn last_offset(connection: &Connection, name: &ShortString, quiet: Duration) -> Result<Option<u64>, ReadError> {
    let everything = u16::MAX;
    let (channel, mut consumer) = consume(connection, name, text("last"), everything).await?;
    let first = timeout(quiet, consumer.next()).await.ok();
    channel.basic_qos(everything, BasicQosOptions { global: false }).await.map_err(read_failed)?;
    let mut offset = first.map(place).transpose()?;
    while let Some(delivery) = consumer.next().now_or_never() {
        offset = Some(place(delivery)?);
    }
    Ok(offset)
}

/// An offset behind the end means that the stream is not the one it was taken from. The broker would keep back
/// everything below it; whoever asks is to see what comes instead.
async fn not_past_the_end(connection: &Connection, name: &ShortString, from: From) -> Result<From, ReadError> {
    let From::Offset(wanted @ 1..) = from else { return Ok(from) };
    let next = last_offset(connection, name, QUIET).await?.map_or(0, |last| last + 1);
    Ok(From::Offset(wanted.min(next)))
}

fn place(delivery: Option<lapin::Result<Delivery>>) -> Result<u64, ReadError> {
    let delivery = delivery.ok_or_else(|| read_failed("connection closed"))?.map_err(read_failed)?;
    offset_of(&delivery.properties).ok_or_else(|| ReadError::Corrupt("an entry without an offset".into()))
}

async fn consume(
    connection: &Connection,
    name: &ShortString,
    start: AMQPValue,
    prefetch: u16,
) -> Result<(Channel, Consumer), ReadError> {
    let failed = |error| read_failed_at(name.as_str(), error);
    let channel = connection.create_channel().await.map_err(failed)?;
    let limit = BasicQosOptions { global: false };
    channel.basic_qos(prefetch, limit).await.map_err(failed)?;
    let mut arguments = FieldTable::default();
    arguments.insert(OFFSET_HEADER.into(), start);
    let consumer = channel
        .basic_consume(name.clone(), "".into(), BasicConsumeOptions::default(), arguments)
        .await
        .map_err(failed)?;
    // The broker confirms a consumer before it has found its place. A channel does one thing after the other, so
    // when this is answered the place is found, and what is appended from now on is seen.
    channel.basic_qos(prefetch, limit).await.map_err(failed)?;
    Ok((channel, consumer))
}

fn start(from: From) -> AMQPValue {
    match from {
        From::First => text("first"),
        From::Offset(offset) => AMQPValue::LongLongInt(i64::try_from(offset).unwrap_or(i64::MAX)),
        From::New => text("next"),
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn offset_of(properties: &BasicProperties) -> Option<u64> {
    match properties.headers().as_ref()?.inner().get(OFFSET_HEADER)? {
        AMQPValue::LongLongInt(offset) => u64::try_from(*offset).ok(),
        _ => None,
    }
}

fn written_at(properties: &BasicProperties) -> Timestamp {
    let header = properties.headers().as_ref().and_then(|headers| headers.inner().get(AT_HEADER));
    let millis = match header {
        Some(AMQPValue::LongString(text)) => text.to_string().parse().ok(),
        _ => None,
    };
    let seconds = || properties.timestamp().and_then(|seconds| i64::try_from(seconds).ok());
    from_millis(millis.or_else(|| seconds().map(|seconds| seconds.saturating_mul(1_000))).unwrap_or_default())
}
