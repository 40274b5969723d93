//! `watch`: follows the status feed and prints every event as a line of JSON. A connection that drops is opened again
//! after the last event that was printed, for ever, so nothing is missed or printed twice.

use std::io::{self, Write as _};
use std::time::Duration;

use awc::error::{SendRequestError, WsClientError};
use awc::ws::{Frame, Message};
use clap::Args;
use futures_util::{SinkExt as _, StreamExt as _};
use serde::Deserialize;
use tokio::time::timeout;

use crate::actors::backoff::Backoff;
use crate::domain::DeliveryId;
use crate::domain::draft::{NAME_RULE, is_name};
use crate::domain::status::EventId;

const CONNECT: Duration = Duration::from_secs(10);
/// A server pings far more often than this: one that says nothing is gone.
const SILENCE: Duration = Duration::from_secs(90);
const MAX_FRAME: usize = 1024 * 1024;
const RECONNECT: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

/// What to watch, and where.
#[derive(Clone, Debug, Args)]
pub struct Watch {
    /// Where the application is served
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// Only this delivery
    #[arg(long, value_name = "ID", value_parser = DeliveryId::parse)]
    pub delivery: Option<DeliveryId>,
    /// Only this owner's deliveries
    #[arg(long, value_name = "ID", value_parser = owner)]
    pub owner: Option<String>,
    /// Begin after this event
    #[arg(long, value_name = "ID")]
    pub since: Option<EventId>,
}

fn owner(text: &str) -> Result<String, &'static str> {
    if is_name(text) { Ok(text.to_owned()) } else { Err(NAME_RULE) }
}

/// Why watching ended.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("the server refused with {0}")]
    Refused(awc::http::StatusCode),
    #[error("this is no address: {0}")]
    Address(String),
    #[error("cannot print: {0}")]
    Output(#[from] io::Error),
}

/// What matters of a message to who wants to come back.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Place {
    id: Option<String>,
    resume_from: Option<String>,
}

/// Prints events until the output is closed.
///
/// # Errors
/// When the server says that it will never answer this, or the output fails.
pub async fn print(watch: Watch) -> Result<(), WatchError> {
    let ended = follow(watch, |line| {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}")?;
        out.flush()
    });
    match ended.await {
        // Whoever read it, such as `head`, has had enough.
        Err(WatchError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        ended => ended,
    }
}

/// Hands every event out, over every loss of the connection.
///
/// # Errors
/// When the server says that it will never answer this, or the output fails.
pub async fn follow(mut watch: Watch, mut tell: impl FnMut(&str) -> io::Result<()>) -> Result<(), WatchError> {
    let client = awc::Client::new();
    let mut failures = 0;
    loop {
        let before = watch.since;
        if let Some(reason) = connection(&client, &mut watch, &mut tell).await? {
            failures = if watch.since == before { failures + 1 } else { 1 };
            if failures == 1 {
                eprintln!("{reason}; trying again");
            }
        }
        tokio::time::sleep(RECONNECT.pause(failures.max(1))).await;
    }
}

/// Follows one connection to its end and says why it ended; not when the server asked to come back.
async fn connection(
    client: &awc::Client,
    watch: &mut Watch,
    tell: &mut impl FnMut(&str) -> io::Result<()>,
) -> Result<Option<String>, WatchError> {
    let request = client.ws(watch.address()).max_frame_size(MAX_FRAME);
    let (_, mut socket) = match timeout(CONNECT, request.connect()).await {
        Ok(Ok(connected)) => connected,
        Ok(Err(WsClientError::InvalidResponseStatus(status))) if status.is_client_error() => {
            return Err(WatchError::Refused(status));
        }
        Ok(Err(WsClientError::SendRequest(error @ (SendRequestError::Url(_) | SendRequestError::Http(_))))) => {
            return Err(WatchError::Address(error.to_string()));
        }
        Ok(Err(error)) => return Ok(Some(error.to_string())),
        Err(_) => return Ok(Some("the server does not answer".to_owned())),
    };
    loop {
        match timeout(SILENCE, socket.next()).await {
            Ok(Some(Ok(Frame::Text(text)))) => {
                let text = String::from_utf8_lossy(&text);
                tell(&text)?;
                watch.passed(&text);
            }
            Ok(Some(Ok(Frame::Ping(text)))) => {
                if !matches!(timeout(CONNECT, socket.send(Message::Pong(text))).await, Ok(Ok(()))) {
                    return Ok(Some("the connection was lost".to_owned()));
                }
            }
            Ok(Some(Ok(Frame::Close(_)))) => return Ok(None),
            Ok(Some(Ok(_))) => {}
            Ok(Some(Err(error))) => return Ok(Some(error.to_string())),
            Ok(None) => return Ok(Some("the connection was lost".to_owned())),
            Err(_) => return Ok(Some("the server says nothing any more".to_owned())),
        }
    }
}

impl Watch {
    fn address(&self) -> String {
        let given = [
            self.delivery.as_ref().map(|id| format!("deliveryId={id}")),
            self.owner.as_ref().map(|id| format!("ownerId={id}")),
            self.since.map(|id| format!("since={id}")),
        ];
        let query: Vec<String> = given.into_iter().flatten().collect();
        format!("{}/api/status?{}", self.url.trim_end_matches('/'), query.join("&"))
    }

    fn passed(&mut self, message: &str) {
        let Ok(place) = serde_json::from_str::<Place>(message) else { return };
        let id = place.id.or(place.resume_from).and_then(|id| id.parse().ok());
        self.since = id.or(self.since);
    }
}
