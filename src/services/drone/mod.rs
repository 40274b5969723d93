//! Step 4: a drone is kept for the delivery, from leaving its home to being ready there again.
//!
//! One transaction takes the time: it checks that the delivery has no reservation and no tombstone and that every
//! bucket of the calendar it writes is as it was when the choice was made (see [`calendar`]). So one delivery never has
//! two drones and one drone never two deliveries at once, whatever other processes do. A batch is planned in memory,
//! expedited orders first, and committed in one round trip. While that is under way the next batch is planned on top of
//! it: should a write not come to pass, those on top of it meet its absence as a conflict. Orders that lost a race are
//! planned again on a fresh reading.
//!
//! A refusal is nothing that a transaction could check, so an order is refused only on calendars read in this very
//! call, with nothing in them that was planned but then not written, and after a look for a reservation it may have.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::poll;
use h3o::Resolution;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use self::calendar::{Calendars, Change, Missing};
use self::fleet::{Fleet, FleetCache};
use self::plan::{FIRST_REACH, Outlook, Trip, Wish};
use super::entities::{ROUNDS, already_cancelled, bury, contended, decode, encode, finish, pause, tomb};
use super::{Order, Service, SharedState, StepError};
use crate::config::Settings;
use crate::domain::time::now_millis;
use crate::domain::workflow::{Output, Reservation};
use crate::domain::{DeliveryId, Failure, ReasonCode, StepName};
use crate::store::{Expect, Outcome, StoreError, Txn};

mod bucket;
pub mod calendar;
pub mod fleet;
pub mod plan;
mod purge;
mod registry;
mod release;

pub use fleet::{Drone, DroneStatus};
pub use registry::Booked;

pub struct DroneService {
    state: SharedState,
    tombstones: Duration,
    turnaround: i64,
    cached: usize,
    resolution: Resolution,
    fleet: FleetCache,
    /// Held while a batch is planned and its write is begun, so that writes are carried out in the order of the plans;
    /// and to the end by whoever plans for the second time.
    calendars: Mutex<Calendars>,
}

fn resv(id: &DeliveryId) -> String {
    ["resv/", id.as_str()].concat()
}

/// What is to be written for one order, if nothing changes until then.
struct Planned {
    order: usize,
    trip: Trip,
    changes: Vec<Change>,
}

/// The answers of a batch as they come in.
type Answers = Vec<Option<Result<Output, StepError>>>;

impl DroneService {
    #[must_use]
    pub fn new(state: SharedState, settings: &Settings) -> Self {
        let (settings, tombstones) = (&settings.services, settings.retention.tombstones);
        let resolution = Resolution::try_from(settings.zone_resolution).unwrap_or(Resolution::Seven);
        let fleet = FleetCache::new(state.clone(), resolution);
        let turnaround = i64::try_from(settings.turnaround.as_secs()).unwrap_or(i64::MAX / 8);
        let cached = settings.calendar_cache_bytes;
        Self { state, tombstones, turnaround, cached, resolution, fleet, calendars: Mutex::new(Calendars::default()) }
    }

    fn outlook<'a>(&self, fleet: &'a Fleet, calendars: &'a Calendars, since: u64, reach: usize) -> Outlook<'a> {
        Outlook { fleet, calendars, since, reach, now: now_millis() / 1000, turnaround: self.turnaround }
    }

