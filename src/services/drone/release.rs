//! Giving a drone's time back, and moving a reservation to another time in one step.

use super::calendar::{NotFreed, Span, merge};
use super::*;
use crate::services::entities::Damaged;

impl Reserved {
    fn of(reservation: &Reservation) -> Self {
        let second = |time: crate::domain::time::Timestamp| time.as_millisecond().div_euclid(1000);
        let span = Span { from: second(reservation.from), until: second(reservation.until) };
        Self { drone: reservation.drone_id.clone(), span }
    }
}

/// The part of a reservation that the calendar has.
struct Reserved {
    drone: Arc<str>,
    span: Span,
}

/// Why a reservation's time could not be freed: of what is damaged another delivery does not hear.
enum NotDone {
    Damaged(Damaged),
    Away(StoreError),
}

impl From<NotDone> for StepError {
    fn from(not_done: NotDone) -> Self {
        match not_done {
            NotDone::Damaged(damaged) => damaged.into(),
            NotDone::Away(error) => error.into(),
        }
    }
}

impl DroneService {
    /// Frees the time of the deliveries' reservations and refuses them from now on.
    pub async fn withdraw(&self, ids: &[DeliveryId]) -> Vec<Result<(), StepError>> {
        let mut answers: Vec<Option<Result<(), StepError>>> = ids.iter().map(|_| None).collect();
        let mut calendars = self.calendars.lock().await;
        calendars.begin(self.cached);
        for round in 0..ROUNDS {
            let open: Vec<usize> = (0..ids.len()).filter(|i| answers[*i].is_none()).collect();
            if open.is_empty() {
                break;
            }
            pause(round).await;
            if let Err(error) = self.release_once(&mut calendars, ids, &open, &mut answers).await {
                return finish(answers, &error.into());
            }
        }
        finish(answers, &contended())
    }

    async fn release_once(
        &self,
        calendars: &mut Calendars,
        ids: &[DeliveryId],
        open: &[usize],
        answers: &mut [Option<Result<(), StepError>>],
    ) -> Result<(), StoreError> {
        let keys: Vec<String> = open.iter().map(|i| resv(&ids[*i])).collect();
        let values = self.state.get(&keys).await?;
        let mut freed: Vec<(usize, Vec<Change>)> = Vec::with_capacity(open.len());
        let mut txns = Vec::with_capacity(open.len());
        for (i, value) in open.iter().zip(values) {
            let id = &ids[*i];
            let changes = match self.free_held(calendars, value.as_ref(), id).await {
                Ok(changes) => changes,
                // What is damaged holds up only those that it concerns.
                Err(NotDone::Damaged(error)) => {
                    answers[*i] = Some(Err(error.into()));
                    continue;
                }
                Err(NotDone::Away(error)) => {
                    freed.iter().for_each(|(_, changes)| calendars.forget(changes));
                    return Err(error);
                }
            };
            let txn = Txn::new().check(resv(id), value.map_or(Expect::Absent, Expect::Is)).delete(resv(id));
            txns.push(
                changes.iter().fold(bury(txn, StepName::Drone, id, self.tombstones), |txn, change| change.write(txn)),
            );
            freed.push((*i, changes));
        }
        let outcomes = self.state.commit(txns).await;
        for (i, (order, changes)) in freed.iter().enumerate() {
            match &outcomes {
                Ok(outcomes) if outcomes.get(i) == Some(&Outcome::Done) => answers[*order] = Some(Ok(())),
                _ => calendars.forget(changes),
            }
        }
        outcomes.map(drop)
    }

    async fn free_held(
        &self,
        calendars: &mut Calendars,
        reservation: Option<&bytes::Bytes>,
        id: &DeliveryId,
    ) -> Result<Vec<Change>, NotDone> {
        let Some(value) = reservation else { return Ok(Vec::new()) };
        let held = Reserved::of(&decode(value).map_err(NotDone::Damaged)?);
        self.free(calendars, &held, id).await
    }

    /// Frees a reservation's time in memory, reading its buckets first if need be.
    async fn free(&self, calendars: &mut Calendars, held: &Reserved, id: &DeliveryId) -> Result<Vec<Change>, NotDone> {
        loop {
            match calendars.free(&held.drone, held.span, id) {
                Ok(changes) => return Ok(changes),
                Err(NotFreed::Missing(places)) => self.load(calendars, places).await.map_err(NotDone::Away)?,
                Err(NotFreed::Damaged(place)) => return Err(NotDone::Damaged(Damaged(place.key()))),
            }
        }
    }

    /// Moves the order's reservation to what its request and route say now: the old time is freed and the new one
    /// taken in one transaction, or everything stays as it was. An order without a reservation gets one.
    ///
    /// # Errors
    /// When there is no drone for the new times, the delivery was cancelled, what it holds is damaged, or the store does not
    /// answer.
    pub async fn reschedule(&self, order: &Order) -> Result<Reservation, StepError> {
        let fleet = self.fleet.current().await?;
        let wish = Wish::new(order, self.resolution);
        let mut calendars = self.calendars.lock().await;
        let call = calendars.begin(self.cached);
        for round in 0..ROUNDS {
            pause(round).await;
            let read = self.state.get(&[resv(&wish.id), tomb(StepName::Drone, &wish.id)]).await?;
            if read[1].is_some() {
                return Err(already_cancelled());
            }
            let held = read[0].as_ref().map(|value| decode(value)).transpose()?.as_ref().map(Reserved::of);
            let Some((trip, changes)) = self.replan(&fleet, &mut calendars, &wish, held, call).await? else {
                return Err(no_drone());
            };
            let txn = Txn::new()
                .check(tomb(StepName::Drone, &wish.id), Expect::Absent)
                .check(resv(&wish.id), read[0].clone().map_or(Expect::Absent, Expect::Is))
                .put(resv(&wish.id), encode(&trip.reservation()));
            let txn = changes.iter().fold(txn, |txn, change| change.write(txn));
            match self.state.commit(vec![txn]).await {
                Ok(outcomes) if outcomes.first() == Some(&Outcome::Done) => return Ok(trip.reservation()),
                Ok(_) => calendars.forget(&changes),
                Err(error) => {
                    calendars.forget(&changes);
                    return Err(error.into());
                }
            }
        }
        Err(contended())
    }

    /// Chooses a trip as if the reservation held now were free. What is not to be written is not left in memory.
    async fn replan(
        &self,
        fleet: &Fleet,
        calendars: &mut Calendars,
        wish: &Wish,
        held: Option<Reserved>,
        since: u64,
    ) -> Result<Option<(Trip, Vec<Change>)>, StepError> {
        let mut reach = FIRST_REACH;
        loop {
            let freed = match &held {
                Some(held) => self.free(calendars, held, &wish.id).await?,
                None => Vec::new(),
            };
            match self.outlook(fleet, calendars, since, reach).choose(wish) {
                Ok(Some(trip)) => {
                    let taken = calendars.take(&trip.drone, trip.span, &wish.id);
                    return Ok(Some((trip, merge(freed, taken))));
                }
                Ok(None) => {
                    calendars.restore(&freed);
                    return Ok(None);
                }
                Err(missing) => {
                    calendars.restore(&freed);
                    self.load(calendars, missing).await?;
                    reach = reach.saturating_mul(4);
                }
            }
        }
    }
}
