//! What goes wrong on the server's side costs no event, and no client notices it.

use std::sync::atomic::Ordering;

use super::client::{Source, Watcher, numbers};
use super::rig::{Rig, settings, until};

#[actix::test]
async fn hubs_that_panic_cost_nothing() {
    let rig = Rig::start(&settings());
    let mut watcher = Watcher::open(&rig, "").await;
    let mut one = Watcher::open(&rig, "?deliveryId=d-1").await;
    rig.until_live(2).await;
    for round in 0..4 {
        rig.append(5).await;
        rig.faults.panic.store(true, Ordering::SeqCst);
        rig.append(5).await;
        until("the hub is replaced", async || rig.hub_restarts().await > round).await;
        rig.append(10).await;
    }
    assert_eq!(numbers(&watcher.events(80).await), (0..80).collect::<Vec<_>>());
    assert_eq!(numbers(&one.events(8).await), (1..80).step_by(10).collect::<Vec<_>>());
}

#[actix::test]
async fn an_engine_that_goes_away_costs_nothing() {
    let rig = Rig::start(&settings());
    let mut watcher = Watcher::open(&rig, "").await;
    let mut source = Source::open(&rig, "", "").await;
    rig.until_live(2).await;
    rig.append(5).await;
    assert_eq!(numbers(&watcher.events(5).await), (0..5).collect::<Vec<_>>());
    rig.faults.away.store(true, Ordering::SeqCst);
    let mut late = Watcher::open(&rig, "?since=0-1").await;
    for _ in 0..20 {
        rig.append(5).await;
    }
    rig.faults.away.store(false, Ordering::SeqCst);
    assert_eq!(numbers(&watcher.events(100).await), (5..105).collect::<Vec<_>>());
    assert_eq!(numbers(&source.events(105).await), (0..105).collect::<Vec<_>>());
    assert_eq!(numbers(&late.events(103).await), (2..105).collect::<Vec<_>>());
}

#[actix::test]
async fn nothing_is_read_while_nobody_listens() {
    let rig = Rig::start(&settings());
    let watcher = Watcher::open(&rig, "").await;
    rig.until_live(1).await;
    drop(watcher);
    rig.until_live(0).await;
    // The read that was under way takes what comes next, and is the last.
    rig.append(1).await;
    until("the hub has stopped reading", async || rig.observe().await.unwrap().next_offset.is_none()).await;
    rig.append(1).await;
    assert_eq!(rig.observe().await.unwrap().next_offset, None);
    let mut back = Watcher::open(&rig, "").await;
    rig.until_live(1).await;
    rig.append(1).await;
    assert_eq!(numbers(&back.events(1).await), [2]);
}
