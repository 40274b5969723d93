//! Coming back: `since` tells exactly what was missed.

use super::client::{Source, Watcher, id, number, numbers};
use super::rig::{Rig, embedded_streams, settings, until};

#[actix::test]
async fn since_tells_exactly_what_was_missed() {
    let rig = Rig::start(&settings());
    let mut watcher = Watcher::open(&rig, "").await;
    rig.until_live(1).await;
    rig.append(10).await;
    let seen = watcher.events(7).await;
    drop(watcher);
    for _ in 0..50 {
        rig.append(3).await;
    }
    let mut back = Watcher::open(&rig, &format!("?since={}", id(&seen[6]))).await;
    assert_eq!(numbers(&back.events(153).await), (7..160).collect::<Vec<_>>());
    rig.append(2).await;
    assert_eq!(numbers(&back.events(2).await), [160, 161]);
}

#[actix::test]
async fn going_over_to_live_leaves_no_hole_and_tells_nothing_twice() {
    let rig = Rig::start(&settings());
    rig.append(20).await;
    let (total, padding) = (3_000, "x".repeat(2_000));
    let write = async {
        while rig.made() < total {
            rig.append_with(5, &padding).await;
        }
    };
    // Each begins at another place, while events keep coming, and hears the rest.
    let watch = async {
        let mut open = Vec::new();
        for since in 0..20_u64 {
            open.push((since, Watcher::open(&rig, &format!("?since=0-{since}")).await));
        }
        let heard = open.into_iter().map(async |(since, mut watcher)| {
            let mut next = since + 1;
            while next < total {
                let event = watcher.event().await;
                if event["type"] == "Lagged" {
                    let resume = event["resumeFrom"].as_str().unwrap();
                    watcher = Watcher::open(&rig, &format!("?since={resume}")).await;
                    continue;
                }
                assert_eq!(number(&event), next);
                next += 1;
            }
        });
        futures_util::future::join_all(heard).await;
    };
    futures_util::future::join(write, watch).await;
}

#[actix::test]
async fn an_event_source_comes_back_by_its_header() {
    let rig = Rig::start(&settings());
    let mut source = Source::open(&rig, "", "").await;
    rig.until_live(1).await;
    rig.append(5).await;
    source.events(3).await;
    let last = source.last_event_id.clone();
    drop(source);
    rig.append(5).await;
    let mut back = Source::open(&rig, "?since=0-0", &last).await;
    assert_eq!(numbers(&back.events(7).await), (3..10).collect::<Vec<_>>());
}

#[actix::test]
async fn a_restart_of_the_process_costs_nothing() {
    let rig = Rig::start(&settings());
    let mut watcher = Watcher::open(&rig, "").await;
    rig.until_live(1).await;
    rig.append(4).await;
    let last = id(&watcher.events(4).await[3]).to_owned();
    rig.append(3).await;
    let dir = rig.stop().await.unwrap();
    drop(watcher);

    let data = dir.path().join("data");
    let mut opened = None;
    until("the directory is free", async || {
        opened = embedded_streams(&data).ok();
        opened.is_some()
    })
    .await;
    let rig = Rig::on(opened.unwrap(), &settings());
    let mut back = Watcher::open(&rig, &format!("?since={last}")).await;
    assert_eq!(numbers(&back.events(3).await), [4, 5, 6]);
    rig.append(1).await;
    assert_eq!(numbers(&back.events(1).await), [0]);
}

#[actix::test]
async fn an_id_that_never_was_is_a_gap_and_then_all_there_is() {
    let rig = Rig::start(&settings());
    rig.append(3).await;
    for (since, from) in [("1-0", "1-1"), ("999-7", "999-8")] {
        let mut watcher = Watcher::open(&rig, &format!("?since={since}")).await;
        assert_eq!(watcher.event().await, serde_json::json!({"type": "Gap", "from": from, "to": "0-0"}));
        assert_eq!(numbers(&watcher.events(3).await), [0, 1, 2]);
    }
}

#[actix::test]
async fn an_id_that_was_removed_is_a_gap_and_then_what_is_left() {
    let rig = Rig::start(&settings());
    let padding = "x".repeat(64 * 1024);
    // More than is kept.
    while rig.streams.bounds(drone_delivery::stream::Stream::Status).await.unwrap().first == 0 {
        assert!(rig.made() < 10_000, "nothing was removed");
        rig.append_with(10, &padding).await;
    }
    let mut watcher = Watcher::open(&rig, "?since=0-0").await;
    let gap = watcher.event().await;
    assert_eq!(gap["type"], "Gap");
    let first = watcher.event().await;
    assert_eq!(gap["to"], first["id"]);
    let rest: Vec<u64> = (number(&first) + 1..rig.made()).collect();
    assert_eq!(numbers(&watcher.events(rest.len() as u64).await), rest);
}
