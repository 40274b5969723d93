//! Forgetting time that is long past. A bucket goes as a whole, on condition that it is as it was read, and with it the
//! reservations that end in it: a reservation stands in every bucket it touches, so the bucket of its end is the last.

use super::calendar::{self, Place, bucket_of};
use super::*;
use crate::services::entities::Page;
use crate::store::Scan;

/// Drones whose calendars are looked at in one call.
const DRONES: usize = 50;

impl DroneService {
    /// Looks at some drones from a cursor on and forgets up to `limit` buckets that end before this second. Comes back
    /// with how many it was, and the cursor to go on with.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn forget_before(
        &self,
        second: i64,
        after: Option<String>,
        limit: usize,
    ) -> Result<(usize, Option<String>), StoreError> {
        let Page { items, next } = self.drones(after.clone(), DRONES).await?;
        let (mut forgotten, mut done) = (0, after);
        for drone in items {
            forgotten += self.forget_of(&drone.id, second, limit - forgotten).await?;
            if forgotten == limit {
                // This one may have more of them.
                return Ok((forgotten, done));
            }
            done = Some(drone.id.to_string());
        }
        Ok((forgotten, next))
    }

    async fn forget_of(&self, drone: &str, second: i64, limit: usize) -> Result<usize, StoreError> {
        let scan = Scan { set: calendar::index(drone), limit, ..Scan::default() };
        let mut buckets = Vec::new();
        for member in self.state.scan(&scan).await? {
            match registry::bucket_number(&member) {
                Ok(bucket) if bucket >= bucket_of(second) => break,
                Ok(bucket) => buckets.push(bucket),
                Err(error) => tracing::error!(drone, %error, "passed by"),
            }
        }
        let key = |bucket: &i64| Place { drone: drone.into(), bucket: *bucket }.key();
        let values = self.state.get(&buckets.iter().map(key).collect::<Vec<_>>()).await?;
        let mut txns = Vec::with_capacity(buckets.len());
        for (bucket, value) in buckets.iter().zip(values) {
            let Some(value) = value else { continue };
            let mut txn = Txn::new();
            // Nobody needs the past, so one that cannot be read goes as well.
            let reservations = bucket::parse(*bucket, &value).unwrap_or_else(|error| {
                tracing::error!(drone, bucket, %error, "forgotten; its reservations stay behind");
                Vec::new()
            });
            for (span, id) in reservations {
                if bucket_of(span.until - 1) == *bucket {
                    txn = txn.delete(format!("resv/{id}"));
                }
            }
            txns.push(
                txn.check(key(bucket), Expect::Is(value))
                    .delete(key(bucket))
                    .remove(calendar::index(drone), calendar::member(*bucket)),
            );
        }
        let outcomes = self.state.commit(txns).await?;
        Ok(outcomes.into_iter().filter(|outcome| *outcome == Outcome::Done).count())
    }
}
