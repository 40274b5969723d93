//! What every [`State`] must do.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drone_delivery::store::{Expect, Outcome, Scan, State, Txn};

use super::{soon, until};

/// Makes one engine's state for one test.
#[async_trait::async_trait]
pub trait StateFixture: Send {
    fn state(&self) -> Arc<dyn State>;

    /// Ends the engine's client, or the engine, in an orderly way and starts it again on the same data. The test has
    /// dropped what it got from [`state`](Self::state).
    async fn reopen(&mut self);
}

/// Makes the suite's tests for one engine, given a future that makes its fixture.
macro_rules! state_suite {
    ($fixture:expr) => {
        $crate::conformance::suite!(
            state,
            $fixture,
            [
                a_missing_key_is_none,
                values_come_in_the_order_of_the_keys,
                a_put_replaces,
                a_delete_removes,
                any_bytes_are_a_value,
                a_large_value_is_kept,
                absent_lets_only_the_first_through,
                present_wants_a_value,
                is_wants_exactly_that_value,
                a_conflict_writes_nothing,
                a_check_after_one_that_fails_changes_nothing,
                transactions_of_a_call_see_each_other,
                a_conflict_does_not_stop_those_after_it,
                the_last_write_to_a_key_in_a_call_wins,
                an_empty_commit_is_fine,
                a_value_ends_with_its_ttl,
                what_has_ended_counts_as_absent_for_checks,
                a_put_without_ttl_lifts_it,
                a_new_ttl_replaces_the_old,
                many_ended_values_leave_the_others,
                members_are_in_the_order_of_their_bytes,
                adding_twice_and_removing_what_is_not_there_are_harmless,
                sets_are_apart,
                a_scan_takes_prefix_limit_and_direction,
                a_scan_goes_on_after_a_member,
                pages_forwards_and_backwards_cover_the_set_once,
                after_outside_of_the_prefix,
                members_are_any_bytes,
                counts_follow_every_change,
                concurrent_increments_lose_nothing,
                concurrent_claims_have_one_winner,
                a_get_never_sees_half_of_a_commit,
                everything_is_there_after_a_restart,
                ping_answers,
            ]
        );
    };
}
pub(crate) use state_suite;

type Fixture<'a> = &'a mut dyn StateFixture;

async fn commit(state: &dyn State, txn: Txn) -> Outcome {
    soon(state.commit(vec![txn])).await.expect("commit")[0]
}

async fn get(state: &dyn State, key: &str) -> Option<Bytes> {
    soon(state.get(&[key.to_owned()])).await.expect("get").remove(0)
}

async fn count(state: &dyn State, set: &str) -> u64 {
    soon(state.count(set)).await.expect("count")
}

async fn scan(state: &dyn State, scan: Scan) -> Vec<Bytes> {
    soon(state.scan(&scan)).await.expect("scan")
}

fn all(set: &str) -> Scan {
    Scan { set: set.to_owned(), limit: usize::MAX, ..Scan::default() }
}

