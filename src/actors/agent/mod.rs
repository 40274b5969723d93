//! The supervised actor in front of one backend service: one for each of the five.
//!
//! It gathers the orders that wait into one call of the service: while a call is under way few orders wait for more, and
//! go out with the next one. It bounds the calls at once, gives each a time-out ([`mod@calls`]), tries failures that may
//! pass again with growing, jittered pauses, and stops calling for a while when nothing but failures comes back (the
//! circuit breaker). All of it ends at the order's complete-by.
//!
//! Every order gets an answer. When the agent itself dies, what it held is dropped, and each dropped order answers
//! [`Answer::Lost`] on its way out: the one who sent it sends it again to the agent's successor. That is safe because
//! services are idempotent. A time-out or a failure that lasted is an unknown outcome, not a failure: the call may
//! have had its effect, so the step is undone like one that was done.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll, Waker};
use std::time::{Duration, Instant};

use actix::prelude::*;

use self::calls::{Batch, Calls};
use super::backoff::Backoff;
use super::lifeline::Lifeline;
use super::slot::Slot;
use crate::alerts::{AlertKind, Alerts};
use crate::config;
use crate::domain::time::{Timestamp, later, now};
use crate::domain::workflow::Output;
use crate::domain::{DeliveryId, Failure, ReasonCode, StepName};
use crate::services::{Order, Service, StepError};

mod calls;
mod messages;
#[cfg(test)]
mod tests;

pub use messages::{Answer, Answers, Call, Observe, Observed, Orders, Pause};

/// No order that was held back has less time than this.
const SHORTEST: Duration = Duration::from_secs(1);

/// Less than this part of a whole batch is few.
const FEW: usize = 4;
/// Few orders wait this long for a call that is under way, or until the next look: it may be one that hangs.
const PATIENCE: Duration = Duration::from_millis(20);

/// One order that waits for its call.
struct Pending {
    order: Order,
    ticket: Ticket,
}

/// What the agent keeps of an order while the service has it.
struct Ticket {
    id: DeliveryId,
    call: Call,
    attempts: u32,
    complete_by: Timestamp,
    /// What it had until then when it came.
    time: Duration,
    step: StepName,
    reply: Option<Sender>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            let answers = vec![(self.id.clone(), Answer::Lost)];
            reply.do_send(Answers { step: self.step, call: self.call, answers });
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Breaker {
    Closed {
        failures: u32,
    },
    Open {
        until: Instant,
    },
    /// One call is let through to see whether the service is back.
    Trying,
}

pub struct Agent {
    settings: config::Agent,
    queues: [VecDeque<Pending>; 3],
    breaker: Breaker,
    calls: Calls,
    /// Wakes whoever polls the calls.
    poll_calls: Option<Waker>,
    /// When the last call was begun.
    called: Instant,
    seen: Observed,
    alerts: Alerts,
    lifeline: Lifeline,
}

impl Agent {
    #[must_use]
    pub fn new(service: Arc<dyn Service>, settings: config::Agent, alerts: Alerts, lifeline: Lifeline) -> Self {
        let seen = Observed {
            service: service.step(),
            breaker: "closed",
            paused: false,
            queued: 0,
            running: 0,
            retrying: 0,
            done: 0,
            refused: 0,
            gave_up: 0,
            failures: 0,
        };
        let breaker = Breaker::Closed { failures: 0 };
        Self {
            calls: Calls::new(service, settings.timeout),
            settings,
            queues: Default::default(),
            breaker,
            poll_calls: None,
            called: Instant::now(),
            seen,
            alerts,
            lifeline,
        }
    }

    /// Starts calls while orders wait and a call is free.
    fn pump(&mut self) {
        while !self.seen.paused && self.calls_under_way() < self.settings.concurrency && self.may_call() {
            let Some(batch) = self.gather() else { return };
            if matches!(self.breaker, Breaker::Open { .. }) {
                self.breaker = Breaker::Trying;
            }
            self.called = Instant::now();
            self.seen.running += batch.orders.len();
            self.calls.begin(batch);
            self.poll_calls.iter().for_each(Waker::wake_by_ref);
        }
    }

    /// Orders that are calls of their own count as such, also where they get to the service together.
    fn calls_under_way(&self) -> usize {
        if self.calls.max_batch() == 1 { self.seen.running } else { self.calls.under_way() }
    }

    /// Hears of calls that have come to their end.
    fn poll_calls(&mut self, ctx: &mut Context<Self>, task: &mut task::Context<'_>) -> Poll<()> {
        self.poll_calls = Some(task.waker().clone());
        let mut replies = Replies::of(self.seen.service);
        while let Poll::Ready(Some((batch, results))) = self.calls.poll(task) {
            self.seen.running -= batch.orders.len();
            self.settle(batch, results, &mut replies, ctx);
            self.pump();
        }
        Poll::Pending
    }

