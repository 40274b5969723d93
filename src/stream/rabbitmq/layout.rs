//! What is on the broker: its names, how each is declared, and the partition count it was laid out with.
//!
//! A stream or queue that is there already keeps the retention it was made with: the broker does not change it by
//! declaring again, only by a policy. The partition count, though, must be the one the broker was laid out with, or
//! an operation would go to another stream than the one before it. A marker queue carries it as one of the arguments
//! that the broker compares, so two processes that start at once cannot disagree either.

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, Error};
use tracing::warn;

use super::errors::{is_mismatch, is_missing};
use crate::config::RabbitMq as Settings;
use crate::stream::{DELIVERY_LIMIT, Queue, Stream};

/// Longer names do not fit into the protocol with what is put behind them.
const LONGEST_PREFIX: usize = 200;

pub struct Layout {
    prefix: String,
    partitions: u32,
    stream_arguments: FieldTable,
    queue_arguments: FieldTable,
}

/// Why the broker cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("laid out with another partition count")]
    OtherCount { found: Option<u32> },
    #[error(transparent)]
    Broker(#[from] Error),
}

impl Layout {
    pub fn new(prefix: &str, partitions: u32, settings: &Settings) -> Option<Self> {
        (prefix.len() <= LONGEST_PREFIX).then(|| {
            let mut layout = Self {
                prefix: prefix.into(),
                partitions,
                stream_arguments: stream_arguments(settings),
                queue_arguments: FieldTable::default(),
            };
            layout.queue_arguments = queue_arguments(layout.stream(Stream::DeadLetters).as_str());
            layout
        })
    }

    pub fn stream(&self, stream: Stream) -> ShortString {
        match stream {
            Stream::Requests(partition) => self.name(&format!("requests-{partition}")),
            Stream::Status => self.name("status"),
            Stream::DeadLetters => self.name("dead-letters"),
        }
    }

    pub fn queue(&self, queue: Queue) -> ShortString {
        self.name(match queue {
            Queue::FailedOperations => "failed-operations",
            Queue::Notifications => "notifications",
            Queue::Work => "work",
        })
    }

    fn name(&self, name: &str) -> ShortString {
        format!("{}.{name}", self.prefix).into()
    }

    /// A name without the installation's prefix.
    pub fn plain<'a>(&self, name: &'a str) -> &'a str {
        name.strip_prefix(&self.prefix).and_then(|name| name.strip_prefix('.')).unwrap_or(name)
    }

    pub fn streams(&self) -> impl Iterator<Item = Stream> {
        (0..self.partitions).map(Stream::Requests).chain([Stream::Status, Stream::DeadLetters])
    }

    /// Declares everything, the marker first. Says whether the broker was laid out just now.
    pub async fn prepare(&self, connection: &Connection) -> Result<bool, PrepareError> {
        let looking = connection.create_channel().await?;
        let fresh = message_count(&looking, self.name("layout")).await?.is_none();
        self.declare_marker(connection).await?;
        for stream in self.streams() {
            self.declare_stream(connection, stream).await?;
        }
        for queue in Queue::ALL {
            self.declare(connection, self.queue(queue), &self.queue_arguments).await?;
        }
        Ok(fresh)
    }

    pub async fn declare_stream(&self, connection: &Connection, stream: Stream) -> Result<(), Error> {
        self.declare(connection, self.stream(stream), &self.stream_arguments).await
    }

    async fn declare_marker(&self, connection: &Connection) -> Result<(), PrepareError> {
        let channel = connection.create_channel().await?;
        // A queue that is never written to, so its greatest length may be any number.
        let arguments = table([("x-max-length", AMQPValue::LongLongInt(self.partitions.into()))]);
        match declare(&channel, self.name("layout"), false, arguments).await {
            Ok(_) => Ok(()),
            Err(error) if is_mismatch(&error) => {
                Err(PrepareError::OtherCount { found: current_value(&error.to_string()) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Any error closes the channel, so there is one for each try.
    async fn declare(&self, connection: &Connection, name: ShortString, arguments: &FieldTable) -> Result<(), Error> {
        let channel = connection.create_channel().await?;
        match declare(&channel, name.clone(), false, arguments.clone()).await {
            Err(error) if is_mismatch(&error) => {
                warn!(name = name.as_str(), reason = %error, "kept as it was made; a policy can change it");
                let channel = connection.create_channel().await?;
                declare(&channel, name, true, FieldTable::default()).await.map(|_| ())
            }
            result => result.map(|_| ()),
        }
    }
}

/// How many messages a queue or stream has, or nothing when it is not there.
pub async fn message_count(channel: &Channel, name: ShortString) -> Result<Option<u64>, Error> {
    match declare(channel, name, true, FieldTable::default()).await {
        Ok(queue) => Ok(Some(queue.message_count().into())),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn declare(
    channel: &Channel,
    name: ShortString,
    passive: bool,
    arguments: FieldTable,
) -> Result<lapin::Queue, Error> {
    let options = QueueDeclareOptions { passive, durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name, options, arguments).await
}

fn stream_arguments(settings: &Settings) -> FieldTable {
    let mut arguments = table([
        ("x-queue-type", text("stream")),
        ("x-max-length-bytes", number(settings.retention_bytes)),
        ("x-stream-max-segment-size-bytes", number(settings.segment_bytes)),
        // In a cluster the streams' leaders are spread over the nodes.
        ("x-queue-leader-locator", text("balanced")),
    ]);
    if settings.retention_hours > 0 {
        arguments.insert("x-max-age".into(), text(&format!("{}h", settings.retention_hours)));
    }
    arguments
}

fn queue_arguments(dead_letters: &str) -> FieldTable {
    table([
        ("x-queue-type", text("quorum")),
        ("x-delivery-limit", AMQPValue::LongLongInt(DELIVERY_LIMIT.into())),
        // Straight into the stream: the exchange without a name routes by the queue's name.
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(dead_letters)),
        // A dead letter leaves the queue only when the stream has confirmed it; the broker asks for the overflow
        // rule with it.
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
        ("x-queue-leader-locator", text("balanced")),
    ])
}

fn table<const N: usize>(entries: [(&'static str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (key, value) in entries {
        table.insert(key.into(), value);
    }
    table
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn number(value: u64) -> AMQPValue {
    AMQPValue::LongLongInt(i64::try_from(value).unwrap_or(i64::MAX))
}

/// The count in `… received the value '4' of type 'signedint' but current is the value '8' of type 'signedint'`.
fn current_value(message: &str) -> Option<u32> {
    let (_, current) = message.split_once("current is")?;
    let digits = current.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_the_brokers_words() {
        let said = "inequivalent arg 'x-max-length' for queue 'd.layout' in vhost '/': received the value '4' of type \
                    'long' but current is the value '8' of type 'long'";
        assert_eq!(current_value(said), Some(8));
        assert_eq!(current_value("received '4' but current is '16'"), Some(16));
        assert_eq!(current_value("no idea"), None);
    }
}
