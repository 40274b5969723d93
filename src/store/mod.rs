//! The state contract: values by key, ordered sets of members, and transactions that check before they write.
//! Everything that must be atomic across processes (leases, checkpoints, idempotency keys, tombstones, drone
//! reservations, workflow records) is one [`Txn`], so it is written once and runs on both engines. Two
//! implementations with one conformance suite: [`embedded`] (fjall, this disk) and [`redis`] (Lua scripts).
//!
//! Order is the promise that recovery rests on: transactions become durable in the order they were committed, so
//! what survives a crash is a prefix. A commit whose answer was lost may have happened: callers write transactions
//! that can be read back and repeated.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub mod checkpoints;
pub mod embedded;
pub mod idempotency;
pub mod redis;
pub mod workflows;

/// Why the store did not answer. Always worth another try.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the {part} is not available: {reason}")]
pub struct StoreError {
    pub part: &'static str,
    pub reason: String,
}

/// What a key must be for a transaction to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    Absent,
    Present,
    Is(Bytes),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub key: String,
    pub expect: Expect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Sets a value. With a `ttl` the key is absent again after that time; without one an earlier `ttl` is lifted.
    Put {
        key: String,
        value: Bytes,
        ttl: Option<Duration>,
    },
    Delete {
        key: String,
    },
    /// Adds a member to an ordered set; harmless when it is in.
    Add {
        set: String,
        member: Bytes,
    },
    Remove {
        set: String,
        member: Bytes,
    },
}

/// All of its checks hold and all of its writes are done, or nothing happens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    pub checks: Vec<Check>,
    pub writes: Vec<Write>,
}

impl Txn {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn check(mut self, key: impl Into<String>, expect: Expect) -> Self {
        self.checks.push(Check { key: key.into(), expect });
        self
    }

    #[must_use]
    pub fn put(mut self, key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.writes.push(Write::Put { key: key.into(), value: value.into(), ttl: None });
        self
    }

    #[must_use]
    pub fn put_for(mut self, key: impl Into<String>, value: impl Into<Bytes>, ttl: Duration) -> Self {
        self.writes.push(Write::Put { key: key.into(), value: value.into(), ttl: Some(ttl) });
        self
    }

    #[must_use]
    pub fn delete(mut self, key: impl Into<String>) -> Self {
        self.writes.push(Write::Delete { key: key.into() });
        self
    }

    #[must_use]
    pub fn add(mut self, set: impl Into<String>, member: impl Into<Bytes>) -> Self {
        self.writes.push(Write::Add { set: set.into(), member: member.into() });
        self
    }

    #[must_use]
    pub fn remove(mut self, set: impl Into<String>, member: impl Into<Bytes>) -> Self {
        self.writes.push(Write::Remove { set: set.into(), member: member.into() });
        self
    }
}

/// What became of one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// A check did not hold; nothing was written.
    Conflict,
}

/// Which members of an ordered set, by their bytes' order.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    pub set: String,
    /// Only members that begin with this.
    pub prefix: Bytes,
    /// Only members strictly behind this one, in the direction of the scan.
    pub after: Option<Bytes>,
    pub limit: usize,
    /// From the last to the first.
    pub backwards: bool,
}

#[async_trait]
pub trait State: Send + Sync + 'static {
    /// The values of the keys, in their order.
    async fn get(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>, StoreError>;

    /// Carries the transactions out one after the other, each all or nothing, in one round trip. They see each
    /// other's writes. On an error any number of them may have been carried out, from the first on.
    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Outcome>, StoreError>;

    async fn scan(&self, scan: &Scan) -> Result<Vec<Bytes>, StoreError>;

    /// How many members a set has.
    async fn count(&self, set: &str) -> Result<u64, StoreError>;

    /// Whether the store answers; the error says why not.
    async fn ping(&self) -> Result<(), StoreError>;
}
