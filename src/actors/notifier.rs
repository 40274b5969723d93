//! Tells owners how their deliveries ended: by webhook and by e-mail, as their account asks, and whoever asked to be
//! told of one delivery.
//!
//! At least once: a notice leaves the queue only when it was delivered or given up, with an alert. The same notice
//! always has the same id, so that a receiver can drop what it has seen. A webhook's body is signed, so that the
//! receiver can tell it from anybody else's. Nothing waits for this: compensation only puts notices into a queue.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use lettre::message::Mailbox;
use lettre::{AsyncSmtpTransport, AsyncTransport, Message as Mail, Tokio1Executor};
use serde::Serialize;

use super::backoff::Backoff;
use super::consumer::{self, Arrived};
use super::lifeline::Lifeline;
use super::notice::Notice;
use crate::alerts::{AlertKind, Alerts};
use crate::config;
use crate::services::{Local, StepError};
use crate::stream::{Queue, Queues, Settle};

/// Who cannot be read cannot be told; the others are.
fn legible<T>(found: Result<Option<T>, StepError>) -> Result<Option<T>, StepError> {
    match found {
        Err(StepError::Refused(failure)) => {
            tracing::error!(?failure, "a receiver of notices cannot be read");
            Ok(None)
        }
        found => found,
    }
}

#[derive(Clone)]
pub struct Parts {
    pub queues: Arc<dyn Queues>,
    pub local: Local,
    pub settings: config::Notifications,
    pub alerts: Alerts,
}

#[derive(Message)]
#[rtype(result = "Observed")]
pub struct Observe;

#[derive(Clone, Copy, Debug, Default, Serialize, MessageResponse)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    pub sent: u64,
    pub given_up: u64,
}

pub struct Notifier {
    parts: Parts,
    sender: Option<Sender>,
    seen: Observed,
    lifeline: Lifeline,
}

/// What it takes to send. Cheap to clone.
#[derive(Clone)]
struct Sender {
    parts: Parts,
    http: awc::Client,
    mail: Option<AsyncSmtpTransport<Tokio1Executor>>,
}

/// Notices on their way at once.
const AT_ONCE: u16 = 64;

impl Notifier {
    #[must_use]
    pub fn new(parts: Parts, lifeline: Lifeline) -> Self {
        Self { parts, sender: None, seen: Observed::default(), lifeline }
    }
}

/// Where a notice goes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Receiver {
    Webhook(String),
    Mail(String),
}

impl Sender {
    fn new(parts: Parts) -> Self {
        // One is enough for the process: whoever comes first has set it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = awc::Client::builder().timeout(parts.settings.timeout).disable_redirects().finish();
        let url = &parts.settings.smtp_url;
        let mail = match url.is_empty() {
            true => None,
            false => AsyncSmtpTransport::<Tokio1Executor>::from_url(url)
                .inspect_err(|error| tracing::error!(%error, "notifications.smtp_url cannot be used; no mail is sent"))
                .ok()
                .map(|builder| builder.timeout(Some(parts.settings.timeout)).build()),
        };
        Self { parts, http, mail }
    }

    /// Sends a notice to all its receivers; true when nothing had to be given up.
    async fn send(&self, notice: &Notice) -> bool {
        let look = async || self.receivers(notice).await;
        let receivers = Backoff::ENGINE.until_ok("looking up whom to tell", look).await;
        let all = receivers.into_iter().map(|receiver| self.insist(receiver, notice));
        futures_util::future::join_all(all).await.into_iter().all(|sent| sent)
    }

    /// The owner's, and those of whoever asked to be told of this delivery.
    async fn receivers(&self, notice: &Notice) -> Result<Vec<Receiver>, StepError> {
        let mut found = Vec::new();
        if let Some(account) = legible(self.parts.local.account.get(&notice.owner_id).await)? {
            found.extend(account.webhook.map(Receiver::Webhook));
            found.extend(account.email.map(Receiver::Mail));
        }
        if let Some(delivery) = legible(self.parts.local.delivery.get(&notice.delivery_id).await)? {
            for wish in delivery.notify_me {
                found.extend(wish.webhook.map(Receiver::Webhook));
                found.extend(wish.email.map(Receiver::Mail));
            }
        }
        found.dedup();
        if self.mail.is_none() {
            found.retain(|receiver| matches!(receiver, Receiver::Webhook(_)));
        }
        Ok(found)
    }

