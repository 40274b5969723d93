//! The workflow records. Every write checks that the record is still what its writer last saw, so that a reader that
//! lost its partition, a compensator and an operator can never undo each other's progress: the slower one finds a
//! conflict and looks again.
//!
//! Two ordered sets list them: by status and by owner, members being the time of acceptance and the id, so that a scan
//! from the end is newest first.

use std::sync::Arc;

use bytes::Bytes;

use super::{Expect, Outcome, Scan, State, StoreError, Txn};
use crate::domain::time::Timestamp;
use crate::domain::{DeliveryId, Status, Workflow, compact};

/// A record with the bytes the store has of it.
#[derive(Clone, Debug)]
pub struct Stored {
    pub workflow: Box<Workflow>,
    /// What the store holds; none for a record that is not written yet.
    pub seen: Option<Seen>,
    /// It was sent to the store and no answer came: it may be there.
    unanswered: bool,
}

#[derive(Clone, Debug)]
pub struct Seen {
    bytes: Bytes,
    status: Status,
}

/// A record that this program cannot read: it is damaged, or a later program wrote it. It is nobody's but its
/// delivery's trouble.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record {key} is unreadable: {reason}")]
pub struct Unreadable {
    key: String,
    reason: String,
}

impl From<Unreadable> for StoreError {
    fn from(unreadable: Unreadable) -> Self {
        Self { part: "store", reason: unreadable.to_string() }
    }
}

/// What there is of a record.
pub type Loaded = Result<Option<Stored>, Unreadable>;

#[derive(Clone)]
pub struct Workflows {
    state: Arc<dyn State>,
}

fn key(id: &str) -> String {
    ["workflow/", id].concat()
}
fn status_set(status: Status) -> String {
    ["workflows/status/", status.as_str()].concat()
}
fn owner_set(owner: &str) -> String {
    ["workflows/owner/", owner].concat()
}

/// A member sorts by time and leads to its record.
fn member(workflow: &Workflow) -> Bytes {
    format!("{:012x}{}", workflow.accepted_at.as_millisecond().max(0), workflow.delivery_id).into()
}
fn id_of(member: &Bytes) -> Option<&str> {
    std::str::from_utf8(member).ok()?.get(12..)
}

/// What a list is narrowed down to.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub status: Option<Status>,
    pub owner: Option<String>,
}

/// One page of a list; `next` is the cursor to go on with.
pub struct Page {
    pub items: Vec<Workflow>,
    pub next: Option<String>,
}

impl Workflows {
    #[must_use]
    pub fn new(state: Arc<dyn State>) -> Self {
        Self { state }
    }

