//! Faults on purpose, around any service: slow calls, calls that fail before they do anything, calls that do it and
//! whose answer is lost, panics. The same seed makes the same faults.
//!
//! Where there is a latency every order is a call of its own and has its own. What it then costs is the service's as
//! always: orders whose time is up while others are at it go to it together.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::{Mutex, oneshot};

use super::{Order, Service, StepError};
use crate::config::{Faulty as Settings, LatencyKind};
use crate::domain::StepName;
use crate::domain::workflow::Output;

/// How heavy the tail of a heavy-tailed latency is: one call in a hundred takes 26 times the median.
const TAIL: f64 = 1.2;
/// No latency is more than this many medians.
const MOST: f64 = 100.0;

pub struct Faulty {
    inner: Arc<dyn Service>,
    settings: Settings,
    random: RefCell<StdRng>,
    executing: Gather<Output>,
    changing: Gather<Output>,
    cancelling: Gather<()>,
}

type Answers<T> = Vec<Result<T, StepError>>;
type Reply<T> = oneshot::Sender<Answers<T>>;

/// Orders that go to the service together.
struct Gather<T> {
    waiting: RefCell<Vec<(Vec<Order>, Reply<T>)>>,
    turn: Mutex<()>,
}

/// Whoever hands on what has gathered; without it nobody would, so what is left then is answered.
struct Lead<'a, T>(&'a Gather<T>);

impl<T> Drop for Lead<'_, T> {
    fn drop(&mut self) {
        self.0.waiting.take();
    }
}

impl<T> Gather<T> {
    fn new() -> Self {
        Self { waiting: RefCell::default(), turn: Mutex::default() }
    }

    /// Hands orders on, with all that others hand on until those before them are done.
    async fn call(&self, orders: Vec<Order>, call: impl AsyncFnOnce(&[Order]) -> Answers<T>) -> Answers<T> {
        if orders.is_empty() {
            return Vec::new();
        }
        let (count, leads) = (orders.len(), self.waiting.borrow().is_empty());
        let (reply, answers) = oneshot::channel();
        self.waiting.borrow_mut().push((orders, reply));
        if leads {
            let lead = Lead(self);
            // Those whose time is up at the same moment come in the same turn of the thread.
            tokio::task::yield_now().await;
            let _turn = self.turn.lock().await;
            let (mut all, mut replies) = (Vec::new(), Vec::new());
            for (orders, reply) in self.waiting.take() {
                replies.push((orders.len(), reply));
                all.extend(orders);
            }
            drop(lead);
            let mut answers = call(&all).await.into_iter();
            for (count, reply) in replies {
                // Who is gone wants no answer.
                let _ = reply.send(answers.by_ref().take(count).collect());
            }
        }
        let given_up = |_| Err(StepError::Transient("the call was given up".into()));
        answers.await.unwrap_or_else(|_| (0..count).map(given_up).collect())
    }
}

/// What goes wrong with one order.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Fine,
    Fails,
    LosesReply,
}

impl Faulty {
    #[must_use]
    pub fn new(inner: Arc<dyn Service>, settings: Settings, seed: u64) -> Self {
        let random = RefCell::new(StdRng::seed_from_u64(seed));
        let (executing, changing, cancelling) = (Gather::new(), Gather::new(), Gather::new());
        Self { inner, settings, random, executing, changing, cancelling }
    }

    /// Whether these settings make any difference.
    #[must_use]
    pub fn is_needed(settings: &Settings) -> bool {
        let rates = [settings.error_rate, settings.lost_reply_rate, settings.panic_rate];
        settings.latency > Duration::ZERO || rates.iter().any(|rate| *rate > 0.0)
    }

    fn happens(&self, rate: f64) -> bool {
        self.random.borrow_mut().random_range(0.0..1.0) < rate
    }

    #[allow(clippy::panic, reason = "it is what was asked for")]
    fn may_panic(&self) {
        if self.happens(self.settings.panic_rate) {
            panic!("a panic on purpose in the {} service", self.inner.step().as_str());
        }
    }

    fn fates(&self, count: usize) -> Vec<Fate> {
        let fate = |_| match (self.happens(self.settings.error_rate), self.happens(self.settings.lost_reply_rate)) {
            (true, _) => Fate::Fails,
            (false, true) => Fate::LosesReply,
            (false, false) => Fate::Fine,
        };
        (0..count).map(fate).collect()
    }
}

/// The orders that get through to the service.
fn through(orders: &[Order], fates: &[Fate]) -> Vec<Order> {
    let reaches = |(order, fate): (&Order, &Fate)| (*fate != Fate::Fails).then(|| order.clone());
    orders.iter().zip(fates).filter_map(reaches).collect()
}

fn answers<T>(fates: &[Fate], answers: Answers<T>) -> Answers<T> {
    let mut answers = answers.into_iter();
    let fail = |text: &str| Err(StepError::Transient(text.into()));
    let answer = |fate: &Fate| match fate {
        Fate::Fails => fail("a failure on purpose"),
        Fate::Fine => answers.next().unwrap_or_else(|| fail("no answer")),
        Fate::LosesReply => {
            answers.next();
            fail("a reply lost on purpose")
        }
    };
    fates.iter().map(answer).collect()
}

#[async_trait(?Send)]
impl Service for Faulty {
    fn step(&self) -> StepName {
        self.inner.step()
    }

