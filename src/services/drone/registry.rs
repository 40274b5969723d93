//! What the drone service shows and keeps besides reserving: the fleet and the reservations.

use super::calendar::{self, Place, bucket_of};
use super::*;
use crate::domain::time::{Timestamp, from_millis};
use crate::services::entities::{Damaged, Page, exists, page, read};
use crate::store::Scan;

/// One reservation in a drone's calendar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Booked {
    pub delivery_id: DeliveryId,
    pub from: Timestamp,
    pub until: Timestamp,
}

/// How many buckets of a calendar are read at once.
const BUCKETS: usize = 64;

impl DroneService {
    /// # Errors
    /// When the store does not answer, or what it has is damaged.
    pub async fn reservation(&self, id: &DeliveryId) -> Result<Option<Reservation>, StepError> {
        read(&*self.state, resv(id)).await
    }

    /// Whether the delivery's reservation was cancelled.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn is_cancelled(&self, id: &DeliveryId) -> Result<bool, StoreError> {
        exists(&*self.state, tomb(StepName::Drone, id)).await
    }

    /// # Errors
    /// When the store does not answer, or what it has is damaged.
    pub async fn drone(&self, id: &str) -> Result<Option<Drone>, StepError> {
        read(&*self.state, fleet::key(id)).await
    }

    /// The fleet, by id.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn drones(&self, after: Option<String>, limit: usize) -> Result<Page<Drone>, StoreError> {
        let after = after.map(Into::into);
        page(&*self.state, Scan { set: fleet::SET.into(), after, limit, ..Scan::default() }, fleet::key).await
    }

    /// Adds drones or changes them; takes effect here at once and elsewhere within a second.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn put_drones(&self, drones: &[Drone]) -> Result<(), StoreError> {
        self.fleet.put(drones).await
    }

    /// Takes a drone out of the fleet. Its reservations stay for those who hold them.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn delete_drone(&self, id: &str) -> Result<(), StoreError> {
        self.fleet.delete(id).await
    }

    /// A drone's reservations from the first on, in the order of time.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn reservations(
        &self,
        drone: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<Page<Booked>, StoreError> {
        let after = after.and_then(|cursor| Some(cursor.split_once('.')?.0.parse::<i64>().ok()?).zip(Some(cursor)));
        let first = after.as_ref().map(|(second, _)| calendar::member(bucket_of(*second) - 1).into());
        let mut scan = Scan { set: calendar::index(drone), after: first, limit: BUCKETS, ..Scan::default() };
        let mut items: Vec<Booked> = Vec::new();
        loop {
            let members = self.state.scan(&scan).await?;
            let buckets: Vec<i64> = members.iter().map(|member| bucket_number(member)).collect::<Result<_, _>>()?;
            let key = |bucket: &i64| Place { drone: drone.into(), bucket: *bucket }.key();
            let values = self.state.get(&buckets.iter().map(key).collect::<Vec<_>>()).await?;
            for (bucket, value) in buckets.into_iter().zip(values) {
                items.extend(begun_in(bucket, value.as_deref().unwrap_or_default())?);
            }
            items.retain(|item| after.as_ref().is_none_or(|(_, cursor)| cursor_of(item) > *cursor));
            if items.len() > limit || members.len() < BUCKETS {
                return Ok(Page::cut(items, limit, cursor_of));
            }
            scan.after = members.into_iter().last();
        }
    }
}

/// Of one width, so that the order of cursors is that of time.
fn cursor_of(item: &Booked) -> String {
    format!("{:012}.{}", item.from.as_millisecond().div_euclid(1000), item.delivery_id)
}

pub(super) fn bucket_number(member: &[u8]) -> Result<i64, Damaged> {
    let number = std::str::from_utf8(member).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Damaged("a calendar's index".to_owned()))
}

/// A bucket's reservations, sorted, without those that began in an earlier one.
fn begun_in(bucket: i64, value: &[u8]) -> Result<Vec<Booked>, Damaged> {
    let mut items = Vec::new();
    for (span, delivery_id) in bucket::parse(bucket, value)? {
        if bucket_of(span.from) == bucket {
            let time = |second: i64| from_millis(second * 1000);
            items.push(Booked { delivery_id, from: time(span.from), until: time(span.until) });
        }
    }
    items.sort_by_key(|item| (item.from, item.delivery_id.clone()));
    Ok(items)
}
