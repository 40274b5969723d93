//! Step 5: the delivery entity, its way through the stages, and what its receiver confirms. It is made once and never
//! made anew, so a replay does not set its progress back. Undoing deletes it together with its place in the owner's
//! list; the tombstone is all that is left. One that is `Delivered` has its workflow completed.

use std::time::Duration;

use async_trait::async_trait;
use minicbor::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::completion::Completion;
use super::entities::{self, Page, Plan, all, already_cancelled, bury, change, decode, encode, exists, readable, tomb};
use super::{Order, Service, SharedSink, SharedState, StepError};
use crate::config::Settings;
use crate::demo::plan::{self, FlightPlan, Planner};
use crate::domain::status::{EventType, Stage, StatusEvent};
use crate::domain::time::{Timestamp, now};
use crate::domain::workflow::Output;
use crate::domain::{Confirmation, DeliveryId, Failure, Location, ReasonCode, StepName, compact};
use crate::store::{Expect, Outcome, Scan, StoreError, Txn};

/// How many confirmations and how many wishes to be told one delivery holds.
const MOST: usize = 16;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    #[n(0)]
    pub id: DeliveryId,
    #[n(1)]
    pub owner_id: String,
    #[n(2)]
    pub pickup_location: Location,
    #[n(3)]
    pub drop_off_location: Location,
    #[cbor(n(4), with = "compact::millis")]
    pub pickup_time: Timestamp,
    #[cbor(n(5), with = "compact::millis")]
    pub deadline: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(6)]
    pub drone_id: Option<String>,
    #[n(7)]
    pub expedited: bool,
    #[n(8)]
    pub confirmation_required: Confirmation,
    #[n(9)]
    pub stage: Stage,
    #[cbor(n(10), with = "compact::millis")]
    pub created_at: Timestamp,
    #[cbor(n(11), with = "compact::millis")]
    pub updated_at: Timestamp,
    #[cbor(n(12), default)]
    pub events: Vec<StageEvent>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cbor(n(13), default)]
    pub confirmations: Vec<Confirmed>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cbor(n(14), default)]
    pub notify_me: Vec<NotifyMe>,
    /// How it is flown where the demo flies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(15)]
    pub flight: Option<FlightPlan>,
}

/// When a delivery reached a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
pub struct StageEvent {
    #[cbor(n(0), with = "compact::millis")]
    pub at: Timestamp,
    #[n(1)]
    pub stage: Stage,
}

/// That the receiver confirmed the package's arrival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase")]
pub struct Confirmed {
    #[cbor(n(0), with = "compact::millis")]
    pub at: Timestamp,
    #[serde(rename = "type")]
    #[n(1)]
    pub kind: Confirmation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(2)]
    pub reference: Option<String>,
}

/// Who wants to be told when the delivery reaches a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NotifyMe {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(0)]
    pub email: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(1)]
    pub webhook: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[n(2)]
    pub stage: Option<Stage>,
}

/// What is to change of a delivery; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Patch {
    pub stage: Option<Stage>,
    pub pickup_location: Option<Location>,
    pub drop_off_location: Option<Location>,
    pub pickup_time: Option<Timestamp>,
    pub deadline: Option<Timestamp>,
    pub drone_id: Option<String>,
}

impl Delivery {
    fn of(order: &Order) -> Self {
        let (request, at) = (&order.request, now());
        Self {
            id: order.id.clone(),
            owner_id: request.owner_id.clone(),
            pickup_location: request.pickup_location,
            drop_off_location: request.drop_off_location,
            pickup_time: request.pickup_time,
            deadline: request.deadline,
            drone_id: order.reservation.as_ref().map(|reservation| reservation.drone_id.to_string()),
            expedited: request.expedited,
            confirmation_required: request.confirmation_required,
            stage: Stage::Created,
            created_at: at,
            updated_at: at,
            events: vec![StageEvent { at, stage: Stage::Created }],
            confirmations: Vec::new(),
            notify_me: Vec::new(),
            flight: None,
        }
    }

    /// Takes over what a changed order says of places, times and drone.
    fn follow(&mut self, order: &Order) {
        let Self { pickup_location, drop_off_location, pickup_time, deadline, drone_id, .. } = Self::of(order);
        *self = Self { pickup_location, drop_off_location, pickup_time, deadline, drone_id, ..self.clone() };
    }

    /// Goes on to a later stage; an earlier or the same one is nothing new.
    fn reach(&mut self, stage: Stage) {
        if stage > self.stage {
            self.stage = stage;
            self.events.push(StageEvent { at: now(), stage });
        }
    }

