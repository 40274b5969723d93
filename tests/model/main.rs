//! A model of the protocol that carries requests from the stream to their end: leases with epochs, reader, scheduler,
//! services with late effects, failed-operations queue, compensator, cancel, crashes between any two actions, two
//! processes. Every order in which things can happen, within the bounds below, is tried.
//!
//! The rules are then switched off one by one: a model that did not notice would prove nothing.

mod protocol;
mod state;
mod steps;

use protocol::{ALL_RULES, ENDS, Faults, NEVER_PASSES, ONCE, ONLY_GROWS, Protocol, Rules, SCHEDULED, UNDONE};
use state::Operation::{self, Cancel, Schedule};
use stateright::{Checker, Model};

fn check(stream: &[Operation], faults: Faults) {
    let checker =
        Protocol { stream: stream.to_vec(), rules: ALL_RULES, faults }.checker().threads(2).spawn_bfs().join();
    for promise in [ENDS, ONCE, NEVER_PASSES, ONLY_GROWS] {
        checker.assert_no_discovery(promise);
    }
    for example in [SCHEDULED, UNDONE] {
        checker.assert_any_discovery(example);
    }
}

#[test]
fn one_delivery_with_crashes_and_a_late_effect() {
    check(&[Schedule(0)], Faults { crashes: 2, timeouts: 1, refusals: 1, ..Faults::default() });
}

#[test]
fn a_frozen_owner_beside_its_successor() {
    check(&[Schedule(0)], Faults { crashes: 1, timeouts: 1, freezes: 1, ..Faults::default() });
}

#[test]
fn a_cancel_behind_its_request() {
    check(&[Schedule(0), Cancel(0)], Faults { crashes: 1, timeouts: 1, ..Faults::default() });
}

#[test]
fn a_cancel_and_a_frozen_owner() {
    check(&[Schedule(0), Cancel(0)], Faults { freezes: 1, ..Faults::default() });
}

#[test]
fn a_sweeper_that_is_too_early() {
    check(&[Schedule(0)], Faults { crashes: 1, sweeps: 1, ..Faults::default() });
}

#[test]
fn two_deliveries_out_of_order() {
    check(&[Schedule(0), Schedule(1)], Faults { crashes: 1, refusals: 1, ..Faults::default() });
}

/// With a rule switched off, this promise is broken.
fn breaks(promise: &'static str, rules: Rules, stream: &[Operation], faults: Faults) {
    let checker = Protocol { stream: stream.to_vec(), rules, faults }.checker().threads(2).spawn_bfs().join();
    let broken: Vec<_> = checker.discoveries().into_keys().collect();
    assert!(broken.contains(&promise), "only {broken:?}");
}

const CRASHES: Faults = Faults { crashes: 1, timeouts: 1, refusals: 1, freezes: 0, sweeps: 0 };
const FREEZES: Faults = Faults { crashes: 0, timeouts: 0, refusals: 0, freezes: 1, sweeps: 0 };

#[test]
fn tombstones_are_needed() {
    let rules = Rules { tombstones: false, ..ALL_RULES };
    breaks(ENDS, rules, &[Schedule(0)], CRASHES);
    breaks(ONCE, rules, &[Schedule(0)], CRASHES);
}

#[test]
fn idempotent_steps_are_needed() {
    breaks(ONCE, Rules { idempotent: false, ..ALL_RULES }, &[Schedule(0)], CRASHES);
}

#[test]
fn handing_over_before_the_checkpoint_is_needed() {
    breaks(NEVER_PASSES, Rules { hand_over_first: false, ..ALL_RULES }, &[Schedule(0)], CRASHES);
}

#[test]
fn the_fence_is_needed() {
    breaks(ONLY_GROWS, Rules { fenced: false, ..ALL_RULES }, &[Schedule(0), Schedule(1)], FREEZES);
}

#[test]
fn checked_records_are_needed() {
    breaks(ENDS, Rules { checked_records: false, ..ALL_RULES }, &[Schedule(0), Cancel(0)], FREEZES);
}

#[test]
fn cancelling_every_step_is_needed() {
    breaks(ENDS, Rules { cancel_every_step: false, ..ALL_RULES }, &[Schedule(0)], CRASHES);
}
