//! Leases with epochs, and checkpoints that only the holder of the newest epoch may write (G4).
//!
//! A lease is a key that ends by itself; its epoch is a key that does not. Taking the lease and raising the epoch is
//! one transaction, and so is saving a checkpoint under the check that the epoch is still one's own: an owner that
//! was frozen past its lease finds its epoch gone and is refused, however late it wakes up.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Expect, Outcome, State, StoreError, Txn};

/// One reader of one partition: what is leased and checkpointed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub struct Share {
    pub partition: u32,
    /// Which of the partition's readers; 0 when there is one.
    pub reader: u32,
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.partition, self.reader)
    }
}

/// A share that is held: proof towards the store that the holder may write its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub share: Share,
    pub epoch: u64,
}

/// Who owns a share, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    pub owner: Option<String>,
    pub epoch: u64,
    pub checkpoint: Option<u64>,
}

/// The newer epoch won: whoever holds this lease must stop.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    #[error("another owner has taken the partition over")]
    Fenced,
    #[error(transparent)]
    Store(#[from] StoreError),
}

#[derive(Clone)]
pub struct Checkpoints {
    state: Arc<dyn State>,
    owner: Bytes,
    ttl: Duration,
}

fn lease_key(share: Share) -> String {
    format!("lease/{share}")
}
fn epoch_key(share: Share) -> String {
    format!("epoch/{share}")
}
fn checkpoint_key(share: Share) -> String {
    format!("checkpoint/{share}")
}
fn number(value: Option<&Bytes>) -> Option<u64> {
    std::str::from_utf8(value?).ok()?.parse().ok()
}
fn expect_number(value: Option<u64>) -> Expect {
    value.map_or(Expect::Absent, |n| Expect::Is(n.to_string().into()))
}

impl Checkpoints {
    #[must_use]
    pub fn new(state: Arc<dyn State>, owner: &str, ttl: Duration) -> Self {
        Self { state, owner: Bytes::copy_from_slice(owner.as_bytes()), ttl }
    }

