use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::mpsc;

use super::*;
use crate::domain::request::samples;

struct Idle;

#[async_trait::async_trait(?Send)]
impl Service for Idle {
    fn step(&self) -> StepName {
        StepName::Package
    }
    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        orders.iter().map(|_| Ok(Output::Nothing)).collect()
    }
    async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>> {
        orders.iter().map(|_| Ok(())).collect()
    }
}

struct Asker(mpsc::UnboundedSender<Answers>);

impl Actor for Asker {
    type Context = Context<Self>;
}

impl Handler<Answers> for Asker {
    type Result = ();
    fn handle(&mut self, answers: Answers, _: &mut Context<Self>) {
        let _ = self.0.send(answers);
    }
}

#[actix::test]
async fn orders_for_a_dead_agent_come_back() {
    let settings = config::Settings::builtin().unwrap().agents.get(StepName::Package).clone();
    let lifeline = Lifeline::unwatched();
    let ender = lifeline.ender();
    let agent = Agent::new(Arc::new(Idle), settings, Alerts::default(), lifeline).start();
    let agents = Agents::default();
    agents.slot(StepName::Package).set(agent.clone());
    ender.cancel();
    while agent.connected() {
        tokio::task::yield_now().await;
    }
    let (orders, mut answers) = one_order();
    agents.send(orders);
    assert_eq!(next(&mut answers).await, Answer::Lost);
}

#[actix::test]
async fn a_paused_agent_keeps_its_orders_past_their_time() {
    let settings = config::Settings::builtin().unwrap().agents.get(StepName::Package).clone();
    let agent = Agent::new(Arc::new(Idle), settings, Alerts::default(), Lifeline::unwatched()).start();
    agent.do_send(Pause(true));
    let (orders, mut answers) = one_order();
    agent.do_send(orders);
    for _ in 0..2 {
        assert_eq!(next(&mut answers).await, Answer::Held, "once for every time it would have been late");
    }
    agent.do_send(Pause(false));
    assert_eq!(next(&mut answers).await, Answer::Held, "what is left of its time begins anew, too");
    assert_eq!(next(&mut answers).await, Answer::Done(Output::Nothing));
}

/// One whose time is over at once.
fn one_order() -> (Orders, mpsc::UnboundedReceiver<Answers>) {
    let (answered, answers) = mpsc::unbounded_channel();
    let id = DeliveryId::parse("a").unwrap();
    let order = Order { id, request: Arc::new(samples::request()), route: None, reservation: None, trace: None };
    let orders = Orders {
        step: StepName::Package,
        call: Call::Execute,
        orders: vec![order],
        complete_by: now(),
        reply: Arc::new(Asker(answered).start().recipient()),
    };
    (orders, answers)
}

async fn next(answers: &mut mpsc::UnboundedReceiver<Answers>) -> Answer {
    let answers = tokio::time::timeout(Duration::from_secs(30), answers.recv()).await.expect("an answer").unwrap();
    answers.answers[0].1.clone()
}

/// While a call is under way few orders wait for more. How many there are counts, not how many are of one kind.
#[actix::test]
async fn one_order_to_undo_beside_many_to_do_does_not_wait() {
    let settings = config::Settings::builtin().unwrap().agents.get(StepName::Package).clone();
    let many = settings.batch;
    let mut agent = Agent::new(Arc::new(Idle), settings, Alerts::default(), Lifeline::unwatched());
    let pending = |call| {
        let order = one_order().0.orders.remove(0);
        let (id, complete_by, time) = (order.id.clone(), now(), SHORTEST);
        Pending {
            order,
            ticket: Ticket { id, call, attempts: 1, complete_by, time, step: StepName::Package, reply: None },
        }
    };
    agent.calls.begin(Batch { call: Call::Execute, orders: Vec::new(), tickets: Vec::new() });
    // As if it had been begun only now, however long this test takes.
    agent.called = Instant::now() + Duration::from_secs(60);
    agent.enqueue(pending(Call::Cancel));
    assert!(agent.gather().is_none(), "one waits for more");
    (0..many).for_each(|_| agent.enqueue(pending(Call::Execute)));
    let calls = |batch: Option<Batch>| batch.unwrap().tickets.iter().map(|t| t.call).collect::<Vec<_>>();
    assert_eq!(calls(agent.gather()), [Call::Cancel], "to undo goes first");
    assert_eq!(calls(agent.gather()), vec![Call::Execute; many]);
}

