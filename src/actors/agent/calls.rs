//! The calls of a service that are under way. Orders and tickets come back with what became of them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::{Call, Ticket};
use crate::domain::workflow::Output;
use crate::services::{Order, Service, StepError};

/// The orders of one call, all of one kind.
pub(super) struct Batch {
    pub call: Call,
    pub orders: Vec<Order>,
    pub tickets: Vec<Ticket>,
}

/// What became of a batch, order by order.
pub(super) type Called = (Batch, Vec<Result<Output, StepError>>);

pub(super) struct Calls {
    service: Arc<dyn Service>,
    timeout: Duration,
    under_way: FuturesUnordered<Pin<Box<dyn Future<Output = Called>>>>,
    on_their_way: OnTheirWay,
    /// What arrivals are counted from.
    begun: Instant,
}

/// Orders on their way to a slow service. Those that get there in the same moment are one call by then, however many
/// set out for themselves: a timer and a future for each of them would cost more than what the service does.
type OnTheirWay = Rc<RefCell<HashMap<Arrival, (Vec<Order>, Vec<Ticket>)>>>;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Arrival {
    call: Call,
    /// In whole milliseconds since the agent began.
    at: u64,
    /// The time of the call is over by then.
    late: bool,
}

impl Calls {
    pub fn new(service: Arc<dyn Service>, timeout: Duration) -> Self {
        let (under_way, on_their_way) = (FuturesUnordered::new(), OnTheirWay::default());
        Self { service, timeout, under_way, on_their_way, begun: Instant::now() }
    }

    /// The most orders of one call.
    pub fn max_batch(&self) -> usize {
        self.service.max_batch()
    }

    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// The next call that has come to its end. Whoever begins one must poll again.
    pub fn poll(&mut self, task: &mut task::Context<'_>) -> Poll<Option<Called>> {
        self.under_way.poll_next_unpin(task)
    }

    pub fn begin(&mut self, batch: Batch) {
        let (service, timeout) = (self.service.clone(), self.timeout);
        let latency = service.latency();
        if latency.is_zero() {
            self.under_way.push(Box::pin(answered(service, batch, timeout)));
            return;
        }
        let Batch { call, orders, tickets } = batch;
        let at = self.begun.elapsed() + latency.min(timeout);
        let at = u64::try_from(at.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
        let arrival = Arrival { call, at, late: latency >= timeout };
        let mut on_their_way = self.on_their_way.borrow_mut();
        let group = on_their_way.entry(arrival).or_default();
        let is_new = group.0.is_empty();
        group.0.extend(orders);
        group.1.extend(tickets);
        if is_new {
            let (moment, on_their_way) = (self.begun + Duration::from_millis(at), self.on_their_way.clone());
            self.under_way.push(Box::pin(async move {
                tokio::time::sleep_until(moment).await;
                let (orders, tickets) = on_their_way.borrow_mut().remove(&arrival).unwrap_or_default();
                let batch = Batch { call, orders, tickets };
                if arrival.late { no_answer(batch, timeout) } else { answered(service, batch, timeout).await }
            }));
        }
    }
}

/// Calls the service. What the orders were on their way does not count: it was made up, and less than a time-out.
async fn answered(service: Arc<dyn Service>, batch: Batch, timeout: Duration) -> Called {
    match tokio::time::timeout(timeout, run(&*service, batch.call, &batch.orders)).await {
        Ok(results) => (batch, results),
        Err(_) => no_answer(batch, timeout),
    }
}

fn no_answer(batch: Batch, timeout: Duration) -> Called {
    let late = |_| Err(StepError::Transient(format!("no answer within {timeout:?}")));
    let results = batch.orders.iter().map(late).collect();
    (batch, results)
}

async fn run(service: &dyn Service, call: Call, orders: &[Order]) -> Vec<Result<Output, StepError>> {
    match call {
        Call::Cancel => service.cancel(orders).await.into_iter().map(|r| r.map(|()| Output::Nothing)).collect(),
        Call::Change => service.change(orders).await,
        Call::Execute => service.execute(orders).await,
    }
}