    /// Its member in the owner's list: sorts by the time it was made.
    fn listed(&self) -> String {
        format!("{:015}/{}", self.created_at.as_millisecond(), self.id)
    }

    /// What the status feed is told of stages reached.
    fn told(&self, reached: &[StageEvent]) -> impl Iterator<Item = StatusEvent<'static>> {
        reached.iter().map(|reached| {
            let event = StatusEvent::new(EventType::Stage, reached.at, self.id.clone(), self.owner_id.clone());
            StatusEvent { stage: Some(reached.stage), ..event }
        })
    }
}

fn key(id: &str) -> String {
    ["delivery/", id].concat()
}

fn list(owner: &str) -> String {
    ["owner/", owner].concat()
}

pub struct DeliveryService {
    state: SharedState,
    sink: SharedSink,
    tombstones: Duration,
    completion: Option<Completion>,
    planner: Option<Planner>,
}

impl DeliveryService {
    #[must_use]
    pub fn new(state: SharedState, sink: SharedSink, settings: &Settings) -> Self {
        Self { state, sink, tombstones: settings.retention.tombstones, completion: None, planner: None }
    }

    /// Has the workflow of what is delivered completed.
    #[must_use]
    pub fn completing(self, completion: Completion) -> Self {
        Self { completion: Some(completion), ..self }
    }

    /// Plans a simulated flight for every delivery that has a drone.
    #[must_use]
    pub fn flown_by(self, planner: Option<Planner>) -> Self {
        Self { planner, ..self }
    }

    /// # Errors
    /// When the store does not answer, or what it has is damaged.
    pub async fn get(&self, id: &DeliveryId) -> Result<Option<Delivery>, StepError> {
        entities::read(&*self.state, key(id.as_str())).await
    }

