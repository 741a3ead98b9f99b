//! The cost of a step does not depend on the length of the history: allocations are asserted, time is
//! printed.

use std::alloc::System;
use std::hint::black_box;
use std::time::Instant;

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::workflow_action::WorkflowActionType;
use outrigger_wire::durabletask::{
    ExecutionStartedEvent, HistoryEvent, ScheduleTaskAction, TaskCompletedEvent, WorkflowAction,
    WorkflowResponse,
};
use outrigger_workflow::event::{NO_ID, event};
use outrigger_workflow::{Answered, Change, Instance, Limit, StepContext, StepStart};
use prost_types::Timestamp;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const AT: Timestamp = Timestamp { seconds: 1, nanos: 0 };

/// A step of a chain: the last activity's result arrives and the next activity is scheduled. Returns the
/// change and the bytes sent to the worker.
fn step(instance: &mut Instance, id: i32) -> (Change, usize) {
    let came = match id {
        0 => EventType::ExecutionStarted(ExecutionStartedEvent {
            name: "chain".to_owned(),
            input: Some("1".to_owned()),
            ..ExecutionStartedEvent::default()
        }),
        id => EventType::TaskCompleted(TaskCompletedEvent {
            task_scheduled_id: id - 1,
            result: Some("\"a result of some length\"".to_owned()),
            ..TaskCompletedEvent::default()
        }),
    };
    let came: HistoryEvent = event(NO_ID, AT, came);
    drop(match id {
        0 => instance.start(came, None),
        _ => instance.add(vec![came], Limit::default()).change,
    });
    let StepStart::Step(step) = instance.begin("app", None, AT, Limit(0)) else {
        panic!("a step begins");
    };
    let sent = step.request(instance).iter().map(bytes::Bytes::len).sum();
    let action = WorkflowAction {
        id,
        workflow_action_type: Some(WorkflowActionType::ScheduleTask(ScheduleTaskAction {
            name: "activity".to_owned(),
            input: Some("\"an input of some length\"".to_owned()),
            ..ScheduleTaskAction::default()
        })),
        ..WorkflowAction::default()
    };
    let response = WorkflowResponse {
        actions: vec![action],
        ..WorkflowResponse::default()
    };
    let outside = &mut StepContext {
        at: AT,
        trace: None,
        new_id: &mut String::new,
        new_trace: Default::default,
        limit: Limit(0),
    };
    let Ok(Answered::Done(outcome)) = step.answer(instance, response, outside) else {
        panic!("the step ends");
    };
    (instance.commit(*outcome), sent)
}

#[test]
fn step_cost_is_independent_of_history() {
    const STEPS: usize = 64;
    let mut instance = Instance::new("a");
    let (mut next, mut costs) = (0, Vec::new());
    println!("events in the history | operations stored | bytes sent | bytes allocated | time of a step, µs");
    for events in [10, 100, 1_000, 10_000] {
        while instance.facts().len < events {
            step(&mut instance, next);
            next += 1;
        }
        let (region, began) = (Region::new(ALLOCATOR), Instant::now());
        let (mut operations, mut sent) = (0, 0);
        for _ in 0..STEPS {
            let (change, bytes) = black_box(step(&mut instance, next));
            next += 1;
            operations = change.len();
            sent = bytes;
        }
        let time = began.elapsed().as_secs_f64() * 1e6 / 64.0;
        let allocated = region.change().bytes_allocated / STEPS;
        println!("{events} | {operations} | {sent} | {allocated} | {time:.1}");
        costs.push(allocated);
        assert!(operations < 10, "a step stores what is new");
    }
    // Up to one piece of the history is copied, and tables grow occasionally.
    assert!(costs[3] < costs[1] + 64 * 1024, "{costs:?}");
}
