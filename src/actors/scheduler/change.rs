//! Moving a scheduled delivery to other times or places: all of it takes effect, or everything is as it was.
//!
//! The services that the plan touches are asked in turn to change to the new order: transport, drone (which gives the
//! old time up and takes the new one in one transaction), delivery. When one refuses, those before it are asked to
//! change back to the old order. Each change is idempotent, so after a crash the operation is read again and done from
//! the start; the record names the changes that were applied or refused, so that none is done twice.

use std::sync::Arc;

use actix::prelude::*;

use super::{Active, Change, LOST_PAUSE, Ready, Scheduler, Told, order_of};
use crate::actors::agent::Answer;
use crate::domain::operation::Reschedule;
use crate::domain::time::{Timestamp, later, now};
use crate::domain::workflow::{Event, Output, Reservation, Route};
use crate::domain::{DeliveryId, DeliveryRequest, Failure, ReasonCode, Status, StepName};
use crate::services::Order;

/// The services that a change of plan touches, in order.
const TOUCHED: [StepName; 3] = [StepName::Transport, StepName::Drone, StepName::Delivery];

/// A change of plan under way.
pub(super) struct Changing {
    change: String,
    request: Arc<DeliveryRequest>,
    route: Option<Route>,
    reservation: Option<Reservation>,
    /// Which of the touched services is asked.
    turn: usize,
    /// Why it is being taken back.
    refused: Option<Failure>,
    /// What the drone had moved to by then.
    moved: Option<Reservation>,
}

/// What follows an answer.
#[derive(Debug, PartialEq)]
enum Turn {
    /// The service in turn is asked.
    Ask,
    /// The same one is asked again, after a pause.
    Again,
    /// The agent goes on with it.
    Wait,
    /// The same, and its time begins anew.
    Held,
    Ended,
}

impl Changing {
    pub(super) fn step(&self) -> StepName {
        TOUCHED[self.turn]
    }

    /// From here on the change is taken back.
    fn refuse(&mut self, failure: Failure) {
        self.refused = Some(failure);
        self.moved = self.reservation.take();
    }

    fn hear(&mut self, answer: Answer) -> Turn {
        let ended = match (answer, self.refused.is_some()) {
            (Answer::Done(output), reverting) => {
                match output {
                    Output::Route(route) => self.route = Some(route),
                    Output::Reservation(reservation) => self.reservation = Some(reservation),
                    Output::Nothing => {}
                }
                if reverting { self.step_back() } else { self.step_on() }
            }
            (Answer::Refused(failure), false) => {
                self.refuse(failure);
                self.step_back()
            }
            // It may have changed: this one is to change back too.
            (Answer::GaveUp(failure), false) => {
                self.refuse(failure);
                false
            }
            // What was given up is somebody else's by now, or what is there is damaged, and would be however often it is
            // asked for. The service stays as it is, which the record says of the drone; the others change back.
            (Answer::Refused(failure), true) => {
                tracing::error!(
                    change = self.change,
                    service = self.step().as_str(),
                    ?failure,
                    "cannot be changed back"
                );
                if self.step() == StepName::Drone {
                    self.reservation = self.moved.take();
                }
                self.step_back()
            }
            (Answer::Retrying(_), _) => return Turn::Wait,
            (Answer::Held, _) => return Turn::Held,
            // What is half-changed must be changed back, however long it takes.
            (Answer::Lost, _) | (Answer::GaveUp(_), true) => return Turn::Again,
        };
        if ended { Turn::Ended } else { Turn::Ask }
    }

    /// Goes on to the next service; true when there is none.
    fn step_on(&mut self) -> bool {
        self.turn += 1;
        self.turn == TOUCHED.len()
    }

    /// Goes back to the service before; true when there is none.
    fn step_back(&mut self) -> bool {
        let first = self.turn == 0;
        self.turn = self.turn.saturating_sub(1);
        first
    }
}

impl Active {
    /// Begins a change, unless there is nothing to change or it was done before.
    pub(super) fn begin_change(&mut self, wish: &Reschedule) {
        let Some(record) = &self.record else { return };
        let workflow = &record.workflow;
        if workflow.status != Status::Scheduled || workflow.changes.contains(&wish.change) {
            return;
        }
        self.changing = Some(Changing {
            change: wish.change.clone(),
            request: Arc::new(wish.applied_to(&workflow.request)),
            route: None,
            reservation: None,
            turn: 0,
            refused: None,
            moved: None,
        });
    }

    /// What the service in turn is asked: the new order, or the old one when the change is taken back.
    fn change_order(&self) -> Option<(StepName, Order)> {
        let (record, changing) = (self.record.as_ref()?, self.changing.as_ref()?);
        let old = order_of(&record.workflow);
        let order = if changing.refused.is_some() {
            old
        } else {
            Order {
                request: changing.request.clone(),
                route: changing.route.clone(),
                reservation: changing.reservation.clone().or(old.reservation),
                ..old
            }
        };
        Some((changing.step(), order))
    }