    /// Many at once, in the order of their ids; none for one that is not there or cannot be read.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn load(&self, ids: &[DeliveryId]) -> Result<Vec<Option<Delivery>>, StoreError> {
        let keys: Vec<String> = ids.iter().map(|id| key(id.as_str())).collect();
        let values = self.state.get(&keys).await?;
        Ok(keys.iter().zip(values).map(|(key, value)| readable(key, &value?)).collect())
    }

    /// Whether the delivery was cancelled.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn is_cancelled(&self, id: &DeliveryId) -> Result<bool, StoreError> {
        exists(&*self.state, tomb(StepName::Delivery, id)).await
    }

    /// An owner's deliveries, newest first.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn of_owner(
        &self,
        owner: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<Page<Delivery>, StoreError> {
        let scan = Scan { set: list(owner), after: after.map(Into::into), limit, backwards: true, ..Scan::default() };
        entities::page(&*self.state, scan, |member| key(member.split_once('/').map_or("", |(_, id)| id))).await
    }

    /// Brings the delivery to a later stage; an earlier or the same one changes nothing. `None` when there is no such
    /// delivery.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn advance(&self, id: &DeliveryId, stage: Stage) -> Result<Option<Delivery>, StepError> {
        let edit = |delivery: &mut Delivery| {
            delivery.reach(stage);
            Ok(())
        };
        self.edit(id, edit).await
    }

    /// Takes over the places, times and drone of a changed order.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn amend(&self, order: &Order) -> Result<Option<Delivery>, StepError> {
        self.edit(&order.id, |delivery| {
            let before = delivery.clone();
            delivery.follow(order);
            if *delivery != before {
                delivery.flight = self.planner.and_then(|planner| planner.plan(order, now()));
            }
            Ok(())
        })
        .await
    }

    /// Changes what a patch names.
    ///
    /// # Errors
    /// When the deadline would not be after the pickup, or the store does not answer.
    pub async fn patch(&self, id: &DeliveryId, patch: &Patch) -> Result<Option<Delivery>, StepError> {
        self.edit(id, |delivery| {
            delivery.pickup_location = patch.pickup_location.unwrap_or(delivery.pickup_location);
            delivery.drop_off_location = patch.drop_off_location.unwrap_or(delivery.drop_off_location);
            delivery.pickup_time = patch.pickup_time.unwrap_or(delivery.pickup_time);
            delivery.deadline = patch.deadline.unwrap_or(delivery.deadline);
            delivery.drone_id = patch.drone_id.clone().or(delivery.drone_id.take());
            patch.stage.into_iter().for_each(|stage| delivery.reach(stage));
            if delivery.deadline > delivery.pickup_time {
                Ok(())
            } else {
                Err(refused("the deadline is not after the pickup"))
            }
        })
        .await
    }

    /// Notes a confirmation.
    ///
    /// # Errors
    /// When it is not of the kind that the delivery asks for, there are too many, or the store does not answer.
    pub async fn confirm(&self, id: &DeliveryId, confirmed: &Confirmed) -> Result<Option<Delivery>, StepError> {
        self.edit(id, |delivery| {
            let required = delivery.confirmation_required;
            if confirmed.kind != required {
                return Err(refused(format!("the delivery asks for {required:?}, not {:?}", confirmed.kind)));
            }
            push(&mut delivery.confirmations, confirmed.clone())
        })
        .await
    }

    /// Notes who wants to be told of the delivery's stages.
    ///
    /// # Errors
    /// When there are too many, or the store does not answer.
    pub async fn notify_me(&self, id: &DeliveryId, wish: &NotifyMe) -> Result<Option<Delivery>, StepError> {
        self.edit(id, |delivery| push(&mut delivery.notify_me, wish.clone())).await
    }

    /// Brings deliveries through stages, in their order; those they are past change nothing. One that asks for a
    /// confirmation is confirmed on arrival by a simulated receiver.
    pub async fn fly(&self, flown: &[(DeliveryId, &[Stage])]) -> Vec<Result<Option<Delivery>, StepError>> {
        let fly = |(_, stages): &(DeliveryId, &[Stage]), delivery: &mut Delivery| {
            stages.iter().for_each(|stage| delivery.reach(*stage));
            let kind = delivery.confirmation_required;
            let open = delivery.stage == Stage::Delivered && delivery.confirmations.is_empty();
            if open && kind != Confirmation::None {
                let reference = Some("simulated".to_owned());
                delivery.confirmations.push(Confirmed { at: now(), kind, reference });
            }
            Ok(())
        };
        self.edit_all(flown, |(id, _)| id, fly).await
    }

    async fn edit(
        &self,
        id: &DeliveryId,
        edit: impl Fn(&mut Delivery) -> Result<(), StepError>,
    ) -> Result<Option<Delivery>, StepError> {
        let ids = std::slice::from_ref(id);
        super::one(self.edit_all(ids, |id| id, |_, delivery| edit(delivery)).await)
    }

    /// Changes deliveries. Stages they reach are told to the status feed, and what is delivered is completed.
    async fn edit_all<I>(
        &self,
        items: &[I],
        id: impl Fn(&I) -> &DeliveryId,
        edit: impl Fn(&I, &mut Delivery) -> Result<(), StepError>,
    ) -> Vec<Result<Option<Delivery>, StepError>> {
        let plan = |item: &I, read: &[Option<bytes::Bytes>]| {
            let Some(value) = &read[0] else { return Ok(Plan::Keep(None)) };
            let old: Delivery = decode(value)?;
            let mut new = old.clone();
            edit(item, &mut new)?;
            if new == old {
                return Ok(Plan::Keep(Some((old.events.len(), old))));
            }
            new.updated_at = now();
            let txn = Txn::new().put(key(new.id.as_str()), encode(&new));
            let txn = plan::replace(txn, &new.id, old.flight.as_ref(), new.flight.as_ref());
            Ok(Plan::Write(txn, Some((old.events.len(), new))))
        };
        let changed = change(&*self.state, items, |item| vec![key(id(item).as_str())], plan).await;
        let tell = |(before, delivery): (usize, Delivery)| {
            delivery.told(&delivery.events[before..]).for_each(|event| self.sink.emit(event));
            delivery
        };
        let mut answers: Vec<_> = changed.into_iter().map(|changed| changed.map(|changed| changed.map(tell))).collect();
        if let Some(completion) = &self.completion {
            completion.settle(&mut answers).await;
        }
        answers
    }

    /// Deletes the deliveries and refuses them from now on.
    pub async fn withdraw(&self, ids: &[DeliveryId]) -> Vec<Result<(), StepError>> {
        let keys = |id: &DeliveryId| vec![key(id.as_str())];
        let undo = |id: &DeliveryId, read: &[Option<bytes::Bytes>]| {
            let txn = bury(Txn::new(), StepName::Delivery, id, self.tombstones);
            let Some(value) = &read[0] else { return Ok(Plan::Write(txn, None)) };
            let mut delivery: Delivery = decode(value)?;
            let txn = txn.delete(key(id.as_str())).remove(list(&delivery.owner_id), delivery.listed());
            let txn = plan::replace(txn, id, delivery.flight.as_ref(), None);
            delivery.events = vec![StageEvent { at: now(), stage: Stage::Cancelled }];
            Ok(Plan::Write(txn, Some(delivery)))
        };
        let tell = |gone: Option<Delivery>| {
            gone.into_iter().for_each(|gone| gone.told(&gone.events).for_each(|event| self.sink.emit(event)));
        };
        change(&*self.state, ids, keys, undo).await.into_iter().map(|gone| gone.map(tell)).collect()
    }

    /// Deletes deliveries that are long over, without a word to anybody.
    ///
    /// # Errors
    /// When the store does not answer.
    pub async fn forget(&self, ids: &[&DeliveryId]) -> Result<(), StepError> {
        let keys = |id: &&DeliveryId| vec![key(id.as_str())];
        let forgotten = change(&*self.state, ids, keys, |id, read| {
            let Some(value) = &read[0] else { return Ok(Plan::Keep(())) };
            let txn = Txn::new().delete(key(id.as_str()));
            // What leads to one that cannot be read stays behind, and leads nowhere.
            let Some(delivery) = readable::<Delivery>(&key(id.as_str()), value) else {
                return Ok(Plan::Write(txn, ()));
            };
            let txn = txn.remove(list(&delivery.owner_id), delivery.listed());
            Ok(Plan::Write(plan::replace(txn, id, delivery.flight.as_ref(), None), ()))
        });
        forgotten.await.into_iter().collect()
    }

    /// Who was not created is there already, or was cancelled.
    async fn settle_known(
        &self,
        orders: &[Order],
        known: &[usize],
        answers: &mut [Result<Output, StepError>],
    ) -> Result<(), StoreError> {
        let keys: Vec<String> = known.iter().map(|i| tomb(StepName::Delivery, &orders[*i].id)).collect();
        for (i, buried) in known.iter().zip(self.state.get(&keys).await?) {
            if buried.is_some() {
                answers[*i] = Err(already_cancelled());
            }
        }
        Ok(())
    }

    async fn create(&self, orders: &[Order]) -> Result<Vec<Result<Output, StepError>>, StoreError> {
        let made = |order: &Order| {
            let delivery = Delivery::of(order);
            let flight = self.planner.and_then(|planner| planner.plan(order, delivery.created_at));
            Delivery { flight, ..delivery }
        };
        let deliveries: Vec<Delivery> = orders.iter().map(made).collect();
        let txn = |delivery: &Delivery| {
            let key = key(delivery.id.as_str());
            let txn = Txn::new()
                .check(tomb(StepName::Delivery, &delivery.id), Expect::Absent)
                .check(key.clone(), Expect::Absent)
                .put(key, encode(delivery))
                .add(list(&delivery.owner_id), delivery.listed());
            plan::replace(txn, &delivery.id, None, delivery.flight.as_ref())
        };
        let outcomes = self.state.commit(deliveries.iter().map(txn).collect()).await?;
        let mut known = Vec::new();
        // That it was made is told by the scheduler, in its place among the changes of the workflow.
        for (i, outcome) in outcomes.into_iter().enumerate() {
            if outcome == Outcome::Conflict {
                known.push(i);
            }
        }
        let mut answers = orders.iter().map(|_| Ok(Output::Nothing)).collect::<Vec<_>>();
        if !known.is_empty() {
            self.settle_known(orders, &known, &mut answers).await?;
        }
        Ok(answers)
    }
}

fn refused(text: impl Into<String>) -> StepError {
    StepError::Refused(Failure::new(ReasonCode::ServiceRefused, text))
}

fn push<T: PartialEq>(items: &mut Vec<T>, item: T) -> Result<(), StepError> {
    if items.contains(&item) {
        return Ok(());
    }
    if items.len() == MOST {
        return Err(refused(format!("a delivery holds {MOST} of these at most")));
    }
    items.push(item);
    Ok(())
}

#[async_trait(?Send)]
impl Service for DeliveryService {
    fn step(&self) -> StepName {
        StepName::Delivery
    }

    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        self.create(orders).await.unwrap_or_else(|error| all(orders.len(), &error.into()))
    }

    async fn change(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        let mut answers = Vec::with_capacity(orders.len());
        for order in orders {
            answers.push(self.amend(order).await.map(|_| Output::Nothing));
        }
        answers
    }

    async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>> {
        let ids: Vec<_> = orders.iter().map(|order| order.id.clone()).collect();
        self.withdraw(&ids).await
    }
}