    async fn reserve(&self, orders: &[Order], answers: &mut Answers) -> Result<(), StoreError> {
        let fleet = self.fleet.current().await?;
        let wishes: Vec<Wish> = orders.iter().map(|order| Wish::new(order, self.resolution)).collect();
        let mut open: Vec<usize> = (0..orders.len()).collect();
        open.sort_by_key(|i| !orders[*i].request.expedited);
        self.reserve_at_once(&fleet, &wishes, &open, answers).await?;
        open.retain(|i| answers[*i].is_none());
        if open.is_empty() {
            return Ok(());
        }
        let mut calendars = self.calendars.lock().await;
        let call = calendars.begin(self.cached);
        for round in 1..ROUNDS {
            pause(round - 1).await;
            self.settle_known(orders, &mut open, answers).await?;
            let (planned, refused) = self.plan(&fleet, &mut calendars, &wishes, &open, call).await?;
            let outcomes = self.write(&wishes, &planned).await;
            let lost = settle(&planned, outcomes, &mut calendars, answers)?;
            if lost == 0 {
                refused.iter().for_each(|i| answers[*i] = Some(Err(no_drone())));
            }
            open.retain(|i| answers[*i].is_none());
            if open.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// The first round, which suffices for most: the calendars are free for others while it is written.
    async fn reserve_at_once(
        &self,
        fleet: &Fleet,
        wishes: &[Wish],
        open: &[usize],
        answers: &mut Answers,
    ) -> Result<(), StoreError> {
        let mut calendars = self.calendars.lock().await;
        calendars.begin(self.cached);
        let (planned, _) = self.plan(fleet, &mut calendars, wishes, open, 0).await?;
        let mut writing = pin!(self.write(wishes, &planned));
        let begun = poll!(writing.as_mut());
        drop(calendars);
        let outcomes = match begun {
            Poll::Ready(outcomes) => outcomes,
            Poll::Pending => writing.await,
        };
        let all_done = outcomes.as_ref().is_ok_and(|outcomes| outcomes.iter().all(|outcome| *outcome == Outcome::Done));
        if all_done {
            planned.iter().for_each(|planned| planned.answer(answers));
            return Ok(());
        }
        settle(&planned, outcomes, &mut *self.calendars.lock().await, answers).map(drop)
    }

    /// Answers those orders that have a reservation or are cancelled.
    async fn settle_known(
        &self,
        orders: &[Order],
        open: &mut Vec<usize>,
        answers: &mut Answers,
    ) -> Result<(), StoreError> {
        let keys = |i: &usize| [resv(&orders[*i].id), tomb(StepName::Drone, &orders[*i].id)];
        let keys: Vec<String> = open.iter().flat_map(keys).collect();
        let values = self.state.get(&keys).await?;
        for (i, read) in open.iter().zip(values.chunks(2)) {
            if read[1].is_some() {
                answers[*i] = Some(Err(already_cancelled()));
            } else if let Some(value) = &read[0] {
                answers[*i] = Some(decode(value).map(Output::Reservation).map_err(StepError::from));
            }
        }
        open.retain(|i| answers[*i].is_none());
        Ok(())
    }

    /// Chooses a trip for every open order in turn; also says for which there is none.
    async fn plan(
        &self,
        fleet: &Fleet,
        calendars: &mut Calendars,
        wishes: &[Wish],
        open: &[usize],
        since: u64,
    ) -> Result<(Vec<Planned>, Vec<usize>), StoreError> {
        let (mut planned, mut refused) = (Vec::with_capacity(open.len()), Vec::new());
        let mut rest = open;
        // Whoever finds the near ones taken asks for more and more at once, so that a full fleet is read in a few
        // round trips.
        let mut reach = FIRST_REACH;
        while let [order, others @ ..] = rest {
            match self.outlook(fleet, calendars, since, reach).choose(&wishes[*order]) {
                Ok(Some(trip)) => {
                    let changes = calendars.take(&trip.drone, trip.span, &wishes[*order].id);
                    planned.push(Planned { order: *order, trip, changes });
                }
                Ok(None) => refused.push(*order),
                Err(missing) => {
                    // One reading serves the orders that follow as well.
                    let outlook = self.outlook(fleet, calendars, since, reach);
                    let ahead = others.iter().filter_map(|i| outlook.choose(&wishes[*i]).err()).flatten();
                    let missing: Vec<Missing> = missing.into_iter().chain(ahead).collect();
                    if let Err(error) = self.load(calendars, missing).await {
                        planned.iter().for_each(|planned| calendars.forget(&planned.changes));
                        return Err(error);
                    }
                    reach = reach.saturating_mul(4);
                    continue;
                }
            }
            rest = others;
        }
        Ok((planned, refused))
    }

    /// Writes what was planned.
    async fn write(&self, wishes: &[Wish], planned: &[Planned]) -> Result<Vec<Outcome>, StoreError> {
        if planned.is_empty() {
            return Ok(Vec::new());
        }
        let txn = |planned: &Planned| {
            let id = &wishes[planned.order].id;
            let txn = Txn::new()
                .check(tomb(StepName::Drone, id), Expect::Absent)
                .check(resv(id), Expect::Absent)
                .put(resv(id), encode(&planned.trip.reservation()));
            planned.changes.iter().fold(txn, |txn, change| change.write(txn))
        };
        self.state.commit(planned.iter().map(txn).collect()).await
    }

    async fn load(&self, calendars: &mut Calendars, mut places: Vec<Missing>) -> Result<(), StoreError> {
        places.sort_unstable_by(|a, b| (&a.drone, a.bucket).cmp(&(&b.drone, b.bucket)));
        places.dedup();
        let keys: Vec<String> = places.iter().map(Missing::key).collect();
        for (place, value) in places.into_iter().zip(self.state.get(&keys).await?) {
            calendars.learn(place, value);
        }
        Ok(())
    }
}

impl Planned {
    fn answer(&self, answers: &mut Answers) {
        answers[self.order] = Some(Ok(Output::Reservation(self.trip.reservation())));
    }
}

/// Answers what was written and forgets what was not; says how many lost a race.
fn settle(
    planned: &[Planned],
    outcomes: Result<Vec<Outcome>, StoreError>,
    calendars: &mut Calendars,
    answers: &mut Answers,
) -> Result<usize, StoreError> {
    let outcomes = match outcomes {
        Ok(outcomes) => outcomes,
        Err(error) => {
            planned.iter().for_each(|planned| calendars.forget(&planned.changes));
            return Err(error);
        }
    };
    let mut lost = 0;
    for (planned, outcome) in planned.iter().zip(outcomes) {
        match outcome {
            Outcome::Done => planned.answer(answers),
            Outcome::Conflict => {
                calendars.forget(&planned.changes);
                lost += 1;
            }
        }
    }
    Ok(lost)
}

fn no_drone() -> StepError {
    let text = "no drone that can fly it is free in time for the deadline";
    StepError::Refused(Failure::new(ReasonCode::NoDroneBeforeDeadline, text))
}

#[async_trait(?Send)]
impl Service for DroneService {
    fn step(&self) -> StepName {
        StepName::Drone
    }

    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        let mut answers: Answers = orders.iter().map(|_| None).collect();
        match self.reserve(orders, &mut answers).await {
            Ok(()) => finish(answers, &contended()),
            Err(error) => finish(answers, &error.into()),
        }
    }

    async fn change(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        let mut answers = Vec::with_capacity(orders.len());
        for order in orders {
            answers.push(self.reschedule(order).await.map(Output::Reservation));
        }
        answers
    }

    async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>> {
        let ids: Vec<_> = orders.iter().map(|order| order.id.clone()).collect();
        self.withdraw(&ids).await
    }
}
