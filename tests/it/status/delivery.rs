//! Who hears what, and in which order.

use drone_delivery::domain::status::EventId;
use drone_delivery::stream::Stream;

use super::client::{Source, Watcher, id, numbers};
use super::rig::{Rig, settings};

#[actix::test]
async fn everybody_hears_every_event_once_and_in_order() {
    let rig = Rig::start(&settings());
    rig.append(5).await;
    let (mut one, mut two) = (Watcher::open(&rig, "").await, Watcher::open(&rig, "").await);
    let mut source = Source::open(&rig, "", "").await;
    rig.until_live(3).await;
    for entry in 1..=30 {
        rig.append(entry).await;
    }
    let all: Vec<u64> = (5..rig.made()).collect();
    let heard = one.events(all.len() as u64).await;
    assert_eq!(numbers(&heard), all);
    assert_eq!(two.events(all.len() as u64).await, heard);
    assert_eq!(source.events(all.len() as u64).await, heard);
    assert_eq!(source.last_event_id, id(heard.last().unwrap()));
    let ids: Vec<EventId> = heard.iter().map(|event| id(event).parse().unwrap()).collect();
    assert!(ids.is_sorted() && ids.windows(2).all(|pair| pair[0] != pair[1]));
}

#[actix::test]
async fn an_event_is_what_was_written_with_its_id() {
    let rig = Rig::start(&settings());
    let mut watcher = Watcher::open(&rig, "").await;
    rig.until_live(1).await;
    rig.append(1).await;
    let mut reader = rig.streams.read(Stream::Status, drone_delivery::stream::From::First).await.unwrap();
    let entry = reader.next().await.unwrap().remove(0);
    let line: serde_json::Value = serde_json::from_slice(&entry.body).unwrap();
    let mut written = line["events"][0].clone();
    written["id"] = "0-0".into();
    (written["deliveryId"], written["ownerId"]) = (line["deliveryId"].clone(), line["ownerId"].clone());
    assert_eq!(watcher.event().await, written);
}

#[actix::test]
async fn filters_leave_everything_else_out() {
    let rig = Rig::start(&settings());
    let queries = ["?deliveryId=d-3", "?ownerId=o-1", "?deliveryId=d-3&ownerId=o-1", "?deliveryId=d-3&ownerId=o-0"];
    let mut watchers = Vec::new();
    for query in queries {
        watchers.push(Watcher::open(&rig, query).await);
    }
    let mut source = Source::open(&rig, "?deliveryId=d-9", "").await;
    rig.until_live(5).await;
    rig.append(40).await;
    rig.append(60).await;
    let every = |step: usize, from: u64| (from..100).step_by(step).collect::<Vec<_>>();
    assert_eq!(numbers(&watchers[0].events(10).await), every(10, 3));
    assert_eq!(numbers(&watchers[1].events(50).await), every(2, 1));
    assert_eq!(numbers(&watchers[2].events(10).await), every(10, 3));
    assert_eq!(numbers(&source.events(10).await), every(10, 9));
    // Nothing is both; a replay filters alike, and what it tells next is the first that was never wanted by others.
    let mut replayed = Watcher::open(&rig, "?ownerId=o-1&since=0-3").await;
    assert_eq!(numbers(&replayed.events(48).await), every(2, 5));
    rig.append(4).await;
    assert_eq!(numbers(&watchers[0].events(1).await), [103]);
    assert_eq!(rig.observe().await.unwrap().told, 10 + 50 + 10 + 10 + 1 + 2 + 1 + 2);
}
