//! The feed over a websocket: one message an event. What the peer says is of no interest as long as it is little; only
//! that it answers pings is.

use std::time::Duration;

use actix_ws::{CloseCode, CloseReason, Message, MessageStream, ProtocolError, Session};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use crate::actors::status_hub::{StatusFeed, Subscription, Told};

/// The largest frame and the most frames between two pings that a peer may send.
const MAX_FRAME: usize = 4 * 1024;
const MAX_FRAMES: usize = 256;
/// Pings that a peer may leave unanswered.
const UNANSWERED: u32 = 2;
/// How long the peer has to take the last word.
const CLOSING: Duration = Duration::from_secs(2);

pub async fn serve(feed: StatusFeed, subscription: Subscription, session: Session, messages: MessageStream) {
    let end = tokio::select! {
        end = tell(subscription, session.clone(), feed.ping() * UNANSWERED) => end,
        end = listen(messages.max_frame_size(MAX_FRAME), session.clone(), feed.ping()) => end,
        () = feed.closed() => Some(because(CloseCode::Away, "this instance is shutting down")),
    };
    if let Some(reason) = end {
        // A peer that does not take it is gone all the same.
        let _ = timeout(CLOSING, session.close(Some(reason))).await;
    }
}

fn because(code: CloseCode, description: &str) -> CloseReason {
    CloseReason { code, description: Some(description.to_owned()) }
}

/// Tells the peer everything until it lags, or takes nothing for too long.
async fn tell(mut subscription: Subscription, mut session: Session, patience: Duration) -> Option<CloseReason> {
    loop {
        let told = subscription.next().await;
        timeout(patience, session.text(told.json())).await.ok()?.ok()?;
        if matches!(told, Told::Lagged { .. }) {
            return Some(because(CloseCode::Again, "too slow; resume after the last event"));
        }
    }
}

/// Pings the peer and hears whether it is there. Comes back with what to tell it at the end, if anything.
async fn listen(mut messages: MessageStream, mut session: Session, ping: Duration) -> Option<CloseReason> {
    let mut beat = interval_at(Instant::now() + ping, ping);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut unanswered, mut frames) = (0, 0);
    loop {
        let heard = tokio::select! {
            heard = messages.recv() => heard?,
            _ = beat.tick() => {
                if unanswered == UNANSWERED {
                    return None;
                }
                unanswered += 1;
                frames = 0;
                // When there is no room for it the peer does not read, and will not answer this one either.
                let _ = timeout(ping, session.ping(b"")).await;
                continue;
            }
        };
        frames += 1;
        match heard {
            _ if frames > MAX_FRAMES => return Some(because(CloseCode::Policy, "too many messages")),
            Ok(Message::Pong(_)) => unanswered = 0,
            Ok(Message::Ping(text)) => timeout(ping, session.pong(&text)).await.ok()?.ok()?,
            Ok(Message::Close(reason)) => return Some(reason.unwrap_or_else(|| CloseCode::Normal.into())),
            Ok(_) => {}
            Err(ProtocolError::Overflow) => return Some(because(CloseCode::Size, "too large a message")),
            Err(_) => return Some(because(CloseCode::Protocol, "not a websocket frame")),
        }
    }
}