/// A service that takes one order a call, and panics at one of them.
struct Single;

#[async_trait::async_trait(?Send)]
impl Service for Single {
    fn step(&self) -> StepName {
        StepName::Package
    }
    fn max_batch(&self) -> usize {
        1
    }
    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        assert_ne!(orders[0].id.as_str(), "panics");
        vec![Ok(Output::Nothing)]
    }
    async fn cancel(&self, _: &[Order]) -> Vec<Result<(), StepError>> {
        vec![Ok(())]
    }
}

/// The ids of the answers, message by message, of orders with these ids.
async fn answered(ids: &[&str]) -> Vec<Vec<(String, Answer)>> {
    let mut settings = config::Settings::builtin().unwrap().agents.get(StepName::Package).clone();
    settings.concurrency = ids.len();
    let agent = Agent::new(Arc::new(Single), settings, Alerts::default(), Lifeline::unwatched()).start();
    let (mut orders, mut answers) = one_order();
    let order = orders.orders.remove(0);
    let of = |id: &&str| Order { id: DeliveryId::parse(id).unwrap(), ..order.clone() };
    orders.orders = ids.iter().map(of).collect();
    agent.do_send(orders);
    let (mut messages, mut count) = (Vec::new(), 0);
    while count < ids.len() {
        let message = tokio::time::timeout(Duration::from_secs(30), answers.recv()).await.expect("answers").unwrap();
        count += message.answers.len();
        messages.push(message.answers.into_iter().map(|(id, answer)| (id.as_str().to_owned(), answer)).collect());
    }
    messages
}

#[actix::test]
async fn answers_of_calls_that_end_together_come_together() {
    let messages = answered(&["a", "b", "c", "d"]).await;
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].iter().all(|(_, answer)| *answer == Answer::Done(Output::Nothing)));
}

#[actix::test]
async fn a_panic_takes_no_answers_along() {
    let all: Vec<(String, Answer)> = answered(&["a", "b", "panics"]).await.concat();
    for (id, answer) in all {
        let expected = if id == "panics" { Answer::Lost } else { Answer::Done(Output::Nothing) };
        assert_eq!(answer, expected, "{id}");
    }
}

/// A service on a slow way, which takes the orders these milliseconds. Notes how many of them each call brought.
#[derive(Default)]
struct Slow {
    latencies: RefCell<VecDeque<u64>>,
    calls: RefCell<Vec<usize>>,
}

#[async_trait::async_trait(?Send)]
impl Service for Slow {
    fn step(&self) -> StepName {
        StepName::Package
    }
    fn max_batch(&self) -> usize {
        1
    }
    fn latency(&self) -> Duration {
        Duration::from_millis(self.latencies.borrow_mut().pop_front().unwrap_or(1))
    }
    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        self.calls.borrow_mut().push(orders.len());
        orders.iter().map(|_| Ok(Output::Nothing)).collect()
    }
    async fn cancel(&self, _: &[Order]) -> Vec<Result<(), StepError>> {
        vec![Ok(())]
    }
}

/// Orders "0", "1" and so on that take so long, given to an agent with these bounds: how many each call brought, and the
/// answers in the order they came.
#[allow(clippy::arc_with_non_send_sync, reason = "the service stays on the thread of its agent")]
async fn sent(latencies: &[u64], concurrency: usize, timeout: u64) -> (Vec<usize>, Vec<(String, Answer)>) {
    let mut settings = config::Settings::builtin().unwrap().agents.get(StepName::Package).clone();
    (settings.concurrency, settings.timeout, settings.attempts) = (concurrency, Duration::from_millis(timeout), 1);
    let service = Arc::new(Slow { latencies: RefCell::new(latencies.iter().copied().collect()), ..Slow::default() });
    let agent = Agent::new(service.clone(), settings, Alerts::default(), Lifeline::unwatched()).start();
    let (mut orders, mut answers) = one_order();
    let order = orders.orders.remove(0);
    let of = |id: usize| Order { id: DeliveryId::parse(&id.to_string()).unwrap(), ..order.clone() };
    orders.orders = (0..latencies.len()).map(of).collect();
    orders.complete_by = later(now(), Duration::from_secs(60));
    agent.do_send(orders);
    let mut all = Vec::new();
    while all.len() < latencies.len() {
        let message = tokio::time::timeout(Duration::from_secs(30), answers.recv()).await.expect("answers").unwrap();
        all.extend(message.answers.into_iter().map(|(id, answer)| (id.as_str().to_owned(), answer)));
    }
    let calls = service.calls.borrow().clone();
    (calls, all)
}