    fn may_call(&self) -> bool {
        match self.breaker {
            Breaker::Closed { .. } => true,
            Breaker::Open { until } => Instant::now() >= until,
            Breaker::Trying => false,
        }
    }

    /// The orders of the next call, when they are worth one: to undo goes before to do, since it frees what others
    /// wait for.
    fn gather(&mut self) -> Option<Batch> {
        let queue = self.queues.iter_mut().rev().find(|q| !q.is_empty())?;
        let most = self.settings.batch.min(self.calls.max_batch()).max(1);
        let few = self.seen.queued < most.div_ceil(FEW);
        if few && self.calls.under_way() > 0 && self.called.elapsed() < PATIENCE {
            return None;
        }
        let call = queue.front()?.ticket.call;
        let (orders, tickets) = queue.drain(..queue.len().min(most)).map(|p| (p.order, p.ticket)).unzip();
        let batch = Batch { call, orders, tickets };
        self.seen.queued -= batch.orders.len();
        Some(batch)
    }

    fn settle(
        &mut self,
        batch: Batch,
        results: Vec<Result<Output, StepError>>,
        replies: &mut Replies,
        ctx: &mut Context<Self>,
    ) {
        let failed = results.iter().all(|r| matches!(r, Err(StepError::Transient(_))));
        self.count_call(failed);
        let orders = batch.orders.into_iter().zip(batch.tickets);
        for ((order, mut ticket), result) in orders.zip(results) {
            let answer = match result {
                Ok(output) => {
                    self.seen.done += 1;
                    Answer::Done(output)
                }
                Err(StepError::Refused(failure)) => {
                    self.seen.refused += 1;
                    Answer::Refused(failure)
                }
                Err(StepError::Transient(text)) => {
                    self.seen.failures += 1;
                    let failure = Failure::new(ReasonCode::ServiceUnavailable, text);
                    if let Some(pause) = self.pause_before_retry(&ticket) {
                        if let Some(reply) = &ticket.reply {
                            replies.push(reply, ticket.call, order.id.clone(), Answer::Retrying(failure));
                        }
                        self.retry(Pending { order, ticket }, pause, ctx);
                        continue;
                    }
                    self.seen.gave_up += 1;
                    Answer::GaveUp(failure)
                }
            };
            if let Some(reply) = ticket.reply.take() {
                replies.push(&reply, ticket.call, order.id, answer);
            }
        }
    }

    fn count_call(&mut self, failed: bool) {
        let failures = match (self.breaker, failed) {
            (_, false) => 0,
            (Breaker::Closed { failures }, true) => failures + 1,
            (_, true) => self.settings.breaker_failures,
        };
        let subject = self.seen.service.as_str();
        if failures >= self.settings.breaker_failures {
            let until = Instant::now() + self.settings.breaker_open;
            self.alerts.raise(AlertKind::BreakerOpen, subject, "nothing but failures; calls are held back for a while");
            self.breaker = Breaker::Open { until };
        } else {
            if !matches!(self.breaker, Breaker::Closed { .. }) {
                self.alerts.clear(AlertKind::BreakerOpen, subject);
            }
            self.breaker = Breaker::Closed { failures };
        }
    }

    /// None when there is no further try: all are used up, or the next would begin too late. What an operator holds back is
    /// never late: it joins what is queued, and has its time anew.
    fn pause_before_retry(&self, ticket: &Ticket) -> Option<Duration> {
        if ticket.attempts >= self.settings.attempts {
            return None;
        }
        if self.seen.paused {
            return Some(Duration::ZERO);
        }
        let backoff = Backoff { first: self.settings.backoff, longest: self.settings.max_backoff };
        Some(backoff.pause(ticket.attempts)).filter(|pause| later(now(), *pause) < ticket.complete_by)
    }

    fn retry(&mut self, mut pending: Pending, pause: Duration, ctx: &mut Context<Self>) {
        pending.ticket.attempts += 1;
        self.seen.retrying += 1;
        ctx.run_later(pause, move |me, _| {
            me.seen.retrying -= 1;
            me.enqueue(pending);
            me.pump();
        });
    }

    fn enqueue(&mut self, pending: Pending) {
        self.seen.queued += 1;
        self.queues[pending.ticket.call as usize].push_back(pending);
    }

    /// What an operator holds back is not late by its own fault: its time begins anew, and the sender is told, so that
    /// nobody else takes it for abandoned and what follows has its time, too.
    fn hold(&mut self, is_meant: impl Fn(&Ticket) -> bool) {
        let at = now();
        let held = self.queues.iter_mut().flatten().map(|pending| &mut pending.ticket);
        for ticket in held.filter(|ticket| is_meant(ticket)) {
            ticket.complete_by = later(at, ticket.time);
            if let Some(reply) = &ticket.reply {
                let answers = vec![(ticket.id.clone(), Answer::Held)];
                reply.do_send(Answers { step: ticket.step, call: ticket.call, answers });
            }
        }
    }

