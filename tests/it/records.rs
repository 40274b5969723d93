//! Who wrote a workflow's record: of several one, and still that one when the answer got lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use drone_delivery::domain::operation::{Operation, OperationKind};
use drone_delivery::domain::time::{later, now};
use drone_delivery::domain::workflow::Event;
use drone_delivery::domain::{Status, Workflow};
use drone_delivery::services::SharedState;
use drone_delivery::store::workflows::{Filter, Stored, Workflows};
use drone_delivery::store::{Outcome, Scan, State, StoreError, Txn};

use crate::services::{on_every_store, order};

on_every_store!(
    the_same_written_by_two_is_one_s,
    what_was_written_without_an_answer_is_no_conflict,
    an_unreadable_one_hides_no_other,
);

/// Commits, and once does not say so.
struct Mute {
    inner: SharedState,
    silent: AtomicBool,
}

#[async_trait]
impl State for Mute {
    async fn get(&self, keys: &[String]) -> Result<Vec<Option<Bytes>>, StoreError> {
        self.inner.get(keys).await
    }

    async fn commit(&self, txns: Vec<Txn>) -> Result<Vec<Outcome>, StoreError> {
        let outcomes = self.inner.commit(txns).await?;
        if self.silent.swap(false, Ordering::SeqCst) {
            return Err(StoreError { part: "store", reason: "the answer was lost".into() });
        }
        Ok(outcomes)
    }

    async fn scan(&self, scan: &Scan) -> Result<Vec<Bytes>, StoreError> {
        self.inner.scan(scan).await
    }

    async fn count(&self, set: &str) -> Result<u64, StoreError> {
        self.inner.count(set).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.inner.ping().await
    }
}

fn accepted() -> Stored {
    let order = order("a");
    let op = OperationKind::Schedule(order.request.clone());
    let operation = Operation { id: order.id, at: now(), trace: None, op };
    Stored::new(Workflow::accepted(&operation, order.request, now()))
}

async fn the_same_written_by_two_is_one_s(state: SharedState) {
    let workflows = Workflows::new(state);
    let (mut one, mut other) = (accepted(), accepted());
    other.workflow.clone_from(&one.workflow);
    assert_eq!(workflows.save(&mut [&mut one]).await.unwrap(), [Outcome::Done]);
    assert_eq!(workflows.save(&mut [&mut other]).await.unwrap(), [Outcome::Conflict]);

    let (mut other, at) = (one.clone(), now());
    for record in [&mut one, &mut other] {
        record.workflow.apply(Event::Started, at).unwrap();
    }
    assert_eq!(workflows.save(&mut [&mut other]).await.unwrap(), [Outcome::Done]);
    assert_eq!(workflows.save(&mut [&mut one]).await.unwrap(), [Outcome::Conflict]);
}

async fn what_was_written_without_an_answer_is_no_conflict(state: SharedState) {
    let mute = Arc::new(Mute { inner: state, silent: AtomicBool::new(true) });
    let workflows = Workflows::new(mute.clone());
    let mut record = accepted();
    workflows.save(&mut [&mut record]).await.unwrap_err();
    assert_eq!(workflows.save(&mut [&mut record]).await.unwrap(), [Outcome::Done]);

    // What somebody else made of it meanwhile is one.
    record.workflow.apply(Event::Started, now()).unwrap();
    mute.silent.store(true, Ordering::SeqCst);
    workflows.save(&mut [&mut record]).await.unwrap_err();
    let mut other = workflows.get(&record.workflow.delivery_id).await.unwrap().unwrap();
    other.workflow.apply(Event::CancelRequested, now()).unwrap();
    assert_eq!(workflows.save(&mut [&mut other]).await.unwrap(), [Outcome::Done]);
    assert_eq!(workflows.save(&mut [&mut record]).await.unwrap(), [Outcome::Conflict]);
    let page = workflows.list(&Filter { status: Some(Status::Cancelling), owner: None }, None, 10).await.unwrap();
    assert_eq!(page.items.len(), 1);
}

async fn an_unreadable_one_hides_no_other(state: SharedState) {
    let workflows = Workflows::new(state.clone());
    let mut records = ["a", "b"].map(|id| Stored::new(Workflow { delivery_id: order(id).id, ..*accepted().workflow }));
    let [one, other] = &mut records;
    workflows.save(&mut [one, other]).await.unwrap();
    let [damaged, sound] = records.map(|record| record.workflow.delivery_id);
    state.commit(vec![Txn::new().put(format!("workflow/{damaged}"), "no record")]).await.unwrap();

    let loaded = workflows.load([&damaged, &sound].into_iter()).await.unwrap();
    assert!(loaded[0].is_err() && loaded[1].as_ref().is_ok_and(Option::is_some));
    let error = workflows.get(&damaged).await.unwrap_err();
    assert!(error.reason.contains("workflow/a is unreadable"), "{error}");
    for owner in [None, Some("contoso".to_owned())] {
        let page = workflows.list(&Filter { status: None, owner }, None, 10).await.unwrap();
        assert_eq!(page.items.iter().map(|workflow| &workflow.delivery_id).collect::<Vec<_>>(), [&sound]);
    }
    let soon = later(now(), Duration::from_secs(60));
    let (oldest, _) = workflows.oldest(Status::Accepted, soon, None, 10).await.unwrap();
    assert_eq!(oldest.iter().map(|record| &record.workflow.delivery_id).collect::<Vec<_>>(), [&sound]);
}
