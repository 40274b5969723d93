//! Entities in the store, and the one way to change them: read, plan, and commit on condition that what was read
//! still holds. REST calls and workflow steps both go through here, so they cannot disagree.
//!
//! A tombstone is the mark of a cancelled step. It is written in the same transaction that undoes the step and is
//! checked in every transaction that does it, so no order of arrival leaves something behind.

use std::time::Duration;

use bytes::Bytes;
use minicbor::Decode;
use serde::{Deserialize, Serialize};

use super::StepError;
pub use crate::domain::compact::encode;
use crate::domain::{DeliveryId, Failure, ReasonCode, StepName, compact};
use crate::store::{Expect, Scan, State, StoreError, Txn};

/// How often a plan is made anew after somebody else was quicker.
pub const ROUNDS: u32 = 16;

/// The key that says that this step of this delivery was cancelled.
#[must_use]
pub fn tomb(step: StepName, id: &DeliveryId) -> String {
    ["tomb/", step.as_str(), "/", id.as_str()].concat()
}

/// Adds the mark of a cancelled step to what undoes it. It is kept for longer than any stream keeps a request, so that
/// no replay comes after it.
#[must_use]
pub fn bury(txn: Txn, step: StepName, id: &DeliveryId, keep: Duration) -> Txn {
    txn.put_for(tomb(step, id), Bytes::from_static(b"1"), keep)
}

/// The refusal of a call for a cancelled delivery.
#[must_use]
pub fn already_cancelled() -> StepError {
    StepError::Refused(Failure::new(ReasonCode::AlreadyCancelled, "the delivery was cancelled before"))
}

/// A value that cannot be read, however often. It is the trouble of those who need it: what they ask for is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a damaged value: {0}")]
pub struct Damaged(pub String);

impl From<Damaged> for StepError {
    fn from(damaged: Damaged) -> Self {
        Self::Refused(Failure::new(ReasonCode::Damaged, damaged.to_string()))
    }
}

impl From<Damaged> for StoreError {
    fn from(damaged: Damaged) -> Self {
        Self { part: "state", reason: damaged.to_string() }
    }
}

/// # Errors
/// When the value is not such an entity.
pub fn decode<T: for<'b> Decode<'b, ()>>(value: &[u8]) -> Result<T, Damaged> {
    compact::decode(value).map_err(|error| Damaged(error.to_string()))
}

/// For lists and looks over many, where one that is damaged must not hide the others.
pub fn readable<T: for<'b> Decode<'b, ()>>(key: &str, value: &[u8]) -> Option<T> {
    decode(value).inspect_err(|error| tracing::error!(key, %error, "cannot be read")).ok()
}

/// # Errors
/// When the store does not answer, or the value is damaged.
pub async fn read<T: for<'b> Decode<'b, ()>>(state: &dyn State, key: String) -> Result<Option<T>, StepError> {
    let values = state.get(&[key]).await?;
    Ok(values.into_iter().flatten().next().map(|value| decode(&value)).transpose()?)
}

/// # Errors
/// When the store does not answer.
pub async fn exists(state: &dyn State, key: String) -> Result<bool, StoreError> {
    Ok(state.get(&[key]).await?.iter().any(Option::is_some))
}

/// A part of a list; `next` is the cursor of the part after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// Makes a page of up to `limit` items out of a scan for one more than that.
    pub fn cut(mut items: Vec<T>, limit: usize, cursor: impl Fn(&T) -> String) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(cursor) } else { None };
        Self { items, next }
    }

    pub fn map<U>(self, f: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(f).collect(), next: self.next }
    }
}

/// A page of the entities whose ids an ordered set holds; `key` makes an entity's key of a member. What is damaged is left
/// out.
///
/// # Errors
/// When the store does not answer.
pub async fn page<T: for<'b> Decode<'b, ()>>(
    state: &dyn State,
    mut scan: Scan,
    key: impl Fn(&str) -> String,
) -> Result<Page<T>, StoreError> {
    let limit = scan.limit;
    scan.limit += 1;
    let members = state.scan(&scan).await?.iter().map(|m| String::from_utf8_lossy(m).into_owned()).collect();
    let page = Page::cut(members, limit, String::clone);
    let keys: Vec<String> = page.items.iter().map(|member| key(member)).collect();
    let values = state.get(&keys).await?;
    // What was deleted between the two reads is left out.
    let items = keys.iter().zip(values).filter_map(|(key, value)| readable(key, &value?)).collect();
    Ok(Page { items, next: page.next })
}