    /// What waits past its complete-by behind an open breaker or a slow service is given up.
    fn sweep(&mut self) {
        let at = now();
        if self.seen.paused {
            self.hold(|ticket| ticket.complete_by < at);
            return;
        }
        let mut late = Vec::new();
        for queue in &mut self.queues {
            if queue.iter().any(|p| p.ticket.complete_by < at) {
                let (over, kept): (Vec<_>, Vec<_>) = queue.drain(..).partition(|p| p.ticket.complete_by < at);
                queue.extend(kept);
                late.extend(over);
            }
        }
        self.seen.queued -= late.len();
        self.seen.gave_up += late.len() as u64;
        let mut replies = Replies::of(self.seen.service);
        for Pending { order, mut ticket } in late {
            if let Some(reply) = ticket.reply.take() {
                let text = "the service could not be called before the time was up";
                let answer = Answer::GaveUp(Failure::new(ReasonCode::ServiceUnavailable, text));
                replies.push(&reply, ticket.call, order.id, answer);
            }
        }
        drop(replies);
        self.pump();
    }
}

/// Who sent orders, and gets their answers.
type Sender = Arc<Recipient<Answers>>;

/// Answers, gathered so that all that come together go out together: calls may be of one order each. They go out when this
/// is dropped, also by a panic in a call that was asked after them.
struct Replies {
    step: StepName,
    messages: Vec<(Sender, Answers)>,
}

impl Replies {
    fn of(step: StepName) -> Self {
        Self { step, messages: Vec::new() }
    }

    fn push(&mut self, reply: &Sender, call: Call, id: DeliveryId, answer: Answer) {
        let is_for_it = |known: &Sender| Arc::ptr_eq(known, reply) || known == reply;
        // There are few, and runs of orders are from the same.
        match self.messages.iter_mut().rev().find(|(known, message)| message.call == call && is_for_it(known)) {
            Some((_, message)) => message.answers.push((id, answer)),
            None => self.messages.push((reply.clone(), Answers { step: self.step, call, answers: vec![(id, answer)] })),
        }
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.messages.drain(..).for_each(|(reply, message)| reply.do_send(message));
    }
}

/// All calls of an agent. An actor's context polls all of its futures when one of them wakes it, and there may be hundreds
/// of calls: so they are one of its futures, which knows whom to poll.
struct PollCalls;

impl ActorFuture<Agent> for PollCalls {
    type Output = ();
    fn poll(
        self: Pin<&mut Self>,
        agent: &mut Agent,
        ctx: &mut Context<Agent>,
        task: &mut task::Context<'_>,
    ) -> Poll<()> {
        agent.poll_calls(ctx, task)
    }
}

impl Actor for Agent {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.lifeline.bind(ctx);
        ctx.spawn(PollCalls);
        ctx.run_interval(Duration::from_millis(100), |me, _| me.sweep());
    }
}

impl Handler<Orders> for Agent {
    type Result = ();
    fn handle(&mut self, mut orders: Orders, _: &mut Context<Self>) {
        let (call, complete_by) = (orders.call, orders.complete_by);
        let time = Duration::try_from(complete_by.duration_since(now())).unwrap_or_default().max(SHORTEST);
        for order in std::mem::take(&mut orders.orders) {
            let (id, step, reply) = (order.id.clone(), self.seen.service, Some(orders.reply.clone()));
            self.enqueue(Pending { order, ticket: Ticket { id, call, attempts: 1, complete_by, time, step, reply } });
        }
        self.pump();
    }
}

impl Handler<Pause> for Agent {
    type Result = ();
    fn handle(&mut self, Pause(paused): Pause, _: &mut Context<Self>) {
        if self.seen.paused && !paused {
            self.hold(|_| true);
        }
        self.seen.paused = paused;
        self.pump();
    }
}

impl Handler<Observe> for Agent {
    type Result = Observed;
    fn handle(&mut self, _: Observe, _: &mut Context<Self>) -> Observed {
        let breaker = match self.breaker {
            Breaker::Closed { .. } => "closed",
            Breaker::Open { .. } => "open",
            Breaker::Trying => "half-open",
        };
        Observed { breaker, ..self.seen.clone() }
    }
}

/// The five agents, wherever they are at the moment.
#[derive(Clone, Default)]
pub struct Agents {
    slots: [Slot<Agent>; 5],
}

impl Agents {
    #[must_use]
    pub fn slot(&self, step: StepName) -> &Slot<Agent> {
        &self.slots[step.index()]
    }

    /// Hands orders to their agent; when it is just being replaced they come back as [`Answer::Lost`].
    pub fn send(&self, orders: Orders) {
        if let Some(agent) = self.slot(orders.step).get() {
            // Past the mailbox's bound: what is on its way to the agents is bounded by the readers' windows.
            agent.do_send(orders);
        }
    }
}