    fn max_batch(&self) -> usize {
        if self.settings.latency > Duration::ZERO { 1 } else { self.inner.max_batch() }
    }

    fn latency(&self) -> Duration {
        let median = self.settings.latency;
        match self.settings.latency_kind {
            LatencyKind::Fixed => median,
            LatencyKind::Heavy => {
                let place: f64 = self.random.borrow_mut().random_range(0.0..1.0);
                let medians = (2.0 * (1.0 - place)).powf(-1.0 / TAIL);
                median.mul_f64(medians.min(MOST))
            }
        }
    }

    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        self.may_panic();
        let fates = self.fates(orders.len());
        let reached =
            self.executing.call(through(orders, &fates), async |orders| self.inner.execute(orders).await).await;
        answers(&fates, reached)
    }

    async fn change(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        self.may_panic();
        let fates = self.fates(orders.len());
        let reached = self.changing.call(through(orders, &fates), async |orders| self.inner.change(orders).await).await;
        answers(&fates, reached)
    }

    async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>> {
        self.may_panic();
        let fates = self.fates(orders.len());
        let reached =
            self.cancelling.call(through(orders, &fates), async |orders| self.inner.cancel(orders).await).await;
        answers(&fates, reached)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;

    use super::*;
    use crate::domain::DeliveryId;
    use crate::domain::request::samples;

    /// Counts the orders and the calls that reach it.
    #[derive(Default)]
    struct Counting(AtomicUsize, AtomicUsize);

    #[async_trait(?Send)]
    impl Service for Counting {
        fn step(&self) -> StepName {
            StepName::Package
        }

        async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.fetch_add(orders.len(), Ordering::Relaxed);
            orders.iter().map(|_| Ok(Output::Nothing)).collect()
        }

        async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>> {
            self.0.fetch_add(orders.len(), Ordering::Relaxed);
            orders.iter().map(|_| Ok(())).collect()
        }
    }

    fn settings(error_rate: f64, lost_reply_rate: f64, panic_rate: f64) -> Settings {
        let (latency, latency_kind) = (Duration::ZERO, LatencyKind::Fixed);
        Settings { latency, latency_kind, error_rate, lost_reply_rate, panic_rate }
    }

    fn orders() -> Vec<Order> {
        let (id, request) = (DeliveryId::parse("a").unwrap(), Arc::new(samples::request()));
        vec![Order { id, request, route: None, reservation: None, trace: None }; 1000]
    }

    async fn run(settings: Settings, seed: u64) -> (usize, Vec<Result<Output, StepError>>) {
        let inner = Arc::new(Counting::default());
        let answers = Faulty::new(inner.clone(), settings, seed).execute(&orders()).await;
        (inner.0.load(Ordering::Relaxed), answers)
    }

    #[tokio::test]
    async fn failures_come_before_the_effect_and_lost_replies_after() {
        let (reached, answers) = run(settings(0.3, 0.0, 0.0), 1).await;
        let fine = answers.iter().filter(|answer| answer.is_ok()).count();
        assert!((600..800).contains(&reached), "{reached}");
        assert_eq!(reached, fine);
        let (reached, answers) = run(settings(0.0, 0.3, 0.0), 1).await;
        assert_eq!(reached, 1000);
        assert!((600..800).contains(&answers.iter().filter(|answer| answer.is_ok()).count()));
    }

    #[tokio::test]
    async fn the_same_seed_makes_the_same_faults() {
        let faults = settings(0.2, 0.2, 0.0);
        assert_eq!(run(faults.clone(), 7).await.1, run(faults.clone(), 7).await.1);
        assert_ne!(run(faults.clone(), 7).await.1, run(faults, 8).await.1);
    }

    #[tokio::test]
    #[should_panic(expected = "on purpose")]
    async fn panics_are_panics() {
        run(settings(0.0, 0.0, 1.0), 1).await;
    }

    #[tokio::test]
    async fn orders_that_come_together_go_to_the_service_together() {
        let slow = Settings { latency: Duration::from_millis(10), ..settings(0.0, 0.0, 0.0) };
        let inner = Arc::new(Counting::default());
        let faulty = Faulty::new(inner.clone(), slow, 1);
        let order = &orders()[..1];
        let answers = join_all((0..100).map(|_| faulty.execute(order))).await;
        assert!(answers.into_iter().flatten().all(|answer| answer.is_ok()));
        assert_eq!(inner.1.load(Ordering::Relaxed), 1);
        // One that is given up just before it goes there holds up nobody.
        let mut given_up = Box::pin(faulty.execute(order));
        assert!(futures_util::poll!(&mut given_up).is_pending());
        drop(given_up);
        assert!(faulty.execute(order).await[0].is_ok());
    }

    #[test]
    fn a_heavy_tail_has_its_median_and_its_end() {
        let heavy = Settings {
            latency: Duration::from_millis(10),
            latency_kind: LatencyKind::Heavy,
            ..settings(0.0, 0.0, 0.0)
        };
        let faulty = Faulty::new(Arc::new(Counting::default()), heavy, 3);
        let mut drawn: Vec<Duration> = (0..10_000).map(|_| faulty.latency()).collect();
        drawn.sort();
        assert!((9..=11).contains(&drawn[5000].as_millis()), "{:?}", drawn[5000]);
        assert!(drawn[9900] > Duration::from_millis(150), "{:?}", drawn[9900]);
        assert!(drawn[9999] <= Duration::from_secs(1));
    }
}
