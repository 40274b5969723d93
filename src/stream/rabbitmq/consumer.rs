//! Taking from a queue. A consumer has a channel of its own: when both of its halves are dropped the channel closes,
//! and the broker delivers again what was not settled.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, Consumer};
use tokio::time::timeout;

use super::errors::{read_failed, read_failed_at};
use crate::stream::{Message, Messages, QueueConsumer, ReadError, Settle, Settler};

pub async fn open(
    connection: &Connection,
    name: ShortString,
    prefetch: u16,
    patience: Duration,
) -> Result<QueueConsumer, ReadError> {
    let failed = |error| read_failed_at(name.as_str(), error);
    let channel = connection.create_channel().await.map_err(failed)?;
    channel.basic_qos(prefetch.max(1), BasicQosOptions::default()).await.map_err(failed)?;
    let consumer = channel
        .basic_consume(name.clone(), "".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await
        .map_err(failed)?;
    Ok(QueueConsumer {
        messages: Box::new(RabbitMqMessages { name, channel: channel.clone(), consumer }),
        settler: Arc::new(RabbitMqSettler { channel, patience }),
    })
}

struct RabbitMqMessages {
    name: ShortString,
    channel: Channel,
    consumer: Consumer,
}

#[async_trait]
impl Messages for RabbitMqMessages {
    async fn next(&mut self) -> Result<Message, ReadError> {
        match self.consumer.next().await {
            Some(Ok(delivery)) => Ok(Message {
                tag: delivery.delivery_tag,
                redelivered: deliveries_before(&delivery.properties, delivery.redelivered),
                body: Bytes::from(delivery.data),
            }),
            Some(Err(error)) => Err(read_failed_at(self.name.as_str(), error)),
            // Called off by the broker, mostly because the queue is gone.
            None if self.channel.status().connected() => Err(ReadError::Missing(self.name.as_str().into())),
            None => Err(read_failed("connection closed")),
        }
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

struct RabbitMqSettler {
    channel: Channel,
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