/// What to do about one item, given what was read for it.
pub enum Plan<T> {
    /// Nothing is to be written.
    Keep(T),
    /// To be written if everything that was read for the item still holds.
    Write(Txn, T),
}

/// Reads the keys of every item, plans, and commits all of it: two round trips for any number of items. Items that
/// somebody else was quicker with are read and planned again.
pub async fn change<I, T>(
    state: &dyn State,
    items: &[I],
    keys: impl Fn(&I) -> Vec<String>,
    plan: impl Fn(&I, &[Option<Bytes>]) -> Result<Plan<T>, StepError>,
) -> Vec<Result<T, StepError>> {
    let mut answers: Vec<Option<Result<T, StepError>>> = items.iter().map(|_| None).collect();
    let mut open: Vec<usize> = (0..items.len()).collect();
    for round in 0..ROUNDS {
        if open.is_empty() {
            break;
        }
        pause(round).await;
        if let Err(error) = change_once(state, items, &keys, &plan, &mut open, &mut answers).await {
            return finish(answers, &StepError::from(error));
        }
    }
    finish(answers, &contended())
}

async fn change_once<I, T>(
    state: &dyn State,
    items: &[I],
    keys: &impl Fn(&I) -> Vec<String>,
    plan: &impl Fn(&I, &[Option<Bytes>]) -> Result<Plan<T>, StepError>,
    open: &mut Vec<usize>,
    answers: &mut [Option<Result<T, StepError>>],
) -> Result<(), StoreError> {
    let wanted: Vec<Vec<String>> = open.iter().map(|i| keys(&items[*i])).collect();
    let values = state.get(&wanted.concat()).await?;
    let mut rest = values.as_slice();
    let mut planned = Vec::new();
    let mut txns = Vec::new();
    for (i, keys) in open.iter().copied().zip(wanted) {
        let (read, tail) = rest.split_at(keys.len().min(rest.len()));
        rest = tail;
        match plan(&items[i], read) {
            Err(error) => answers[i] = Some(Err(error)),
            Ok(Plan::Keep(answer)) => answers[i] = Some(Ok(answer)),
            Ok(Plan::Write(txn, answer)) => {
                let held = |txn: Txn, (key, value): (String, &Option<Bytes>)| {
                    txn.check(key, value.clone().map_or(Expect::Absent, Expect::Is))
                };
                txns.push(keys.into_iter().zip(read).fold(txn, held));
                planned.push((i, answer));
            }
        }
    }
    open.clear();
    if txns.is_empty() {
        return Ok(());
    }
    for ((i, answer), outcome) in planned.into_iter().zip(state.commit(txns).await?) {
        match outcome {
            crate::store::Outcome::Done => answers[i] = Some(Ok(answer)),
            crate::store::Outcome::Conflict => open.push(i),
        }
    }
    Ok(())
}

/// Gives those that have no answer this error.
pub fn finish<T>(answers: Vec<Option<Result<T, StepError>>>, error: &StepError) -> Vec<Result<T, StepError>> {
    answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(error.clone()))).collect()
}

/// Every order gets the same error.
pub fn all<T>(count: usize, error: &StepError) -> Vec<Result<T, StepError>> {
    (0..count).map(|_| Err(error.clone())).collect()
}

#[must_use]
pub fn contended() -> StepError {
    StepError::Transient("others changed the same entities again and again".into())
}

/// Waits a random while before another round, longer from round to round, so that rivals get out of step.
pub async fn pause(round: u32) {
    if round > 0 {
        let most = 1u64 << round.min(6);
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..=most))).await;
    }
}

impl From<StoreError> for StepError {
    fn from(error: StoreError) -> Self {
        Self::Transient(error.to_string())
    }
}
