//! Step 1: the owner's account must be known and active. Nothing is written but the tombstone, so there is nothing to
//! undo; an account's owner is read once for a whole batch.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::entities::{self, all, already_cancelled, bury, decode, encode, tomb};
use super::{Order, Service, SharedState, StepError};
use crate::config::Settings;
use crate::domain::workflow::Output;
use crate::domain::{Failure, ReasonCode, StepName};
use crate::store::{StoreError, Txn};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[cbor(index_only)]
pub enum AccountStatus {
    #[n(0)]
    Active,
    #[n(1)]
    Suspended,
}

/// Who may have packages flown, and how to reach them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Account {
    #[n(0)]
    pub status: AccountStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(1)]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(2)]
    pub email: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(3)]
    pub webhook: Option<String>,
}

impl Account {
    /// Whether the owner may have something flown.
    ///
    /// # Errors
    /// When the account is not known or not active.
    pub fn admit(account: Option<&Self>, owner: &str) -> Result<(), StepError> {
        let refuse = |code, text| Err(StepError::Refused(Failure::new(code, text)));
        match account.map(|account| account.status) {
            Some(AccountStatus::Active) => Ok(()),
            Some(AccountStatus::Suspended) => {
                refuse(ReasonCode::AccountSuspended, format!("the account {owner} is suspended"))
            }
            None => refuse(ReasonCode::AccountUnknown, format!("there is no account {owner}")),
        }
    }
}

#[must_use]
pub fn key(id: &str) -> String {
    ["account/", id].concat()
}

pub struct AccountService {
    state: SharedState,
    tombstones: Duration,
}

impl AccountService {
    #[must_use]
    pub fn new(state: SharedState, settings: &Settings) -> Self {
        Self { state, tombstones: settings.retention.tombstones }
    }

    /// # Errors
    /// When the store does not answer, or what it has is damaged.
    pub async fn get(&self, id: &str) -> Result<Option<Account>, StepError> {
        entities::read(&*self.state, key(id)).await
    }

    /// Sets accounts; many at once for those who bring a whole customer base.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn put(&self, accounts: &[(String, Account)]) -> Result<(), StoreError> {
        let txns = accounts.iter().map(|(id, account)| Txn::new().put(key(id), encode(account))).collect();
        self.state.commit(txns).await.map(drop)
    }

    /// # Errors
    /// When the store does not answer.
    pub async fn delete(&self, id: &str) -> Result<(), StoreError> {
        self.state.commit(vec![Txn::new().delete(key(id))]).await.map(drop)
    }

    async fn check(&self, orders: &[Order]) -> Result<Vec<Result<Output, StepError>>, StoreError> {
        let mut keys: Vec<String> = orders.iter().map(|order| tomb(StepName::Account, &order.id)).collect();
        let mut places = HashMap::new();
        for order in orders {
            places.entry(order.request.owner_id.as_str()).or_insert_with_key(|owner| {
                keys.push(key(owner));
                keys.len() - 1
            });
        }
        let values = self.state.get(&keys).await?;
        let mut verdicts = HashMap::with_capacity(places.len());
        for (owner, place) in places {
            let account = values[place].as_ref().map(|value: &Bytes| decode::<Account>(value)).transpose();
            // One that cannot be read is its owner's trouble, not that of all who are asked about together.
            let verdict = account.map_err(StepError::from).and_then(|found| Account::admit(found.as_ref(), owner));
            verdicts.insert(owner, verdict);
        }
        let verdict = |(order, buried): (&Order, &Option<Bytes>)| match buried {
            Some(_) => Err(already_cancelled()),
            None => verdicts[order.request.owner_id.as_str()].clone().map(|()| Output::Nothing),
        };
        Ok(orders.iter().zip(&values).map(verdict).collect())
    }
}

#[async_trait(?Send)]
impl Service for AccountService {
    fn step(&self) -> StepName {
        StepName::Account
    }

    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        self.check(orders).await.unwrap_or_else(|error| all(orders.len(), &error.into()))
    }

    async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>> {
        let undo = |order: &Order| bury(Txn::new(), StepName::Account, &order.id, self.tombstones);
        let txns = orders.iter().map(undo).collect();
        match self.state.commit(txns).await {
            Ok(_) => orders.iter().map(|_| Ok(())).collect(),
            Err(error) => all(orders.len(), &error.into()),
        }
    }
}