    /// The records of these deliveries, in their order.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn load<'a>(&self, ids: impl Iterator<Item = &'a DeliveryId>) -> Result<Vec<Loaded>, StoreError> {
        let keys: Vec<String> = ids.map(|id| key(id.as_str())).collect();
        let values = self.state.get(&keys).await?;
        Ok(keys.iter().zip(values).map(|(key, value)| value.map(|v| decode(key, v)).transpose()).collect())
    }

    /// The record of one delivery.
    ///
    /// # Errors
    /// When the store is away, or the record is unreadable.
    pub async fn get(&self, id: &DeliveryId) -> Result<Option<Stored>, StoreError> {
        Ok(self.load(std::iter::once(id)).await?.pop().transpose()?.flatten())
    }

    /// Writes records in one round trip. The answer says for each whether it was written; one that was not has been
    /// changed by somebody else and must be loaded again. What was written is remembered in `seen`.
    ///
    /// # Errors
    /// When the store is away; then any of them may have been written, and all are to be loaded again or written
    /// again: the same bytes once more are then not a conflict.
    pub async fn save(&self, records: &mut [&mut Stored]) -> Result<Vec<Outcome>, StoreError> {
        let encoded: Vec<Bytes> = records.iter().map(|r| compact::encode(&*r.workflow)).collect();
        let txns = records.iter().zip(&encoded).map(|(record, bytes)| record.txn(bytes.clone())).collect();
        let repeated: Vec<bool> =
            records.iter_mut().map(|record| std::mem::replace(&mut record.unanswered, true)).collect();
        let mut outcomes = self.state.commit(txns).await?;
        let is_unsure = |i: &usize| repeated[*i] && outcomes[*i] == Outcome::Conflict;
        let unsure: Vec<usize> = (0..outcomes.len()).filter(is_unsure).collect();
        if !unsure.is_empty() {
            // Our own bytes are the echo of the write whose answer was lost. Without such a write they are not ours:
            // two who do the same within a millisecond write the same.
            let keys: Vec<String> = unsure.iter().map(|i| key(records[*i].workflow.delivery_id.as_str())).collect();
            for (i, now) in unsure.into_iter().zip(self.state.get(&keys).await?) {
                if now.as_ref() == Some(&encoded[i]) {
                    outcomes[i] = Outcome::Done;
                }
            }
        }
        for ((record, bytes), outcome) in records.iter_mut().zip(encoded).zip(&outcomes) {
            record.unanswered = false;
            if *outcome == Outcome::Done {
                record.seen = Some(Seen { bytes, status: record.workflow.status });
            }
        }
        Ok(outcomes)
    }

    /// One page, newest first. What is unreadable is left out.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn list(&self, filter: &Filter, cursor: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let mut after = cursor.map(|c| Bytes::copy_from_slice(c.as_bytes()));
        let mut items = Vec::new();
        loop {
            let members = self.members(filter, after.as_ref(), limit + 1).await?;
            let last = members.len() <= limit;
            let keys: Vec<String> = members.iter().filter_map(id_of).map(key).collect();
            let records = self.state.get(&keys).await?;
            for (member, record) in members.into_iter().zip(records) {
                if items.len() == limit {
                    let next = after.map(|a| String::from_utf8_lossy(&a).into_owned());
                    return Ok(Page { items, next });
                }
                let stored = record.and_then(|record| readable(decode(id_of(&member).unwrap_or_default(), record)));
                let fits = |stored: &Stored| filter.status.is_none_or(|s| s == stored.workflow.status);
                items.extend(stored.filter(fits).map(|stored| *stored.workflow));
                after = Some(member);
            }
            if last {
                return Ok(Page { items, next: None });
            }
        }
    }

    /// Members of the sets that the filter narrows down to, newest first: one set, or all the statuses' merged.
    async fn members(&self, filter: &Filter, after: Option<&Bytes>, limit: usize) -> Result<Vec<Bytes>, StoreError> {
        let sets: Vec<String> = match (&filter.owner, filter.status) {
            (Some(owner), _) => vec![owner_set(owner)],
            (None, Some(status)) => vec![status_set(status)],
            (None, None) => Status::ALL.into_iter().map(status_set).collect(),
        };
        let mut members = Vec::new();
        for set in sets {
            let scan = Scan { set, after: after.cloned(), limit, backwards: true, ..Default::default() };
            members.extend(self.state.scan(&scan).await?);
        }
        members.sort_unstable_by(|a, b| b.cmp(a));
        members.dedup();
        members.truncate(limit);
        Ok(members)
    }

    /// Up to `limit` workflows of a status that were accepted before a time, oldest first, from a place on, and the place to
    /// go on from; none when there are no more. What is unreadable is left out.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn oldest(
        &self,
        status: Status,
        before: Timestamp,
        after: Option<Bytes>,
        limit: usize,
    ) -> Result<(Vec<Stored>, Option<Bytes>), StoreError> {
        let scan = Scan { set: status_set(status), after, limit, ..Default::default() };
        let end = format!("{:012x}", before.as_millisecond().max(0));
        let mut members = self.state.scan(&scan).await?;
        let full = members.len() == limit;
        members.retain(|m| m.as_ref() < end.as_bytes());
        let ids: Vec<DeliveryId> = members.iter().filter_map(|m| DeliveryId::parse(id_of(m)?).ok()).collect();
        let next = if full && members.len() == limit { members.pop() } else { None };
        let records = self.load(ids.iter()).await?.into_iter().map(|loaded| loaded.map(Option::into_iter));
        Ok((records.filter_map(readable).flatten().collect(), next))
    }

    /// Takes records out of the store and out of the sets, each on condition that it is still what was seen. One that
    /// is not stays.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn remove(&self, records: &[Stored]) -> Result<Vec<Outcome>, StoreError> {
        let txn = |record: &Stored| {
            let (workflow, key) = (&record.workflow, key(record.workflow.delivery_id.as_str()));
            let Some(seen) = &record.seen else { return Txn::new().check(key, Expect::Absent) };
            Txn::new()
                .check(key.clone(), Expect::Is(seen.bytes.clone()))
                .delete(key)
                .remove(status_set(seen.status), member(workflow))
                .remove(owner_set(&workflow.request.owner_id), member(workflow))
        };
        self.state.commit(records.iter().map(txn).collect()).await
    }

    /// How many workflows are in each status.
    ///
    /// # Errors
    /// When the store is away.
    pub async fn counts(&self) -> Result<Vec<(Status, u64)>, StoreError> {
        let mut counts = Vec::with_capacity(Status::ALL.len());
        for status in Status::ALL {
            counts.push((status, self.state.count(&status_set(status)).await?));
        }
        Ok(counts)
    }
}

impl Stored {
    /// A record that is not in the store yet.
    #[must_use]
    pub fn new(workflow: Workflow) -> Self {
        Self { workflow: Box::new(workflow), seen: None, unanswered: false }
    }

    /// The transaction that writes the record where nobody else has changed it.
    fn txn(&self, bytes: Bytes) -> Txn {
        let workflow = &self.workflow;
        let key = key(workflow.delivery_id.as_str());
        let member = member(workflow);
        let txn = match &self.seen {
            None => {
                Txn::new().check(key.clone(), Expect::Absent).add(owner_set(&workflow.request.owner_id), member.clone())
            }
            Some(seen) => Txn::new().check(key.clone(), Expect::Is(seen.bytes.clone())),
        };
        let txn = match &self.seen {
            Some(seen) if seen.status == workflow.status => txn,
            Some(seen) => txn.remove(status_set(seen.status), member.clone()).add(status_set(workflow.status), member),
            None => txn.add(status_set(workflow.status), member),
        };
        txn.put(key, bytes)
    }
}

fn decode(key: &str, bytes: Bytes) -> Result<Stored, Unreadable> {
    let workflow: Workflow =
        compact::decode(&bytes).map_err(|error| Unreadable { key: key.to_owned(), reason: error.to_string() })?;
    let seen = Some(Seen { bytes, status: workflow.status });
    Ok(Stored { workflow: Box::new(workflow), seen, unanswered: false })
}

/// For lists and looks over many, where one that is unreadable must not hide the others.
fn readable<T>(loaded: Result<T, Unreadable>) -> Option<T> {
    loaded.inspect_err(|error| tracing::error!(%error, "left out")).ok()
}