fn bytes(parts: &[&'static str]) -> Vec<Bytes> {
    parts.iter().map(|part| Bytes::from_static(part.as_bytes())).collect()
}

fn is(value: &'static str) -> Expect {
    Expect::Is(Bytes::from_static(value.as_bytes()))
}

async fn add(state: &dyn State, set: &str, members: &[&'static str]) {
    let txn = bytes(members).into_iter().fold(Txn::new(), |txn, member| txn.add(set, member));
    assert_eq!(commit(state, txn).await, Outcome::Done);
}

pub async fn a_missing_key_is_none(fixture: Fixture<'_>) {
    assert_eq!(get(&*fixture.state(), "missing").await, None);
}

pub async fn values_come_in_the_order_of_the_keys(fixture: Fixture<'_>) {
    let state = fixture.state();
    commit(&*state, Txn::new().put("a", "1").put("b", "2")).await;
    let keys = ["b", "missing", "a", "b"].map(str::to_owned);
    let values = soon(state.get(&keys)).await.expect("get");
    assert_eq!(values, [Some("2".into()), None, Some("1".into()), Some("2".into())]);
    assert!(soon(state.get(&[])).await.expect("get").is_empty());
}

pub async fn a_put_replaces(fixture: Fixture<'_>) {
    let state = fixture.state();
    commit(&*state, Txn::new().put("k", "old")).await;
    commit(&*state, Txn::new().put("k", "new")).await;
    assert_eq!(get(&*state, "k").await, Some("new".into()));
}

pub async fn a_delete_removes(fixture: Fixture<'_>) {
    let state = fixture.state();
    commit(&*state, Txn::new().put("k", "v")).await;
    assert_eq!(commit(&*state, Txn::new().delete("k").delete("never was")).await, Outcome::Done);
    assert_eq!(get(&*state, "k").await, None);
}

pub async fn any_bytes_are_a_value(fixture: Fixture<'_>) {
    let state = fixture.state();
    let every_byte: Vec<u8> = (0..=255).collect();
    commit(&*state, Txn::new().put("k", every_byte.clone()).put("empty", Bytes::new())).await;
    assert_eq!(get(&*state, "k").await, Some(every_byte.clone().into()));
    assert_eq!(get(&*state, "empty").await, Some(Bytes::new()));
    assert_eq!(commit(&*state, Txn::new().check("k", Expect::Is(every_byte.into())).delete("k")).await, Outcome::Done);
}

pub async fn a_large_value_is_kept(fixture: Fixture<'_>) {
    let state = fixture.state();
    let large = Bytes::from(vec![7; 1024 * 1024]);
    commit(&*state, Txn::new().put("large", large.clone())).await;
    assert_eq!(get(&*state, "large").await, Some(large));
}

pub async fn absent_lets_only_the_first_through(fixture: Fixture<'_>) {
    let state = fixture.state();
    let claim = |by: &'static str| Txn::new().check("k", Expect::Absent).put("k", by);
    assert_eq!(commit(&*state, claim("one")).await, Outcome::Done);
    assert_eq!(commit(&*state, claim("two")).await, Outcome::Conflict);
    assert_eq!(get(&*state, "k").await, Some("one".into()));
}

pub async fn present_wants_a_value(fixture: Fixture<'_>) {
    let state = fixture.state();
    let touch = Txn::new().check("k", Expect::Present).put("touched", "");
    assert_eq!(commit(&*state, touch.clone()).await, Outcome::Conflict);
    commit(&*state, Txn::new().put("k", Bytes::new())).await;
    assert_eq!(commit(&*state, touch).await, Outcome::Done);
}

pub async fn is_wants_exactly_that_value(fixture: Fixture<'_>) {
    let state = fixture.state();
    let change = Txn::new().check("k", is("v")).put("k", "w");
    assert_eq!(commit(&*state, change.clone()).await, Outcome::Conflict, "an absent key has no value");
    for other in ["", "vv", "V"] {
        commit(&*state, Txn::new().put("k", other)).await;
        assert_eq!(commit(&*state, change.clone()).await, Outcome::Conflict, "{other:?}");
    }
    commit(&*state, Txn::new().put("k", "v")).await;
    assert_eq!(commit(&*state, change).await, Outcome::Done);
}

pub async fn a_conflict_writes_nothing(fixture: Fixture<'_>) {
    let state = fixture.state();
    commit(&*state, Txn::new().put("k", "v").add("s", "m")).await;
    let txn =
        Txn::new().check("k", Expect::Absent).put("k", "w").put("l", "w").delete("k").add("s", "n").remove("s", "m");
    assert_eq!(commit(&*state, txn).await, Outcome::Conflict);
    assert_eq!(get(&*state, "k").await, Some("v".into()));
    assert_eq!(get(&*state, "l").await, None);
    assert_eq!(scan(&*state, all("s")).await, bytes(&["m"]));
    assert_eq!(count(&*state, "s").await, 1);
}

pub async fn a_check_after_one_that_fails_changes_nothing(fixture: Fixture<'_>) {
    let state = fixture.state();
    commit(&*state, Txn::new().put("a", "1")).await;
    let first_fails = Txn::new().check("b", Expect::Present).check("a", is("1")).put("x", "");
    let last_fails = Txn::new().check("a", is("1")).check("b", Expect::Present).put("x", "");
    assert_eq!(commit(&*state, first_fails).await, Outcome::Conflict);
    assert_eq!(commit(&*state, last_fails).await, Outcome::Conflict);
    assert_eq!(get(&*state, "x").await, None);
}

pub async fn transactions_of_a_call_see_each_other(fixture: Fixture<'_>) {
    let state = fixture.state();
    let txns = vec![
        Txn::new().check("k", Expect::Absent).put("k", "1"),
        Txn::new().check("k", is("1")).put("k", "2").put("l", "x"),
        Txn::new().check("k", is("2")).check("l", Expect::Present).delete("k"),
        Txn::new().check("k", Expect::Absent).put("k", "3"),
        Txn::new().check("k", is("1")).put("k", "never"),
    ];
    let outcomes = soon(state.commit(txns)).await.expect("commit");
    assert_eq!(outcomes, [Outcome::Done, Outcome::Done, Outcome::Done, Outcome::Done, Outcome::Conflict]);
    assert_eq!(get(&*state, "k").await, Some("3".into()));
}

pub async fn a_conflict_does_not_stop_those_after_it(fixture: Fixture<'_>) {
    let state = fixture.state();
    let txns = vec![
        Txn::new().put("a", "1"),
        Txn::new().check("a", Expect::Absent).put("b", "1"),
        Txn::new().check("b", Expect::Absent).put("c", "1"),
    ];
    let outcomes = soon(state.commit(txns)).await.expect("commit");
    assert_eq!(outcomes, [Outcome::Done, Outcome::Conflict, Outcome::Done]);
    assert_eq!(get(&*state, "b").await, None);
    assert_eq!(get(&*state, "c").await, Some("1".into()));
}

pub async fn the_last_write_to_a_key_in_a_call_wins(fixture: Fixture<'_>) {
    let state = fixture.state();
    let txn = Txn::new().put("k", "1").delete("k").put("k", "2").put("gone", "1").delete("gone");
    commit(&*state, txn.add("s", "m").remove("s", "m").add("s", "n").remove("s", "o").add("s", "o")).await;
    assert_eq!(get(&*state, "k").await, Some("2".into()));
    assert_eq!(get(&*state, "gone").await, None);
    assert_eq!(scan(&*state, all("s")).await, bytes(&["n", "o"]));
}

pub async fn an_empty_commit_is_fine(fixture: Fixture<'_>) {
    let state = fixture.state();
    assert_eq!(soon(state.commit(vec![])).await.expect("commit"), []);
    assert_eq!(commit(&*state, Txn::new()).await, Outcome::Done);
    assert_eq!(commit(&*state, Txn::new().check("k", Expect::Present)).await, Outcome::Conflict);
}

pub async fn a_value_ends_with_its_ttl(fixture: Fixture<'_>) {
    let state = fixture.state();
    commit(&*state, Txn::new().put_for("long", "v", Duration::from_secs(3600))).await;
    commit(&*state, Txn::new().put_for("short", "v", Duration::from_millis(50))).await;
    until("the short one is absent", || async { get(&*state, "short").await.is_none() }).await;
    assert_eq!(get(&*state, "long").await, Some("v".into()));
}

pub async fn what_has_ended_counts_as_absent_for_checks(fixture: Fixture<'_>) {
    let state = fixture.state();
    let claim = |by: &'static str| Txn::new().check("k", Expect::Absent).put_for("k", by, Duration::from_millis(50));
    commit(&*state, claim("one")).await;
    until("another may claim it", || async { commit(&*state, claim("two")).await == Outcome::Done }).await;
    until("it is gone", || async { commit(&*state, Txn::new().check("k", is("two"))).await == Outcome::Conflict })
        .await;
    assert_eq!(commit(&*state, Txn::new().check("k", Expect::Present)).await, Outcome::Conflict);
}

pub async fn a_put_without_ttl_lifts_it(fixture: Fixture<'_>) {
    let state = fixture.state();
    commit(&*state, Txn::new().put_for("k", "v", Duration::from_millis(300))).await;
    commit(&*state, Txn::new().put("k", "w").put_for("witness", "v", Duration::from_millis(301))).await;
    until("the witness is absent", || async { get(&*state, "witness").await.is_none() }).await;
    commit(&*state, Txn::new().put("other", "")).await;
    assert_eq!(get(&*state, "k").await, Some("w".into()));
}

pub async fn a_new_ttl_replaces_the_old(fixture: Fixture<'_>) {
    let state = fixture.state();
    let short = Duration::from_millis(300);
    commit(&*state, Txn::new().put_for("longer", "v", short).put("shorter", "v")).await;
    commit(&*state, Txn::new().put_for("longer", "w", Duration::from_secs(3600)).put_for("shorter", "w", short)).await;
    until("the shorter is absent", || async { get(&*state, "shorter").await.is_none() }).await;
    commit(&*state, Txn::new().put("other", "")).await;
    assert_eq!(get(&*state, "longer").await, Some("w".into()));
}

pub async fn many_ended_values_leave_the_others(fixture: Fixture<'_>) {
    let state = fixture.state();
    let txns = (0..500).map(|n| {
        Txn::new().put_for(format!("short-{n}"), "v", Duration::from_millis(20)).put(format!("kept-{n}"), "v")
    });
    soon(state.commit(txns.collect())).await.expect("commit");
    until("the last short one is absent", || async { get(&*state, "short-499").await.is_none() }).await;
    for n in 0..20 {
        commit(&*state, Txn::new().put("other", n.to_string())).await;
    }
    let names = |kind: &str| (0..500).map(|n| format!("{kind}-{n}")).collect::<Vec<_>>();
    assert!(soon(state.get(&names("short"))).await.expect("get").iter().all(Option::is_none));
    assert!(soon(state.get(&names("kept"))).await.expect("get").iter().all(Option::is_some));
}

pub async fn members_are_in_the_order_of_their_bytes(fixture: Fixture<'_>) {
    let state = fixture.state();
    add(&*state, "s", &["b", "a", "ab", "B", "10", "9", "é"]).await;
    assert_eq!(scan(&*state, all("s")).await, bytes(&["10", "9", "B", "a", "ab", "b", "é"]));
    let backwards = scan(&*state, Scan { backwards: true, ..all("s") }).await;
    assert_eq!(backwards, bytes(&["é", "b", "ab", "a", "B", "9", "10"]));
}

pub async fn adding_twice_and_removing_what_is_not_there_are_harmless(fixture: Fixture<'_>) {
    let state = fixture.state();
    add(&*state, "s", &["a"]).await;
    add(&*state, "s", &["a", "b"]).await;
    commit(&*state, Txn::new().remove("s", "never").remove("no set", "x")).await;
    assert_eq!(scan(&*state, all("s")).await, bytes(&["a", "b"]));
    assert_eq!(count(&*state, "s").await, 2);
    assert_eq!(scan(&*state, all("no set")).await, bytes(&[]));
}

pub async fn sets_are_apart(fixture: Fixture<'_>) {
    let state = fixture.state();
    add(&*state, "s", &["a"]).await;
    add(&*state, "st", &["b"]).await;
    add(&*state, "s:", &["c"]).await;
    commit(&*state, Txn::new().put("value", "a value is no set")).await;
    assert_eq!(scan(&*state, all("s")).await, bytes(&["a"]));
    assert_eq!(scan(&*state, Scan { backwards: true, ..all("s") }).await, bytes(&["a"]));
    assert_eq!(count(&*state, "s").await, 1);
    assert_eq!(count(&*state, "s:").await, 1);
}

pub async fn a_scan_takes_prefix_limit_and_direction(fixture: Fixture<'_>) {
    let state = fixture.state();
    add(&*state, "s", &["a", "b", "b1", "b2", "b3", "c"]).await;
    let b = Scan { prefix: "b".into(), ..all("s") };
    assert_eq!(scan(&*state, b.clone()).await, bytes(&["b", "b1", "b2", "b3"]));
    assert_eq!(scan(&*state, Scan { limit: 2, ..b.clone() }).await, bytes(&["b", "b1"]));
    assert_eq!(scan(&*state, Scan { limit: 2, backwards: true, ..b.clone() }).await, bytes(&["b3", "b2"]));
    assert_eq!(scan(&*state, Scan { limit: 0, ..b.clone() }).await, bytes(&[]));
    assert_eq!(scan(&*state, Scan { prefix: "x".into(), ..b }).await, bytes(&[]));
}

pub async fn a_scan_goes_on_after_a_member(fixture: Fixture<'_>) {
    let state = fixture.state();
    add(&*state, "s", &["a", "b", "c", "d"]).await;
    let after = |member: &'static str| Scan { after: Some(member.into()), ..all("s") };
    assert_eq!(scan(&*state, after("b")).await, bytes(&["c", "d"]));
    assert_eq!(scan(&*state, after("bb")).await, bytes(&["c", "d"]), "the member need not be there");
    assert_eq!(scan(&*state, after("d")).await, bytes(&[]));
    let before = |member| Scan { backwards: true, ..after(member) };
    assert_eq!(scan(&*state, before("c")).await, bytes(&["b", "a"]));
    assert_eq!(scan(&*state, before("bb")).await, bytes(&["b", "a"]));
    assert_eq!(scan(&*state, before("a")).await, bytes(&[]));
}

pub async fn pages_forwards_and_backwards_cover_the_set_once(fixture: Fixture<'_>) {
    let state = fixture.state();
    let members: Vec<Bytes> = (0..100).map(|n| Bytes::from(format!("p{n:03}"))).collect();
    let txn = members.iter().fold(Txn::new(), |txn, member| txn.add("s", member.clone()));
    commit(&*state, txn.add("s", "a").add("s", "z")).await;
    for backwards in [false, true] {
        let mut found = Vec::new();
        loop {
            let page = Scan { prefix: "p".into(), after: found.last().cloned(), limit: 7, backwards, ..all("s") };
            let page = scan(&*state, page).await;
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        if backwards {
            found.reverse();
        }
        assert_eq!(found, members);
    }
}

pub async fn after_outside_of_the_prefix(fixture: Fixture<'_>) {
    let state = fixture.state();
    add(&*state, "s", &["a", "m1", "m2", "z"]).await;
    let m =
        |after: &'static str, backwards| Scan { prefix: "m".into(), after: Some(after.into()), backwards, ..all("s") };
    assert_eq!(scan(&*state, m("a", false)).await, bytes(&["m1", "m2"]));
    assert_eq!(scan(&*state, m("z", false)).await, bytes(&[]));
    assert_eq!(scan(&*state, m("z", true)).await, bytes(&["m2", "m1"]));
    assert_eq!(scan(&*state, m("a", true)).await, bytes(&[]));
}

pub async fn members_are_any_bytes(fixture: Fixture<'_>) {
    let state = fixture.state();
    let members: Vec<Bytes> = [&[0][..], &[0, 0], &[0, 255], &[10], &[91], &[254, 255], &[255], &[255, 0], &[255, 255]]
        .map(Bytes::copy_from_slice)
        .into();
    let txn = members.iter().rev().fold(Txn::new(), |txn, member| txn.add("s", member.clone()));
    commit(&*state, txn).await;
    assert_eq!(scan(&*state, all("s")).await, members);
    let high = Scan { prefix: Bytes::from_static(&[255]), ..all("s") };
    assert_eq!(scan(&*state, high.clone()).await, members[6..]);
    let back = Scan { after: Some(Bytes::from_static(&[255, 255])), backwards: true, ..high };
    assert_eq!(scan(&*state, back).await, [members[7].clone(), members[6].clone()]);
    commit(&*state, Txn::new().remove("s", members[1].clone())).await;
    assert_eq!(count(&*state, "s").await, 8);
}

pub async fn counts_follow_every_change(fixture: Fixture<'_>) {
    let state = fixture.state();
    assert_eq!(count(&*state, "s").await, 0);
    add(&*state, "s", &["a", "b"]).await;
    assert_eq!(count(&*state, "s").await, 2);
    let txns = vec![Txn::new().add("s", "c").remove("s", "a"), Txn::new().remove("s", "c").add("s", "b").add("s", "d")];
    soon(state.commit(txns)).await.expect("commit");
    assert_eq!(count(&*state, "s").await, 2);
    drop(state);
    fixture.reopen().await;
    let state = fixture.state();
    add(&*state, "s", &["e"]).await;
    assert_eq!(count(&*state, "s").await, 3);
    commit(&*state, Txn::new().remove("s", "b").remove("s", "d").remove("s", "e")).await;
    assert_eq!(count(&*state, "s").await, 0);
}

async fn increment(state: &dyn State, times: u32) {
    for _ in 0..times {
        loop {
            let old = get(state, "counter").await;
            let number: u32 = old.as_ref().map_or(0, |old| String::from_utf8_lossy(old).parse().expect("a number"));
            let expect = old.map_or(Expect::Absent, Expect::Is);
            let txn = Txn::new().check("counter", expect).put("counter", (number + 1).to_string());
            if commit(state, txn).await == Outcome::Done {
                break;
            }
        }
    }
}

pub async fn concurrent_increments_lose_nothing(fixture: Fixture<'_>) {
    let state = fixture.state();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let state = state.clone();
            tokio::spawn(async move { increment(&*state, 25).await })
        })
        .collect();
    for task in tasks {
        task.await.expect("task");
    }
    assert_eq!(get(&*state, "counter").await, Some("200".into()));
}

pub async fn concurrent_claims_have_one_winner(fixture: Fixture<'_>) {
    let state = fixture.state();
    let tasks: Vec<_> = (0..16)
        .map(|n: u32| {
            let state = state.clone();
            let claim = Txn::new().check("k", Expect::Absent).put("k", n.to_string()).add("winners", n.to_string());
            tokio::spawn(async move { commit(&*state, claim).await })
        })
        .collect();
    let mut won = 0;
    for task in tasks {
        won += u32::from(task.await.expect("task") == Outcome::Done);
    }
    assert_eq!(won, 1);
    assert_eq!(scan(&*state, all("winners")).await, [get(&*state, "k").await.expect("a winner")]);
}

pub async fn a_get_never_sees_half_of_a_commit(fixture: Fixture<'_>) {
    let state = fixture.state();
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    let writer = {
        let (state, keys) = (state.clone(), keys.clone());
        tokio::spawn(async move {
            for round in 0..200 {
                let txn = keys.iter().fold(Txn::new(), |txn, key| txn.put(key, round.to_string()));
                commit(&*state, txn).await;
            }
        })
    };
    while !writer.is_finished() {
        let values = soon(state.get(&keys)).await.expect("get");
        assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    }
    writer.await.expect("writer");
}

pub async fn everything_is_there_after_a_restart(fixture: Fixture<'_>) {
    let state = fixture.state();
    let txn = Txn::new().put("kept", "v").put_for("ends", "v", Duration::from_millis(50)).add("s", "m");
    commit(&*state, txn.put_for("later", "v", Duration::from_secs(3600)).put("deleted", "v")).await;
    commit(&*state, Txn::new().delete("deleted").put("kept", "w")).await;
    drop(state);
    fixture.reopen().await;
    let state = fixture.state();
    assert_eq!(get(&*state, "kept").await, Some("w".into()));
    assert_eq!(get(&*state, "deleted").await, None);
    assert_eq!(get(&*state, "later").await, Some("v".into()));
    assert_eq!(scan(&*state, all("s")).await, bytes(&["m"]));
    until("the short one is absent", || async { get(&*state, "ends").await.is_none() }).await;
}

pub async fn ping_answers(fixture: Fixture<'_>) {
    soon(fixture.state().ping()).await.expect("ping");
}
