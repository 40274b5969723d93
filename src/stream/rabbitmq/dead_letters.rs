//! The dead-letter stream has two kinds of entries: lines that we wrote, and messages that the broker moved there
//! from a queue after too many deliveries. Readers see both as lines.

use lapin::BasicProperties;
use lapin::types::AMQPValue;

use super::layout::Layout;
use crate::domain::time::Timestamp;
use crate::stream::{DELIVERY_LIMIT, DeadLetter};

/// The body as it is, or, of a message that the broker moved, as the line that tells of it.
pub fn presented(layout: &Layout, properties: &BasicProperties, at: Timestamp, body: Vec<u8>) -> Vec<u8> {
    let Some(queue) = header(properties, "x-first-death-queue") else { return body };
    let why = header(properties, "x-first-death-reason").unwrap_or_default();
    let reason = if why == "delivery_limit" { format!("delivered more than {DELIVERY_LIMIT} times") } else { why };
    let source = layout.plain(&queue).to_owned();
    let letter = DeadLetter { at, source, reason, body: String::from_utf8_lossy(&body).into_owned() };
    serde_json::to_vec(&letter).map_or(body, |mut line| {
        line.push(b'\n');
        line
    })
}

fn header(properties: &BasicProperties, name: &str) -> Option<String> {
    match properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        _ => None,
    }
}
