//! Publishing with certainty: a message counts as written when the broker has acknowledged it and returned nothing.
//!
//! The broker acknowledges a message that no queue takes as well; it returns it first (`mandatory`). The client hands
//! a returned message to whichever acknowledgement comes next on the channel. So a channel belongs to one call at a
//! time: whatever is returned by the time the call's last acknowledgement is in was the call's own. A channel on which
//! anything else went wrong is not used again.
//!
//! Each stream and queue has channels of its own, so one that is stuck does not hold up the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, Error};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::errors::append_failed;
use crate::cluster::link::Link;
use crate::domain::time::now_millis;
use crate::stream::AppendError;

/// The time of writing to the millisecond; the broker keeps the property of that name to the second.
pub const AT_HEADER: &str = "at";

/// Messages of one call that are under way at once.
const UNCONFIRMED: usize = 256;

const PERSISTENT: u8 = 2;

pub struct Publisher {
    name: ShortString,
    link: Arc<Link<Arc<Connection>>>,
    idle: Mutex<Vec<Channel>>,
    turns: Semaphore,
    deadline: Duration,
    published: AtomicBool,
}

/// Why a call failed.
enum Failed {
    /// Something on the channel or the connection.
    Channel(String),
    Returned,
    Refused,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Channel(error.to_string())
    }
}

impl Publisher {
    /// At most `channels` calls are under way at once; the others wait for their turn or the deadline.
    pub fn new(name: ShortString, link: Arc<Link<Arc<Connection>>>, channels: usize, deadline: Duration) -> Self {
        Self {
            name,
            link,
            idle: Mutex::default(),
            turns: Semaphore::new(channels),
            deadline,
            published: AtomicBool::new(false),
        }
    }

    /// Comes back when all are written.
    pub async fn publish(&self, bodies: &[Bytes]) -> Result<(), AppendError> {
        match timeout(self.deadline, self.publish_in_turn(bodies)).await {
            Ok(Ok(())) => {
                self.published.store(true, Ordering::Relaxed);
                Ok(())
            }
            Ok(Err(Failed::Channel(reason))) => Err(append_failed(reason)),
            Ok(Err(Failed::Refused)) => Err(append_failed("the broker refused the message")),
            Ok(Err(Failed::Returned)) => Err(AppendError::Unroutable(self.name.as_str().into())),
            Err(_) if self.is_blocked().await => Err(append_failed(BLOCKED)),
            Err(_) => Err(AppendError::TimedOut(self.deadline)),
        }
    }

    /// Whether anything was written from here.
    pub fn has_published(&self) -> bool {
        self.published.load(Ordering::Relaxed)
    }

    async fn publish_in_turn(&self, bodies: &[Bytes]) -> Result<(), Failed> {
        let _turn = self.turns.acquire().await.map_err(|error| Failed::Channel(error.to_string()))?;
        let channel = self.channel().await?;
        let mut result = Ok(());
        for chunk in bodies.chunks(UNCONFIRMED) {
            result = self.publish_chunk(&channel, chunk).await;
            if result.is_err() {
                break;
            }
        }
        // A future that is dropped never comes here, and neither does a channel of unknown state.
        if !matches!(result, Err(Failed::Channel(_))) {
            self.idle().push(channel);
        }
        result
    }

    async fn publish_chunk(&self, channel: &Channel, bodies: &[Bytes]) -> Result<(), Failed> {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let mut confirms = Vec::with_capacity(bodies.len());
        for body in bodies {
            confirms.push(channel.basic_publish("".into(), self.name.clone(), options, body, properties()).await?);
        }
        let mut result = Ok(());
        for confirm in confirms {
            match confirm.await? {
                Confirmation::Ack(None) => {}
                Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => result = Err(Failed::Returned),
                Confirmation::Nack(None) | Confirmation::NotRequested => result = Err(Failed::Refused),
            }
        }
        result
    }

    /// A channel of the connection that is up; those of an older one have noticed its end.
    async fn channel(&self) -> Result<Channel, Failed> {
        let connection = self.link.get(self.deadline).await.map_err(Failed::Channel)?.connection;
        if connection.status().blocked() {
            return Err(Failed::Channel(BLOCKED.into()));
        }
        while let Some(channel) = self.pop() {
            if channel.status().connected() {
                return Ok(channel);
            }
        }
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    fn pop(&self) -> Option<Channel> {
        self.idle().pop()
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn is_blocked(&self) -> bool {
        let leased = self.link.get(Duration::ZERO).await;
        leased.is_ok_and(|leased| leased.connection.status().blocked())
    }
}

pub const BLOCKED: &str = "the broker takes no messages now: it is short of memory or disk";

fn properties() -> BasicProperties {
    let now = now_millis();
    let mut headers = FieldTable::default();
    headers.insert(AT_HEADER.into(), AMQPValue::LongString(now.to_string().into()));
    BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_timestamp(u64::try_from(now / 1_000).unwrap_or_default())
        .with_headers(headers)
}
