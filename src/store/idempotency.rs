//! Who may carry out a request that must happen once: the first to claim its key.
//!
//! A claim remembers the fingerprint of the body. It is *under way* for a while, so that a holder that died does not
//! block for long; then *done*, which is remembered for long. When the fate of the write is not known it is *open*:
//! the same body may try again at once, another body may not. A repeat of an open or forgotten claim may write a second
//! time; that has no second effect, because the delivery's id is the same.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{Expect, Outcome, State, StoreError, Txn};

/// How often a claim that changes under our eyes is looked at again.
const LOOKS: usize = 4;

/// What a claim found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The claim is ours: carry the request out.
    Ours,
    /// The same request was carried out before.
    Done,
    /// The same request is being carried out.
    UnderWay,
    /// The key belongs to another body.
    OtherBody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Phase {
    UnderWay,
    Open,
    Done,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    fingerprint: String,
    phase: Phase,
}

/// The claims of an installation.
#[derive(Clone)]
pub struct Claims {
    state: Arc<dyn State>,
    /// How long a fingerprint is remembered.
    keep: Duration,
}

impl Claims {
    #[must_use]
    pub fn new(state: Arc<dyn State>, keep: Duration) -> Self {
        Self { state, keep }
    }

    /// Claims a key for a body; the claim is under way for `hold` at most.
    ///
    /// # Errors
    /// When the store is away; the claim may then be ours without our knowing, until it ends by itself.
    pub async fn claim(&self, key: &str, fingerprint: &str, hold: Duration) -> Result<Claimed, StoreError> {
        let mut expected = Expect::Absent;
        for _ in 0..LOOKS {
            let txn = Txn::new().check(key, expected).put_for(key, record(fingerprint, Phase::UnderWay), hold);
            if self.commit(txn).await? == Outcome::Done {
                return Ok(Claimed::Ours);
            }
            let Some(bytes) = self.state.get(&[key.to_owned()]).await?.pop().flatten() else {
                expected = Expect::Absent;
                continue;
            };
            match serde_json::from_slice::<Record>(&bytes) {
                Ok(found) if found.fingerprint != fingerprint => return Ok(Claimed::OtherBody),
                Ok(Record { phase: Phase::Done, .. }) => return Ok(Claimed::Done),
                Ok(Record { phase: Phase::UnderWay, .. }) => return Ok(Claimed::UnderWay),
                Ok(Record { phase: Phase::Open, .. }) | Err(_) => expected = Expect::Is(bytes),
            }
        }
        Ok(Claimed::UnderWay)
    }

    /// The request was carried out.
    ///
    /// # Errors
    /// When the store is away; the claim then ends by itself.
    pub async fn done(&self, key: &str, fingerprint: &str) -> Result<(), StoreError> {
        self.settle(key, fingerprint, Phase::Done).await
    }

    /// Nobody knows whether the request was carried out.
    ///
    /// # Errors
    /// When the store is away; the claim then ends by itself.
    pub async fn leave_open(&self, key: &str, fingerprint: &str) -> Result<(), StoreError> {
        self.settle(key, fingerprint, Phase::Open).await
    }

    /// The request was certainly not carried out.
    ///
    /// # Errors
    /// When the store is away; the claim then ends by itself.
    pub async fn give_up(&self, key: &str, fingerprint: &str) -> Result<(), StoreError> {
        let txn = Txn::new().check(key, Expect::Is(record(fingerprint, Phase::UnderWay))).delete(key);
        self.commit(txn).await.map(drop)
    }

    /// Writes what became of our claim, also when it ended meanwhile and nobody else has the key.
    async fn settle(&self, key: &str, fingerprint: &str, phase: Phase) -> Result<(), StoreError> {
        let put = |expect| Txn::new().check(key, expect).put_for(key, record(fingerprint, phase), self.keep);
        let ours = Expect::Is(record(fingerprint, Phase::UnderWay));
        self.state.commit(vec![put(ours), put(Expect::Absent)]).await.map(drop)
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        Ok(self.state.commit(vec![txn]).await?.pop().unwrap_or(Outcome::Conflict))
    }
}

fn record(fingerprint: &str, phase: Phase) -> Bytes {
    serde_json::to_vec(&Record { fingerprint: fingerprint.to_owned(), phase }).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::embedded::EmbeddedState;

    const HOLD: Duration = Duration::from_secs(3600);

    fn claims() -> (tempfile::TempDir, Claims) {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(EmbeddedState::open(dir.path()).unwrap());
        (dir, Claims::new(state, HOLD))
    }

    #[tokio::test]
    async fn the_first_has_it_until_it_is_done() {
        let (_dir, claims) = claims();
        assert_eq!(claims.claim("k", "a", HOLD).await.unwrap(), Claimed::Ours);
        assert_eq!(claims.claim("k", "a", HOLD).await.unwrap(), Claimed::UnderWay);
        assert_eq!(claims.claim("k", "b", HOLD).await.unwrap(), Claimed::OtherBody);
        claims.done("k", "a").await.unwrap();
        assert_eq!(claims.claim("k", "a", HOLD).await.unwrap(), Claimed::Done);
        assert_eq!(claims.claim("k", "b", HOLD).await.unwrap(), Claimed::OtherBody);
    }

    #[tokio::test]
    async fn an_open_claim_is_for_the_same_body_only() {
        let (_dir, claims) = claims();
        claims.claim("k", "a", HOLD).await.unwrap();
        claims.leave_open("k", "a").await.unwrap();
        assert_eq!(claims.claim("k", "b", HOLD).await.unwrap(), Claimed::OtherBody);
        assert_eq!(claims.claim("k", "a", HOLD).await.unwrap(), Claimed::Ours);
        assert_eq!(claims.claim("k", "a", HOLD).await.unwrap(), Claimed::UnderWay);
    }

    #[tokio::test]
    async fn a_claim_given_up_is_free_for_anybody() {
        let (_dir, claims) = claims();
        claims.claim("k", "a", HOLD).await.unwrap();
        claims.give_up("k", "a").await.unwrap();
        assert_eq!(claims.claim("k", "b", HOLD).await.unwrap(), Claimed::Ours);
    }

    #[tokio::test]
    async fn a_dead_holder_does_not_block_for_long_and_cannot_take_over_again() {
        let (_dir, claims) = claims();
        claims.claim("k", "a", Duration::from_millis(1)).await.unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while claims.claim("k", "b", HOLD).await.unwrap() != Claimed::Ours {
            assert!(std::time::Instant::now() < deadline);
        }
        claims.done("k", "a").await.unwrap();
        assert_eq!(claims.claim("k", "b", HOLD).await.unwrap(), Claimed::UnderWay);
    }
}
