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
    let pending = |call| Pending {
        order: one_order().0.orders.remove(0),
        call,
        attempts: 1,
        complete_by: now(),
        time: SHORTEST,
        step: StepName::Package,
        reply: None,
    };
    agent.calls.push(Box::pin(std::future::pending()));
    // As if it had been begun only now, however long this test takes.
    agent.called = Instant::now() + Duration::from_secs(60);
    agent.enqueue(pending(Call::Cancel));
    assert!(agent.gather().is_none(), "one waits for more");
    (0..many).for_each(|_| agent.enqueue(pending(Call::Execute)));
    let calls = |batch: Option<Vec<Pending>>| batch.unwrap().iter().map(|p| p.call).collect::<Vec<_>>();
    assert_eq!(calls(agent.gather()), [Call::Cancel], "to undo goes first");
    assert_eq!(calls(agent.gather()), vec![Call::Execute; many]);
}
