//! What is said to an agent and what it answers.

use std::sync::Arc;

use actix::prelude::*;
use serde::Serialize;

use crate::domain::time::Timestamp;
use crate::domain::workflow::Output;
use crate::domain::{DeliveryId, Failure, StepName};
use crate::services::Order;

/// To do a step, to do it otherwise than before, or to undo it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Call {
    Execute,
    Change,
    Cancel,
}

/// Orders for the agent. The answers come to `reply`, each when it is there; orders that no agent took, because it died
/// with them in its mailbox, answer [`Answer::Lost`] on their way out.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Orders {
    pub step: StepName,
    pub call: Call,
    pub orders: Vec<Order>,
    /// After this no further try is made.
    pub complete_by: Timestamp,
    /// Shared, because a recipient is not cheap to make or to clone.
    pub reply: Arc<Recipient<Answers>>,
}

impl Drop for Orders {
    fn drop(&mut self) {
        if !self.orders.is_empty() {
            let answers = self.orders.drain(..).map(|order| (order.id, Answer::Lost)).collect();
            self.reply.do_send(Answers { step: self.step, call: self.call, answers });
        }
    }
}

#[derive(Message)]
#[rtype(result = "()")]
pub struct Answers {
    pub step: StepName,
    pub call: Call,
    pub answers: Vec<(DeliveryId, Answer)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Done(Output),
    /// Not an end: a try failed and another follows.
    Retrying(Failure),
    /// Not an end: an operator holds the service back, and the order's time has begun anew.
    Held,
    Refused(Failure),
    /// The tries are used up; whether the step happened is not known.
    GaveUp(Failure),
    /// The agent died with it.
    Lost,
}

/// Stops calling the service, or goes on.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Pause(pub bool);

#[derive(Message)]
#[rtype(result = "Observed")]
pub struct Observe;

#[derive(Clone, Debug, Serialize, MessageResponse)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    pub service: StepName,
    pub breaker: &'static str,
    pub paused: bool,
    pub queued: usize,
    pub running: usize,
    pub retrying: usize,
    pub done: u64,
    pub refused: u64,
    pub gave_up: u64,
    pub failures: u64,
}
