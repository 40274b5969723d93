//! Setting aside what cannot be carried out: it goes to the dead letters with the reason, for an operator to look at and
//! to put back when the cause is gone. Whoever sets something aside counts it as finished only after that.

use bytes::Bytes;

use super::backoff::Backoff;
use crate::alerts::{AlertKind, Alerts};
use crate::stream::{DeadLetter, Stream, Streams, pieces};

/// Comes back when the letters are durable, however long that takes.
pub async fn park(streams: &dyn Streams, alerts: &Alerts, letters: &[DeadLetter]) {
    for letter in letters {
        alerts.raise(AlertKind::DeadLetter, &letter.source, &letter.reason);
    }
    for body in bodies(letters) {
        let append = async || streams.append(Stream::DeadLetters, body.clone()).await;
        Backoff::ENGINE.until_ok("parking a dead letter", append).await;
    }
}

/// Dead letters as the bodies of entries.
pub(super) fn bodies(letters: &[DeadLetter]) -> Vec<Bytes> {
    let mut body = Vec::new();
    for letter in letters {
        // Plain data to memory cannot fail.
        let _ = serde_json::to_writer(&mut body, letter);
        body.push(b'\n');
    }
    pieces(body.into())
}
