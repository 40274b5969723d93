//! Step 2: the package entity, by the caller's package id. The last delivery to use an id has the entity; undoing
//! deletes it only while it still belongs to the delivery that is undone.

use std::time::Duration;

use async_trait::async_trait;
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::entities::{self, Plan, already_cancelled, bury, change, decode, encode, readable, tomb};
use super::{Order, Service, SharedState, StepError};
use crate::config::{Services, Settings};
use crate::domain::workflow::Output;
use crate::domain::{DeliveryId, Failure, PackageInfo, PackageSize, ReasonCode, StepName};
use crate::store::{Expect, Outcome, StoreError, Txn};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Package {
    #[n(0)]
    pub delivery_id: DeliveryId,
    #[n(1)]
    pub size: PackageSize,
    #[n(2)]
    pub weight: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(3)]
    pub tag: Option<String>,
}

impl Package {
    #[must_use]
    pub fn of(id: &DeliveryId, info: &PackageInfo) -> Self {
        Self { delivery_id: id.clone(), size: info.size, weight: info.weight, tag: info.tag.clone() }
    }
}

fn key(id: &str) -> String {
    ["package/", id].concat()
}

pub struct PackageService {
    state: SharedState,
    tombstones: Duration,
    max_weight_kg: f64,
    max_size: PackageSize,
}

impl PackageService {
    #[must_use]
    pub fn new(state: SharedState, settings: &Settings) -> Self {
        let Services { max_weight_kg, max_size, .. } = settings.services;
        Self { state, tombstones: settings.retention.tombstones, max_weight_kg, max_size }
    }

    /// # Errors
    /// When the store does not answer, or what it has is damaged.
    pub async fn get(&self, id: &str) -> Result<Option<Package>, StepError> {
        entities::read(&*self.state, key(id)).await
    }

    /// Sets a package's entity.
    ///
    /// # Errors
    /// When the package is too much for the fleet, its delivery was cancelled, or the store does not answer.
    pub async fn put(&self, id: &str, package: &Package) -> Result<(), StepError> {
        self.put_all(&[(id, package.clone())]).await.pop().unwrap_or(Ok(()))
    }

    /// Deletes a package's entity, whosever it is.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn delete(&self, id: &str) -> Result<(), StoreError> {
        self.state.commit(vec![Txn::new().delete(key(id))]).await.map(drop)
    }

    /// Deletes the entity if it is this delivery's, and refuses the delivery's packages from now on.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn withdraw(&self, id: &str, delivery: &DeliveryId) -> Result<(), StepError> {
        self.withdraw_all(&[(id, delivery)]).await.pop().unwrap_or(Ok(()))
    }

    fn admit(&self, package: &Package) -> Result<(), StepError> {
        let (weight, size) = (self.max_weight_kg, self.max_size);
        if package.weight > weight {
            let text = format!("{} kg, and the fleet carries {weight} kg at most", package.weight);
            return Err(StepError::Refused(Failure::new(ReasonCode::PackageTooHeavy, text)));
        }
        if package.size > size {
            let text = format!("{:?}, and the fleet carries {size:?} at most", package.size);
            return Err(StepError::Refused(Failure::new(ReasonCode::PackageTooLarge, text)));
        }
        Ok(())
    }

    async fn put_all(&self, packages: &[(&str, Package)]) -> Vec<Result<(), StepError>> {
        let mut answers: Vec<_> = packages.iter().map(|(_, package)| self.admit(package)).collect();
        let admitted: Vec<usize> = (0..packages.len()).filter(|i| answers[*i].is_ok()).collect();
        let txn = |i: &usize| {
            let (id, package) = &packages[*i];
            Txn::new()
                .check(tomb(StepName::Package, &package.delivery_id), Expect::Absent)
                .put(key(id), encode(package))
        };
        match self.state.commit(admitted.iter().map(txn).collect()).await {
            Ok(outcomes) => {
                for (i, outcome) in admitted.into_iter().zip(outcomes) {
                    if outcome == Outcome::Conflict {
                        answers[i] = Err(already_cancelled());
                    }
                }
            }
            Err(error) => {
                for i in admitted {
                    answers[i] = Err(error.clone().into());
                }
            }
        }
        answers
    }

    async fn withdraw_all(&self, packages: &[(&str, &DeliveryId)]) -> Vec<Result<(), StepError>> {
        let keys = |(id, _): &(&str, &DeliveryId)| vec![key(id)];
        change(&*self.state, packages, keys, |(id, delivery), read| {
            let txn = bury(Txn::new(), StepName::Package, delivery, self.tombstones);
            let package = read[0].as_ref().map(|value| decode::<Package>(value)).transpose()?;
            let mine = package.is_some_and(|package| package.delivery_id == **delivery);
            Ok(Plan::Write(if mine { txn.delete(key(id)) } else { txn }, ()))
        })
        .await
    }
}

impl PackageService {
    /// Deletes the entities of deliveries that are long over, if they are still theirs. Leaves no tombstone: a package
    /// id may be used again.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn forget(&self, packages: &[(&str, &DeliveryId)]) -> Result<(), StepError> {
        let keys = |(id, _): &(&str, &DeliveryId)| vec![key(id)];
        let forgotten = change(&*self.state, packages, keys, |(id, delivery), read| {
            // Whose one is that cannot be read, nobody knows: it stays.
            let package = read[0].as_ref().and_then(|value| readable::<Package>(&key(id), value));
            let mine = package.is_some_and(|package| package.delivery_id == **delivery);
            Ok(if mine { Plan::Write(Txn::new().delete(key(id)), ()) } else { Plan::Keep(()) })
        });
        forgotten.await.into_iter().collect()
    }
}

#[async_trait(?Send)]
impl Service for PackageService {
    fn step(&self) -> StepName {
        StepName::Package
    }

    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        let package = |order: &'_ Order| Package::of(&order.id, &order.request.package_info);
        let packages: Vec<_> =
            orders.iter().map(|order| (order.request.package_info.package_id.as_str(), package(order))).collect();
        self.put_all(&packages).await.into_iter().map(|put| put.map(|()| Output::Nothing)).collect()
    }

    async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>> {
        let packages: Vec<_> =
            orders.iter().map(|order| (order.request.package_info.package_id.as_str(), &order.id)).collect();
        self.withdraw_all(&packages).await
    }
}
