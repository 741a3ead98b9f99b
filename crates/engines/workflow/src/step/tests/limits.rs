//! Size and number limits of a step.

use super::*;

#[test]
fn oversized_instance_stalls_before_request() {
    let mut instance = Instance::new("a");
    instance.start(started(), None);
    match instance.begin("app", None, AT, Limit(8)) {
        StepStart::Stalled(outcome) => {
            instance.commit(*outcome);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(instance.status(), OrchestrationStatus::Stalled);
}

#[test]
fn oversized_activity_stalls_step() {
    let mut instance = Instance::new("a");
    instance.start(started(), None);
    let step = begin(&mut instance);
    let large = ScheduleTaskAction {
        input: Some("x".repeat(2000)),
        ..ScheduleTaskAction::default()
    };
    let acts = acts(vec![task(0), action(1, Act::ScheduleTask(large))]);
    let outcome = done(answer_within(2000, &instance, step, acts));
    assert!(outcome.tasks.is_empty(), "none is started");
    let refused: Vec<_> = outcome.refused.iter().map(|task| task.event_id).collect();
    assert_eq!(refused, [0, 1]);
    let why = outcome.stalled.unwrap().description.unwrap();
    assert!(why.contains("activity '::1'") && why.contains("exceeds"), "{why}");
}

#[test]
fn excess_or_duplicate_actions_fail_step() {
    let failed = |actions: Vec<WorkflowAction>| {
        let mut instance = Instance::new("a");
        instance.start(started(), None);
        let step = begin(&mut instance);
        answer(&instance, step, acts(actions)).err()
    };
    let repeated = StepError::RepeatedAction {
        instance: "a".to_owned(),
        action: 1,
    };
    assert_eq!(failed(vec![task(1), task(2), task(1)]), Some(repeated));
    let actions = MAX_ACTIONS + 1;
    let too_many = StepError::TooManyActions {
        instance: "a".to_owned(),
        actions,
    };
    assert_eq!(failed(vec![task(0); actions]), Some(too_many));
    assert_eq!(failed(vec![task(1), task(2)]), None);
}

#[test]
fn too_long_history_stalls() {
    let mut instance = after(acts(vec![task(0)]));
    let last = MAX_ENTRIES - 4;
    while instance.history.len() < last {
        instance.history.push(&[]);
    }
    drop(instance.change());
    instance.push(raised("x"));
    let step = begin(&mut instance);
    let outcome = done(answer(&instance, step, acts(vec![task(1), task(2)])));
    let stalled = outcome.stalled.clone().unwrap();
    assert_eq!(stalled.reason(), StalledReason::PayloadSizeExceeded);
    assert!(
        stalled.description.as_ref().unwrap().contains("999999"),
        "{stalled:?}"
    );
    drop(instance.commit(outcome));
    assert_eq!(instance.stored().history, last + 1);
    // The stored state is readable.
    crate::stored::Counts::read("a", &instance.stored().encoded()).unwrap();
    instance.history.push(&[]);
    instance.push(raised("y"));
    assert!(matches!(
        instance.begin("app", None, AT, Limit(0)),
        StepStart::Stalled(_)
    ));
}
