//! Leases, epochs and checkpoints, on both stores: who may write what (G4).

use std::time::{Duration, Instant};

use drone_delivery::services::SharedState;
use drone_delivery::store::checkpoints::{Checkpoints, Lease, SaveError, Share};

use crate::conformance::PATIENCE;
use crate::services::on_every_store;

on_every_store!(
    a_share_has_one_owner_until_it_is_released,
    a_share_is_taken_over_when_its_lease_ends,
    a_lease_that_nobody_took_is_renewed_though_it_ended,
    a_checkpoint_only_grows,
    an_old_epoch_is_refused_however_late,
    an_owner_takes_its_own_share_back,
    who_is_alive_is_counted,
);

const SHARE: Share = Share { partition: 3, reader: 0 };
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(200);

async fn taken(owner: &Checkpoints) -> Lease {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(lease) = owner.acquire(SHARE).await.unwrap() {
            return lease;
        }
        assert!(Instant::now() < deadline, "the share was never free");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn a_share_has_one_owner_until_it_is_released(state: SharedState) {
    let (a, b) = (Checkpoints::new(state.clone(), "a", LONG), Checkpoints::new(state, "b", LONG));
    let first = taken(&a).await;
    assert_eq!(b.acquire(SHARE).await.unwrap(), None);
    assert_eq!(a.owners(&[SHARE]).await.unwrap()[0].owner.as_deref(), Some("a"));
    a.release(first).await.unwrap();
    let second = taken(&b).await;
    assert!(second.epoch > first.epoch);
    assert_eq!(a.renew(&[first]).await.unwrap(), [first], "lost");
    assert_eq!(b.renew(&[second]).await.unwrap(), []);
    a.release(first).await.unwrap();
    assert_eq!(b.owners(&[SHARE]).await.unwrap()[0].owner.as_deref(), Some("b"), "an old release takes nothing away");
}

async fn a_share_is_taken_over_when_its_lease_ends(state: SharedState) {
    let (a, b) = (Checkpoints::new(state.clone(), "a", SHORT), Checkpoints::new(state, "b", LONG));
    let first = taken(&a).await;
    let second = taken(&b).await;
    assert!(second.epoch > first.epoch);
    assert_eq!(a.renew(&[first]).await.unwrap(), [first]);
    assert!(matches!(a.save(first, 7).await, Err(SaveError::Fenced)));
}

async fn a_lease_that_nobody_took_is_renewed_though_it_ended(state: SharedState) {
    let a = Checkpoints::new(state, "a", SHORT);
    let lease = taken(&a).await;
    let deadline = Instant::now() + PATIENCE;
    while a.owners(&[SHARE]).await.unwrap()[0].owner.is_some() {
        assert!(Instant::now() < deadline, "it never ended");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(a.renew(&[lease]).await.unwrap(), [], "still this owner's");
    a.save(lease, 1).await.unwrap();
}

async fn a_checkpoint_only_grows(state: SharedState) {
    let a = Checkpoints::new(state, "a", LONG);
    let lease = taken(&a).await;
    assert_eq!(a.load(SHARE).await.unwrap(), None);
    for (saved, then) in [(5, 5), (3, 5), (5, 5), (9, 9)] {
        a.save(lease, saved).await.unwrap();
        assert_eq!(a.load(SHARE).await.unwrap(), Some(then));
    }
    a.reset(lease).await.unwrap();
    assert_eq!(a.load(SHARE).await.unwrap(), None);
}

async fn an_old_epoch_is_refused_however_late(state: SharedState) {
    let (a, b) = (Checkpoints::new(state.clone(), "a", LONG), Checkpoints::new(state, "b", LONG));
    let old = taken(&a).await;
    a.save(old, 4).await.unwrap();
    a.release(old).await.unwrap();
    let new = taken(&b).await;
    b.save(new, 10).await.unwrap();
    for offset in [4, 5, 10, 11, 1_000] {
        assert!(matches!(a.save(old, offset).await, Err(SaveError::Fenced)), "{offset}");
    }
    assert!(matches!(a.reset(old).await, Err(SaveError::Fenced)));
    assert_eq!(b.load(SHARE).await.unwrap(), Some(10));
}

async fn an_owner_takes_its_own_share_back(state: SharedState) {
    let a = Checkpoints::new(state, "a", LONG);
    let first = taken(&a).await;
    let again = taken(&a).await;
    assert_eq!(again.epoch, first.epoch + 1);
    assert!(matches!(a.save(first, 1).await, Err(SaveError::Fenced)), "what it held before is an old epoch too");
}

async fn who_is_alive_is_counted(state: SharedState) {
    let owners = ["a", "b", "c"].map(|name| Checkpoints::new(state.clone(), name, LONG));
    for (n, owner) in owners.iter().enumerate() {
        assert_eq!(owner.heartbeat().await.unwrap(), n + 1);
    }
    owners[1].leave().await.unwrap();
    assert_eq!(owners[0].heartbeat().await.unwrap(), 2);
    let short = Checkpoints::new(state.clone(), "d", SHORT);
    short.heartbeat().await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while owners[0].heartbeat().await.unwrap() != 2 {
        assert!(Instant::now() < deadline, "one that is silent counts for ever");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