#[actix::test]
async fn orders_that_get_there_together_are_one_call_and_count_as_many() {
    let (calls, answers) = sent(&[50; 100], 100, 5_000).await;
    assert!(calls.len() < 10, "those of one moment go together: {calls:?}");
    assert!(answers.iter().all(|(_, answer)| *answer == Answer::Done(Output::Nothing)));
    let (calls, _) = sent(&[5; 10], 4, 5_000).await;
    assert_eq!(calls.iter().sum::<usize>(), 10);
    assert!(calls.iter().all(|orders| *orders <= 4), "no more on their way than may be: {calls:?}");
}

#[actix::test]
async fn a_slow_order_holds_up_nobody_and_one_past_its_time_never_gets_there() {
    let (calls, answers) = sent(&[2_000, 400, 5, 100], 4, 1_000).await;
    assert_eq!(calls, [1, 1, 1]);
    let ids: Vec<&str> = answers.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["2", "3", "1", "0"], "each when its own time is up");
    assert!(answers[..3].iter().all(|(_, answer)| *answer == Answer::Done(Output::Nothing)));
    assert!(matches!(&answers[3].1, Answer::GaveUp(failure) if failure.text.contains("no answer within 1s")));
}

/// Fails every call with what may pass, after a moment.
struct Failing(Rc<Cell<u32>>);

#[async_trait::async_trait(?Send)]
impl Service for Failing {
    fn step(&self) -> StepName {
        StepName::Package
    }
    async fn execute(&self, orders: &[Order]) -> Vec<Result<Output, StepError>> {
        self.0.set(self.0.get() + 1);
        tokio::time::sleep(Duration::from_millis(20)).await;
        orders.iter().map(|_| Err(StepError::Transient("away".into()))).collect()
    }
    async fn cancel(&self, orders: &[Order]) -> Vec<Result<(), StepError>> {
        orders.iter().map(|_| Ok(())).collect()
    }
}

#[actix::test]
#[allow(clippy::arc_with_non_send_sync, reason = "the service stays on this thread")]
async fn no_try_begins_after_the_time_is_up() {
    let day = Duration::from_secs(24 * 60 * 60);
    let settings = config::Settings::builtin().unwrap().agents.get(StepName::Package).clone();
    let settings = config::Agent { backoff: day, max_backoff: day, ..settings };
    let calls = Rc::new(Cell::new(0));
    let service = Arc::new(Failing(calls.clone()));
    let agent = Agent::new(service, settings, Alerts::default(), Lifeline::unwatched()).start();
    let (mut orders, mut answers) = one_order();
    orders.complete_by = later(now(), Duration::from_millis(50));
    agent.do_send(orders);
    // A pause is anything up to a day, and would end long after that.
    assert!(matches!(next(&mut answers).await, Answer::GaveUp(_)));
    assert_eq!(calls.get(), 1);
}

/// Its call was under way when the operator paused the service: what comes back late is held like the others.
#[actix::test]
#[allow(clippy::arc_with_non_send_sync, reason = "the service stays on this thread")]
async fn a_try_that_fails_while_the_service_is_paused_is_not_given_up() {
    let settings = config::Settings::builtin().unwrap().agents.get(StepName::Package).clone();
    let calls = Rc::new(Cell::new(0));
    let service = Arc::new(Failing(calls.clone()));
    let agent = Agent::new(service, settings, Alerts::default(), Lifeline::unwatched()).start();
    let (orders, mut answers) = one_order();
    agent.do_send(orders);
    agent.do_send(Pause(true));
    assert!(matches!(next(&mut answers).await, Answer::Retrying(_)));
    assert_eq!(next(&mut answers).await, Answer::Held);
    assert_eq!(calls.get(), 1);
}
