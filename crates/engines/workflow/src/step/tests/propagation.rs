//! Histories passed on to activities and children, and received from a parent.

use std::time::SystemTime;

use outrigger_identity::TrustAnchors;
use outrigger_identity::testing::{Algorithm, Authority};
use outrigger_wire::durabletask::{
    HistoryPropagationScope as Scope, PropagatedHistory, PropagatedHistoryChunk,
    RerunWorkflowFromEventRequest,
};

use super::*;
use crate::propagation::scope;
use crate::rerun::Rerun;
use crate::signing::{Trust, TrustedChains, sign_chunk, verify_propagated};

fn task(id: i32, scope: Scope) -> WorkflowAction {
    let task = ScheduleTaskAction {
        name: format!("task {id}"),
        history_propagation_scope: Some(scope.into()),
        ..ScheduleTaskAction::default()
    };
    action(id, Act::ScheduleTask(task))
}

fn child(id: i32, scope: Scope) -> WorkflowAction {
    let child = CreateChildWorkflowAction {
        history_propagation_scope: Some(scope.into()),
        ..CreateChildWorkflowAction::default()
    };
    action(id, Act::CreateChildWorkflow(child))
}

fn chunk(app: &str, events: &[&'static str]) -> PropagatedHistoryChunk {
    PropagatedHistoryChunk {
        raw_events: events
            .iter()
            .map(|event| Bytes::from_static(event.as_bytes()))
            .collect(),
        app_id: app.to_owned(),
        raw_signatures: vec![Bytes::from_static(b"signed")],
        ..PropagatedHistoryChunk::default()
    }
}

fn received(scope: Scope) -> PropagatedHistory {
    PropagatedHistory {
        scope: scope.into(),
        chunks: vec![chunk("first", &["a", "b"]), chunk("second", &["c"])],
    }
}

/// An instance that has received a history, before its first step.
fn created(received: Option<PropagatedHistory>) -> Instance {
    let mut instance = Instance::new("a");
    instance.start(started(), received);
    instance
}

fn events(chunk: &PropagatedHistoryChunk) -> Vec<HistoryEvent> {
    let decoded = chunk.raw_events.iter().cloned().map(HistoryEvent::decode);
    decoded.map(Result::unwrap).collect()
}

/// The history of each task and child of an outcome.
fn passed(outcome: &Outcome, instance: &Instance) -> Vec<Option<PropagatedHistory>> {
    let propagation = outcome.propagation("app", instance);
    let tasks = outcome.tasks.iter();
    let tasks = tasks.map(|task| propagation.of(task.event_id, scope(task)));
    let children = outcome.messages.iter();
    let children = children.map(|child| propagation.of(child.cause.unwrap(), child.propagates));
    tasks.chain(children).collect()
}

#[test]
fn passes_history_up_to_scheduling() {
    let mut instance = created(None);
    let step = begin(&mut instance);
    let first = acts(vec![
        task(0, Scope::None),
        task(1, Scope::OwnHistory),
        child(2, Scope::Lineage),
    ]);
    let outcome = done(answer(&instance, step, first));
    let all = passed(&outcome, &instance);
    assert_eq!(all[0], None);
    for (passed, scope, own) in [(&all[1], Scope::OwnHistory, 1), (&all[2], Scope::Lineage, 2)] {
        let PropagatedHistory { scope: sent, chunks } = passed.clone().unwrap();
        let [chunk] = chunks.as_slice() else {
            panic!("{chunks:?}")
        };
        assert_eq!(sent, i32::from(scope));
        let of = (
            chunk.app_id.as_str(),
            chunk.instance_id.as_str(),
            chunk.workflow_name.as_str(),
        );
        assert_eq!(of, ("app", "a", "w"));
        let ids: Vec<_> = events(chunk).iter().map(|event| event.event_id).collect();
        let until: Vec<_> = [-1, -1].into_iter().chain(0..=own).collect();
        assert_eq!(ids, until, "not what is scheduled later");
    }
    // The next step passes on the stored events as well, byte by byte.
    instance.commit(outcome);
    instance.push(raised("x"));
    let step = begin(&mut instance);
    let outcome = done(answer(&instance, step, acts(vec![task(3, Scope::OwnHistory)])));
    let own = passed(&outcome, &instance).remove(0).unwrap().chunks.remove(0);
    instance.commit(outcome);
    assert!(own.raw_events.iter().cloned().eq(instance.history.iter()));
    let kept: Vec<_> = events(&own)
        .iter()
        .map(scope)
        .filter(|scope| *scope != Scope::None)
        .collect();
    assert_eq!(kept, [Scope::OwnHistory, Scope::Lineage, Scope::OwnHistory]);
}

#[test]
fn forwards_received_history_only_with_lineage() {
    let mut instance = created(Some(received(Scope::OwnHistory)));
    let step = begin(&mut instance);
    let acts = acts(vec![task(0, Scope::OwnHistory), task(1, Scope::Lineage)]);
    let outcome = done(answer(&instance, step, acts));
    let all: Vec<_> = passed(&outcome, &instance)
        .into_iter()
        .map(|passed| passed.unwrap().chunks)
        .collect();
    assert_eq!(all[0].len(), 1);
    assert_eq!(
        all[1][..2],
        received(Scope::Lineage).chunks,
        "signatures included"
    );
    assert_eq!(all[1].len(), 3);
    assert_eq!(all[1][2].app_id, "app");
}

#[test]
fn unknown_scope_passes_nothing() {
    let mut instance = created(None);
    let step = begin(&mut instance);
    let later = ScheduleTaskAction {
        history_propagation_scope: Some(7),
        ..ScheduleTaskAction::default()
    };
    let acts = acts(vec![action(0, Act::ScheduleTask(later))]);
    let outcome = done(answer(&instance, step, acts));
    assert_eq!(passed(&outcome, &instance), [None]);
}

#[test]
fn worker_gets_received_history_each_step() {
    let mut instance = created(Some(received(Scope::Lineage)));
    for id in 0..2 {
        let step = begin(&mut instance);
        let request = WorkflowRequest::decode(step.request(&instance).concat().as_slice()).unwrap();
        assert_eq!(request.propagated_history, Some(received(Scope::Lineage)));
        assert_eq!(request.past_events, instance.history());
        let outcome = done(answer(&instance, step, acts(vec![task(id, Scope::None)])));
        instance.commit(outcome);
        instance.push(raised("x"));
    }
    let mut root = created(None);
    let request = begin(&mut root).request(&root).concat();
    let request = WorkflowRequest::decode(request.as_slice()).unwrap();
    assert_eq!(request.propagated_history, None);
}

/// The next execution of an instance that continues as new in its second step.
fn continued(received: Option<PropagatedHistory>) -> (Instance, Step) {
    let mut instance = created(received);
    let step = begin(&mut instance);
    let outcome = done(answer(&instance, step, acts(vec![task(0, Scope::Lineage)])));
    instance.commit(outcome);
    instance.push(raised("x"));
    let step = begin(&mut instance);
    let again = acts(vec![complete(1, OrchestrationStatus::ContinuedAsNew)]);
    match answer(&instance, step, again).unwrap() {
        Answered::ContinuedAsNew(next) => (instance, *next),
        Answered::Done(outcome) => panic!("{outcome:?}"),
    }
}

#[test]
fn continue_as_new_forwards_received_history() {
    for (scope, before) in [(Scope::Lineage, 2), (Scope::OwnHistory, 0)] {
        let (mut instance, next) = continued(Some(received(scope)));
        let sent = WorkflowRequest::decode(next.request(&instance).concat().as_slice()).unwrap();
        let history = sent.propagated_history.unwrap();
        assert_eq!(history.scope, i32::from(scope));
        assert_eq!(history.chunks[..before], received(scope).chunks[..before]);
        let own = events(history.chunks.last().unwrap());
        assert_eq!((history.chunks.len(), own.len()), (before + 1, 5));
        assert_eq!(own[..3], instance.history()[..]);
        // The history of the new execution has only its own events.
        let outcome = done(answer(&instance, next, acts(vec![task(0, Scope::Lineage)])));
        let passed = passed(&outcome, &instance).remove(0).unwrap();
        assert_eq!(passed.chunks[..=before], history.chunks);
        assert_eq!(events(&passed.chunks[before + 1]).len(), 3);
        let change = instance.commit(outcome);
        let stored = change.upserts.iter().find(|(key, _)| key == "propagated-history");
        assert_eq!(stored.unwrap().1, history.encode_to_vec());
        assert_eq!(instance.received(), stored.map(|(_, value)| value));
    }
    // A workflow without a parent has none to forward.
    let (instance, next) = continued(None);
    assert_eq!(next.received, None);
    // A worker that disconnects after continue-as-new does not lose it.
    let (mut with, next) = continued(Some(received(Scope::Lineage)));
    let forwarded = next.received.clone();
    with.commit(next.abandoned(&with).unwrap());
    assert!(forwarded.is_some() && with.received() == forwarded.as_ref());
    assert_eq!(begin(&mut with).received, forwarded);
    drop(instance);
}

#[test]
fn received_history_counts_to_limits() {
    let size = received(Scope::Lineage).encoded_len();
    let limit = Limit(size + 20);
    let mut instance = created(Some(received(Scope::Lineage)));
    let StepStart::Stalled(outcome) = instance.begin("app", None, AT, limit) else {
        panic!("no stall")
    };
    let why = outcome.stalled.unwrap().description.unwrap();
    assert!(
        why.starts_with("Workflow payload size") && why.contains("increase daprd --max-body-size"),
        "{why}"
    );
    // An activity with its received history, and a child.
    let own = |scope| {
        let mut instance = created(Some(received(Scope::Lineage)));
        let step = begin(&mut instance);
        let outcome = done(answer(&instance, step, acts(vec![scope])));
        let task = outcome
            .tasks
            .first()
            .or_else(|| outcome.messages.first().map(|child| &child.event));
        (
            task.unwrap().encoded_len(),
            passed(&outcome, &instance)[0].clone(),
        )
    };
    for scheduled in [task(0, Scope::Lineage), child(0, Scope::Lineage)] {
        let (alone, passed) = own(scheduled.clone());
        let whole = alone + passed.unwrap().encoded_len();
        for (limit, stalls) in [(whole, true), (whole * 2, false)] {
            let step = begin(&mut created(Some(received(Scope::Lineage))));
            let instance = created(Some(received(Scope::Lineage)));
            let outcome = done(answer_within(
                limit,
                &instance,
                step,
                acts(vec![scheduled.clone()]),
            ));
            assert_eq!(outcome.stalled.is_some(), stalls, "{scheduled:?} {limit}");
        }
    }
}

/// Each generation adds a chunk: the instance stalls before its request can no longer be sent.
#[test]
fn oversized_continue_as_new_stalls() {
    let (instance, next) = continued(Some(received(Scope::Lineage)));
    let again = || acts(vec![complete(1, OrchestrationStatus::ContinuedAsNew)]);
    let room = next.size() * 2;
    let mut step = next;
    for _ in 0..MAX_RESTARTS {
        match answer_within(room, &instance, step, again()).unwrap() {
            Answered::ContinuedAsNew(next) => step = *next,
            Answered::Done(outcome) => {
                assert!(outcome.stalled.is_some() && outcome.restarted);
                return;
            }
        }
    }
    panic!("no stall");
}

#[test]
fn rerun_passes_on_its_own_history() {
    let mut source = created(None);
    let step = begin(&mut source);
    let outcome = done(answer(
        &source,
        step,
        acts(vec![task(0, Scope::Lineage), child(1, Scope::OwnHistory)]),
    ));
    source.commit(outcome);
    source.push(raised("x"));
    let step = begin(&mut source);
    let ended = acts(vec![complete(2, OrchestrationStatus::Completed)]);
    let outcome = done(answer(&source, step, ended));
    source.commit(outcome);
    let request = RerunWorkflowFromEventRequest {
        event_id: 1,
        new_instance_id: Some("new".to_owned()),
        ..RerunWorkflowFromEventRequest::default()
    };
    let state = source.fork(&request).unwrap();
    let (again, _) = Instance::from_fork("new", state, AT, &mut || "id".to_owned()).unwrap();
    let made = again.stored();
    let Rerun { tasks, children, .. } = again.rerun(made, "app", AT, &mut || "id".to_owned());
    let propagation = again.propagation("app", made.history);
    let task = propagation.of(tasks[0].event_id, scope(&tasks[0])).unwrap();
    let child = propagation
        .of(children[0].cause.unwrap(), children[0].propagates)
        .unwrap();
    for passed in [task, child] {
        let [chunk] = passed.chunks.as_slice() else {
            panic!("{passed:?}")
        };
        assert_eq!(
            (chunk.instance_id.as_str(), chunk.workflow_name.as_str()),
            ("new", "w")
        );
        assert_eq!(events(chunk), again.history());
    }
}

#[test]
fn signs_and_verifies_received_history() {
    let authority = Authority::new("td", Algorithm::P256);
    let anchors = TrustAnchors::new(authority.bundle());
    let trust = Trust {
        anchors: &anchors,
        namespace: "shop",
        app_id: "app",
    };
    let [own, parent] = ["app", "first"].map(|app| authority.workload("shop", app).into_svid());
    let at = Timestamp::from(SystemTime::now());
    let start = EventType::ExecutionStarted(ExecutionStartedEvent::default());
    let start = event(NO_ID, at, start);
    let mut chunk = PropagatedHistoryChunk {
        raw_events: vec![start.encode_to_vec().into()],
        app_id: "first".to_owned(),
        ..PropagatedHistoryChunk::default()
    };
    sign_chunk(&parent, &mut chunk).unwrap();
    let received = PropagatedHistory {
        scope: Scope::Lineage.into(),
        chunks: vec![chunk],
    };
    let signers = verify_propagated(&received, trust).unwrap();
    let mut instance = Instance::new("a");
    let mut change = instance.start(start, Some(received.clone()));
    instance.keep_signers(signers);
    instance.sign(&mut change, &own).unwrap();
    let is_stored = |prefix: &str| change.upserts.iter().any(|(key, _)| key.starts_with(prefix));
    assert!(is_stored("ext-sigcert-") && is_stored("propagated-history"));
    let verify = |instance: &Instance| instance.verify(Some(trust), &mut TrustedChains::default());
    assert_eq!(verify(&instance), Ok(()));
    assert_eq!(
        instance.decoded_received(),
        Some(received.clone()),
        "not signed again"
    );
    // The chunk that the next execution receives is signed when it is stored.
    let StepStart::Step(step) = instance.begin("app", None, at, Limit(0)) else {
        panic!("no step");
    };
    let outside = &mut StepContext {
        at,
        trace: None,
        new_id: &mut || "id".to_owned(),
        new_trace,
        limit: Limit(0),
    };
    let again = acts(vec![complete(0, OrchestrationStatus::ContinuedAsNew)]);
    let Answered::ContinuedAsNew(next) = step.answer(&instance, again, outside).unwrap() else {
        panic!("not continued");
    };
    let mut change = instance.commit(next.abandoned(&instance).unwrap());
    instance.sign(&mut change, &own).unwrap();
    let stored = change.upserts.iter().find(|(key, _)| key == "propagated-history");
    assert_eq!(instance.received(), stored.map(|(_, value)| value));
    assert_eq!(verify(&instance), Ok(()));
    let history = instance.decoded_received().unwrap();
    assert_eq!(
        (history.chunks.len(), &history.chunks[0]),
        (2, &received.chunks[0])
    );
    for index in 0..2 {
        let mut changed = history.clone();
        changed.chunks[index].instance_id = "b".to_owned();
        let mut instance = instance.clone();
        instance.received = Some(changed.encode_to_vec().into());
        let error = verify(&instance).unwrap_err().to_string();
        assert!(
            error.contains("persisted propagated history failed verification"),
            "{error}"
        );
    }
}
