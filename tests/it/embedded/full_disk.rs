//! A full disk: what does not fit is refused, what was confirmed stays, and writing comes back with the room.

use bytes::Bytes;
use drone_delivery::store::{Outcome, State, Txn};
use drone_delivery::stream::{AppendError, Streams};

use super::{P0, all, open};
use crate::conformance::{append, soon, until};
use crate::support::disk::SmallDisk;

#[tokio::test]
async fn the_log_refuses_what_does_not_fit_and_goes_on_when_there_is_room() {
    let disk = SmallDisk::mount(8);
    let engine = open(disk.path()).expect("open");
    let mut confirmed = Vec::new();
    for round in 0..3 {
        append(&*engine.streams, P0, format!("before {round}")).await;
        confirmed.push(format!("before {round}"));
        let ballast = disk.fill();
        let mut refused = 0;
        for n in 0..40 {
            let body = format!("full {round} {n} {}", "x".repeat(2000));
            match soon(engine.streams.append(P0, Bytes::from(body.clone()))).await {
                Ok(()) => confirmed.push(body),
                Err(AppendError::NoRoom(_)) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(refused > 0, "80 KB went onto a full disk");
        assert_eq!(all(&*engine.streams, P0).await.expect("reading goes on"), confirmed);
        drop(ballast);
        append(&*engine.streams, P0, format!("after {round}")).await;
        confirmed.push(format!("after {round}"));
    }
    drop(engine);
    let engine = open(disk.path()).expect("open again");
    assert_eq!(engine.recovery.torn, []);
    assert_eq!(all(&*engine.streams, P0).await.expect("read"), confirmed);
}

#[tokio::test]
async fn the_state_refuses_what_does_not_fit_and_goes_on_when_there_is_room() {
    let disk = SmallDisk::mount(16);
    let engine = open(disk.path()).expect("open");
    let mut done = Vec::new();
    for round in 0..2 {
        let ballast = disk.fill();
        let mut refused = 0;
        for n in 0..100 {
            let key = format!("{round}-{n}");
            let txn = Txn::new().put(&key, vec![b'v'; 4000]).add("keys", key.clone());
            match soon(engine.state.commit(vec![txn])).await {
                Ok(outcomes) => {
                    assert_eq!(outcomes, [Outcome::Done]);
                    done.push(key);
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 0, "400 KB went onto a full disk");
        assert!(soon(engine.state.ping()).await.is_err(), "it says so");
        drop(ballast);
        until("writing comes back", || async {
            let txn = Txn::new().put(format!("after {round}"), "v");
            engine.state.commit(vec![txn]).await.is_ok()
        })
        .await;
        done.push(format!("after {round}"));
        soon(engine.state.ping()).await.expect("it is well again");
    }
    let values = soon(engine.state.get(&done)).await.expect("get");
    assert!(values.iter().all(Option::is_some), "what was confirmed is there");
    engine.state.sync().expect("sync");
    drop(engine);
    let engine = open(disk.path()).expect("open again");
    let values = soon(engine.state.get(&done)).await.expect("get");
    assert!(values.iter().all(Option::is_some), "what was confirmed is there");
    // A commit is whole or not there: every key that is a member has its value, and the other way round.
    let scan = drone_delivery::store::Scan { set: "keys".to_owned(), limit: usize::MAX, ..Default::default() };
    let members = soon(engine.state.scan(&scan)).await.expect("scan");
    let keys: Vec<String> = members.iter().map(|member| String::from_utf8_lossy(member).into_owned()).collect();
    assert!(soon(engine.state.get(&keys)).await.expect("get").iter().all(Option::is_some));
    assert_eq!(soon(engine.state.count("keys")).await.expect("count"), keys.len() as u64);
}