    /// Tries until it is sent or the tries are used up.
    async fn insist(&self, receiver: Receiver, notice: &Notice) -> bool {
        let settings = &self.parts.settings;
        let backoff = Backoff { first: settings.backoff, longest: settings.max_backoff };
        for failures in 1..=settings.attempts {
            let sent = match &receiver {
                Receiver::Webhook(url) => self.post(url, notice).await,
                Receiver::Mail(address) => self.mail(address, notice).await,
            };
            match sent {
                Ok(()) => return true,
                Err(reason) if failures == settings.attempts => {
                    let id = notice.delivery_id.as_str();
                    self.parts.alerts.raise(AlertKind::NotificationFailed, id, reason);
                }
                Err(reason) => {
                    tracing::debug!(delivery = %notice.delivery_id, reason, "notice not sent; trying again");
                    tokio::time::sleep(backoff.pause(failures)).await;
                }
            }
        }
        false
    }

    async fn post(&self, url: &str, notice: &Notice) -> Result<(), String> {
        let body = serde_json::to_vec(notice).map_err(|e| e.to_string())?;
        let mut request = self
            .http
            .post(url)
            .insert_header(("content-type", "application/json"))
            .insert_header(("x-notification-id", notice.id()));
        if !self.parts.settings.webhook_secret.is_empty() {
            let signature = signature(&self.parts.settings.webhook_secret, &body);
            request = request.insert_header(("x-signature", signature));
        }
        let answer = request.send_body(body).await.map_err(|e| format!("webhook {url}: {e}"))?;
        let status = answer.status();
        if status.is_success() { Ok(()) } else { Err(format!("webhook {url} answered {status}")) }
    }

    async fn mail(&self, address: &str, notice: &Notice) -> Result<(), String> {
        let Some(transport) = &self.mail else { return Ok(()) };
        let mailbox = |text: &str| text.parse::<Mailbox>().map_err(|e| format!("mail address {text}: {e}"));
        let mut text =
            format!("Your delivery {} is {} since {}.\n", notice.delivery_id, notice.status.as_str(), notice.at);
        if let Some(reason) = &notice.reason {
            text.push_str(&format!("Reason: {reason}\n"));
        }
        let mail = Mail::builder()
            .from(mailbox(&self.parts.settings.mail_from)?)
            .to(mailbox(address)?)
            .subject(format!("Delivery {} is {}", notice.delivery_id, notice.status.as_str()))
            .message_id(Some(format!("<{}@drone-delivery>", notice.id())))
            .body(text)
            .map_err(|e| e.to_string())?;
        let sent = tokio::time::timeout(self.parts.settings.timeout + Duration::from_secs(1), transport.send(mail));
        match sent.await {
            Ok(answer) => answer.map(drop).map_err(|e| format!("mail to {address}: {e}")),
            Err(_) => Err(format!("mail to {address}: no answer in time")),
        }
    }
}

/// What a receiver compares: HMAC-SHA256 of the body under the shared secret, in hex.
fn signature(secret: &str, body: &[u8]) -> String {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    let hex: String = ring::hmac::sign(&key, body).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={hex}")
}

impl Actor for Notifier {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        self.sender = Some(Sender::new(self.parts.clone()));
        consumer::consume(self.parts.queues.clone(), Queue::Notifications, AT_ONCE, ctx);
    }
}

impl Handler<Arrived> for Notifier {
    type Result = ();
    fn handle(&mut self, Arrived { delivery, settler }: Arrived, ctx: &mut Context<Self>) {
        let Some(sender) = self.sender.clone() else { return };
        let work = async move {
            match serde_json::from_slice::<Notice>(&delivery.body) {
                Ok(notice) => (sender.send(&notice).await, Settle::Done),
                // Put back until the queue's limit sends it to the dead letters.
                Err(_) => (false, Settle::Again),
            }
        };
        ctx.spawn(work.into_actor(self).map(move |(sent, how), _, ctx| {
            consumer::settle(settler, vec![delivery.tag], how, ctx, move |me: &mut Self, _| {
                let counter = if sent { &mut me.seen.sent } else { &mut me.seen.given_up };
                *counter += 1;
            });
        }));
    }
}

impl Handler<Observe> for Notifier {
    type Result = Observed;
    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Observed {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_body_and_the_secret() {
        // RFC 4231, test case 2.
        let expected = "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(signature("Jefe", b"what do ya want for nothing?"), expected);
        assert_ne!(signature("Jefe", b"what do ya want for nothing!"), expected);
    }
}