    /// Folds the change, or its refusal, into the record.
    fn end_change(&mut self, at: Timestamp) {
        let (Some(changing), Some(record)) = (self.changing.take(), &self.record) else { return };
        let event = match (changing.refused, changing.route, changing.reservation) {
            (None, Some(route), Some(reservation)) => {
                Event::Rescheduled { change: changing.change, request: changing.request, route, reservation }
            }
            (refused, _, reservation) => {
                let missing = || Failure::new(ReasonCode::ServiceRefused, "no route or no reservation");
                let failure = refused.unwrap_or_else(missing);
                Event::ChangeRefused { change: changing.change, failure, reservation }
            }
        };
        let status = record.workflow.status;
        self.apply(event, at);
        // The status stays, but those who watch want to know that the plan is another, or is not.
        self.changes.push(Change { at, what: Told::Status(status) });
    }
}

impl Scheduler {
    pub(super) fn go_on_changing(&mut self, id: &DeliveryId, ready: &mut Ready) {
        let Some(active) = self.active.get_mut(id) else { return };
        if let Some((step, order)) = active.change_order() {
            ready.change(step, order, active.complete_by);
        }
    }

    pub(super) fn change_answered(&mut self, id: &DeliveryId, answer: Answer, ready: &mut Ready) -> Option<DeliveryId> {
        let active = self.active.get_mut(id)?;
        let changing = active.changing.as_mut()?;
        match changing.hear(answer) {
            Turn::Ask => self.go_on_changing(id, ready),
            Turn::Wait => {}
            Turn::Held => active.begin_anew(later(now(), self.parts.complete_by)),
            Turn::Again => {
                active.complete_by = later(now(), self.parts.complete_by);
                return Some(id.clone());
            }
            Turn::Ended => {
                active.end_change(now());
                self.through.push(id.clone());
            }
        }
        None
    }

    /// Asks again, after a pause, those whose agent died or who could not be changed back.
    pub(super) fn change_again(ids: Vec<DeliveryId>, ctx: &mut Context<Self>) {
        if !ids.is_empty() {
            ctx.run_later(LOST_PAUSE, move |me, ctx| {
                let mut ready = Ready::default();
                for id in &ids {
                    me.go_on_changing(id, &mut ready);
                }
                me.order(ready, ctx);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::request::samples;
    use crate::domain::time::from_millis;

    fn changing() -> Changing {
        let (change, request) = ("c".to_owned(), Arc::new(samples::request()));
        Changing { change, request, route: None, reservation: None, turn: 0, refused: None, moved: None }
    }

    fn reservation(drone: &str) -> Reservation {
        let at = from_millis(0);
        Reservation { drone_id: drone.into(), from: at, until: at, pickup_at: at, drop_off_at: at }
    }

    fn failure() -> Failure {
        Failure::new(ReasonCode::NoDroneBeforeDeadline, "")
    }

    /// Transport and drone have moved, and the delivery did not answer.
    fn half_changed() -> Changing {
        let mut changing = changing();
        assert_eq!(changing.hear(Answer::Done(Output::Nothing)), Turn::Ask);
        assert_eq!(changing.hear(Answer::Done(Output::Reservation(reservation("new")))), Turn::Ask);
        assert_eq!(changing.hear(Answer::GaveUp(failure())), Turn::Ask);
        assert_eq!(changing.step(), StepName::Delivery, "it may have changed");
        changing
    }

    #[test]
    fn what_is_half_changed_changes_back_step_by_step() {
        let mut changing = half_changed();
        assert_eq!(changing.hear(Answer::GaveUp(failure())), Turn::Again, "however long it takes");
        assert_eq!(changing.hear(Answer::Done(Output::Nothing)), Turn::Ask);
        assert_eq!(changing.hear(Answer::Done(Output::Reservation(reservation("old")))), Turn::Ask);
        assert_eq!(changing.hear(Answer::Done(Output::Nothing)), Turn::Ended);
        assert_eq!(changing.reservation, Some(reservation("old")));
    }

    /// The old time is taken by now. To ask for it again and again would hold up the partition for ever.
    #[test]
    fn a_drone_that_cannot_change_back_keeps_what_it_has() {
        let mut changing = half_changed();
        changing.hear(Answer::Done(Output::Nothing));
        assert_eq!(changing.hear(Answer::Refused(failure())), Turn::Ask);
        assert_eq!(changing.step(), StepName::Transport);
        assert_eq!(changing.hear(Answer::Done(Output::Nothing)), Turn::Ended);
        assert_eq!(changing.reservation, Some(reservation("new")));
        assert!(changing.refused.is_some());
    }
}
