//! No sequence of events breaks the rules, and the ways that matter lead where they should.

use proptest::prelude::*;

use super::*;
use crate::domain::OperationKind;
use crate::domain::request::samples;
use crate::domain::time::from_millis;

fn fresh() -> Workflow {
    let request = Arc::new(samples::request());
    let operation = Operation {
        id: DeliveryId::parse("d-1").unwrap(),
        at: from_millis(0),
        trace: None,
        op: OperationKind::Schedule(request.clone()),
    };
    Workflow::accepted(&operation, request, from_millis(60_000))
}

fn failure() -> Failure {
    Failure::new(ReasonCode::ServiceUnavailable, "away")
}

fn events() -> impl Strategy<Value = Event> {
    let step = || prop::sample::select(StepName::ALL.to_vec());
    prop_oneof![
        Just(Event::Started),
        step().prop_map(Event::StepStarted),
        step().prop_map(|s| Event::StepRetried(s, failure())),
        step().prop_map(|s| Event::StepDone(s, Output::Nothing)),
        step().prop_map(|s| Event::StepDone(s, Output::Nothing)),
        step().prop_map(|s| Event::StepFailed(s, failure())),
        step().prop_map(|s| Event::StepUnknown(s, failure())),
        Just(Event::Failing(failure())),
        Just(Event::CancelRequested),
        step().prop_map(Event::StepUndone),
        step().prop_map(Event::StepUndone),
        Just(Event::Undone),
        Just(Event::UndoGaveUp(failure())),
        Just(Event::Redriven),
        Just(Event::Abandoned),
        Just(Event::Completed),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever happens in whatever order: nothing is scheduled with a step open, nothing ends with a step
    /// standing, and what does not fit changes nothing.
    #[test]
    fn no_sequence_of_events_breaks_the_rules(sequence in prop::collection::vec(events(), 0..60)) {
        let mut workflow = fresh();
        let mut abandoned = false;
        for event in sequence {
            let before = workflow.clone();
            let gave_up = event == Event::Abandoned;
            if workflow.apply(event, from_millis(1)).is_err() {
                prop_assert_eq!(&workflow, &before);
            } else {
                abandoned |= gave_up;
            }
            let standing = workflow.steps.iter().any(|s| {
                matches!(s.state, StepState::Done | StepState::Unknown | StepState::Running)
            });
            match workflow.status {
                Status::Scheduled | Status::Completed => {
                    prop_assert!(workflow.steps.iter().all(|s| s.state == StepState::Done));
                }
                Status::Failed | Status::Cancelled => prop_assert!(!standing || abandoned),
                _ => {}
            }
            prop_assert!(compact::decode::<Workflow>(&compact::encode(&workflow)).unwrap() == workflow);
        }
    }
}

#[test]
fn five_steps_make_it_scheduled() {
    let mut workflow = fresh();
    workflow.apply(Event::Started, from_millis(1)).unwrap();
    while let Some(step) = workflow.next_step() {
        workflow.apply(Event::StepStarted(step), from_millis(2)).unwrap();
        workflow.apply(Event::StepDone(step, Output::Nothing), from_millis(3)).unwrap();
    }
    assert_eq!(workflow.status, Status::Scheduled);
}

#[test]
fn what_was_done_or_may_have_been_is_undone_in_reverse() {
    let mut workflow = fresh();
    workflow.apply(Event::Started, from_millis(1)).unwrap();
    for step in [StepName::Account, StepName::Package] {
        workflow.apply(Event::StepDone(step, Output::Nothing), from_millis(2)).unwrap();
    }
    workflow.apply(Event::StepUnknown(StepName::Transport, failure()), from_millis(2)).unwrap();
    workflow.apply(Event::Failing(failure()), from_millis(3)).unwrap();
    let mut undone = Vec::new();
    while let Some(step) = workflow.next_undo() {
        undone.push(step);
        workflow.apply(Event::StepUndone(step), from_millis(4)).unwrap();
    }
    assert_eq!(undone, [StepName::Transport, StepName::Package, StepName::Account]);
    workflow.apply(Event::Undone, from_millis(5)).unwrap();
    assert_eq!(workflow.status, Status::Failed);
}