    /// Takes a share that nobody holds, or that this owner held before; raises its epoch.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn acquire(&self, share: Share) -> Result<Option<Lease>, StoreError> {
        let values = self.state.get(&[lease_key(share), epoch_key(share)]).await?;
        let held = match &values[0] {
            None => Expect::Absent,
            Some(owner) if *owner == self.owner => Expect::Is(self.owner.clone()),
            Some(_) => return Ok(None),
        };
        let before = number(values[1].as_ref());
        let epoch = before.unwrap_or(0) + 1;
        let txn = Txn::new()
            .check(lease_key(share), held)
            .check(epoch_key(share), expect_number(before))
            .put_for(lease_key(share), self.owner.clone(), self.ttl)
            .put(epoch_key(share), epoch.to_string());
        // model: Acquire
        let won = self.state.commit(vec![txn]).await? == [Outcome::Done];
        Ok(won.then_some(Lease { share, epoch }))
    }

    /// Keeps leases for another while; tells which of them are lost. One that ran out and that nobody took is still
    /// this owner's: its epoch says so.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn renew(&self, leases: &[Lease]) -> Result<Vec<Lease>, StoreError> {
        let mut left = leases.to_vec();
        for held in [Expect::Is(self.owner.clone()), Expect::Absent] {
            if left.is_empty() {
                break;
            }
            let txn = |lease: &Lease| {
                self.fenced(*lease).check(lease_key(lease.share), held.clone()).put_for(
                    lease_key(lease.share),
                    self.owner.clone(),
                    self.ttl,
                )
            };
            let outcomes = self.state.commit(left.iter().map(txn).collect()).await?;
            left = left.into_iter().zip(outcomes).filter(|(_, o)| *o == Outcome::Conflict).map(|(l, _)| l).collect();
        }
        Ok(left)
    }

    /// Gives a share up so that another can take it at once. Harmless when it is lost already.
    ///
    /// # Errors
    /// When the store is away; the lease then ends by itself.
    pub async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        let txn = self
            .fenced(lease)
            .check(lease_key(lease.share), Expect::Is(self.owner.clone()))
            .delete(lease_key(lease.share));
        self.state.commit(vec![txn]).await.map(|_| ())
    }

    /// The last finished offset of a share.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn load(&self, share: Share) -> Result<Option<u64>, StoreError> {
        let values = self.state.get(&[checkpoint_key(share)]).await?;
        Ok(number(values[0].as_ref()))
    }

    /// Saves a checkpoint that is higher than the last one saved under this lease.
    ///
    /// # Errors
    /// [`SaveError::Fenced`] when another has taken the share over.
    pub async fn save(&self, lease: Lease, offset: u64) -> Result<(), SaveError> {
        let before = self.load(lease.share).await?;
        if before.is_some_and(|before| before >= offset) {
            // Nothing to raise; but a fenced owner must hear of it.
            return self.settle(self.fenced(lease)).await;
        }
        // model: SaveCheckpoint
        let txn = self
            .fenced(lease)
            .check(checkpoint_key(lease.share), expect_number(before))
            .put(checkpoint_key(lease.share), offset.to_string());
        self.settle(txn).await
    }

    /// Forgets a checkpoint, because the stream it counts was made anew and begins at 0 again.
    ///
    /// # Errors
    /// [`SaveError::Fenced`] when another has taken the share over.
    pub async fn reset(&self, lease: Lease) -> Result<(), SaveError> {
        self.settle(self.fenced(lease).delete(checkpoint_key(lease.share))).await
    }

    /// Who owns the shares, in their order.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn owners(&self, shares: &[Share]) -> Result<Vec<Ownership>, StoreError> {
        let keys: Vec<String> =
            shares.iter().flat_map(|s| [lease_key(*s), epoch_key(*s), checkpoint_key(*s)]).collect();
        let values = self.state.get(&keys).await?;
        let read = |v: &[Option<Bytes>]| Ownership {
            owner: v[0].as_ref().map(|o| String::from_utf8_lossy(o).into_owned()),
            epoch: number(v[1].as_ref()).unwrap_or(0),
            checkpoint: number(v[2].as_ref()),
        };
        Ok(values.chunks_exact(3).map(read).collect())
    }

    /// Says that this instance is alive and counts those that are, itself included.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn heartbeat(&self) -> Result<usize, StoreError> {
        let me = String::from_utf8_lossy(&self.owner).into_owned();
        let txn = Txn::new().put_for(format!("member/{me}"), "", self.ttl).add("members", self.owner.clone());
        self.state.commit(vec![txn]).await?;
        let scan = super::Scan { set: "members".into(), limit: 10_000, ..Default::default() };
        let members = self.state.scan(&scan).await?;
        let keys: Vec<String> = members.iter().map(|m| format!("member/{}", String::from_utf8_lossy(m))).collect();
        let alive = self.state.get(&keys).await?;
        let gone = members.iter().zip(&alive).filter(|(_, alive)| alive.is_none()).map(|(m, _)| m.clone());
        let tidy: Vec<Txn> = gone
            .map(|m| {
                let key = format!("member/{}", String::from_utf8_lossy(&m));
                Txn::new().check(key, Expect::Absent).remove("members", m)
            })
            .collect();
        if !tidy.is_empty() {
            self.state.commit(tidy).await?;
        }
        Ok(alive.iter().flatten().count().max(1))
    }

    /// Says that this instance leaves, so that the others share its partitions at once.
    ///
    /// # Errors
    /// When the store is away; the heartbeat then ends by itself.
    pub async fn leave(&self) -> Result<(), StoreError> {
        let me = String::from_utf8_lossy(&self.owner).into_owned();
        let txn = Txn::new().delete(format!("member/{me}")).remove("members", self.owner.clone());
        self.state.commit(vec![txn]).await.map(|_| ())
    }

    fn fenced(&self, lease: Lease) -> Txn {
        Txn::new().check(epoch_key(lease.share), Expect::Is(lease.epoch.to_string().into()))
    }

    async fn settle(&self, txn: Txn) -> Result<(), SaveError> {
        match self.state.commit(vec![txn]).await?.first() {
            Some(Outcome::Done) => Ok(()),
            _ => Err(SaveError::Fenced),
        }
    }
}
