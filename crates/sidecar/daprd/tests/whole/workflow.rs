//! Workflows on whole sidecars, run by a worker: activities, timers, events, children, continue-as-new and
//! other apps, including lost workers and sidecars.

mod concurrency;
mod counts;
mod ends;
mod family;
mod kills;
mod limits;
mod propagation;
mod reuse;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use outrigger_wire::durabletask::history_event::EventType;
use outrigger_wire::durabletask::{
    GetInstanceHistoryRequest, GetInstanceHistoryResponse, GetInstanceRequest, GetInstanceResponse,
    HistoryEvent, OrchestrationStatus as Status, RerunWorkflowFromEventRequest,
    RerunWorkflowFromEventResponse, WorkflowState,
};
use prost::Message;
use tempfile::TempDir;

use crate::common::grpc::{self, Outcome};
use crate::common::worker::{Tasks, Worker};
use crate::common::{Control, Net, Node, Placement, Plan, eventually, get, post};
use crate::replay::End;

const STORE: &str = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  \
                     type: state.sqlite\n  version: v1\n  metadata:\n  - name: connectionString\n    value: 'FILE'\n  \
                     - name: actorStateStore\n    value: 'true'\n";

/// Workers' answers may reach any sidecar of the app.
const CLUSTERED: &str = "  features:\n  - name: WorkflowsClusteredDeployment\n    enabled: true\n";

/// The environment of sidecars with workflows.
struct World {
    net: Net,
    placement: Placement,
    control: Control,
    folder: TempDir,
}

impl World {
    async fn new() -> Self {
        Self {
            net: Net::plain(),
            placement: Placement::start().await,
            control: Control::scheduler().await,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// A sidecar of `app`; sidecars of one app share a store.
    fn sidecar(&self, app: &str) -> Plan<'_> {
        let file = self.folder.path().join(format!("{app}.db"));
        let store = STORE.replace("FILE", &file.display().to_string());
        let plan = self.net.sidecar(app).resource(&store);
        self.control.with_scheduler(plan).flag(&self.placement.flag())
    }

    async fn hosts(&self, app: &str, count: usize) {
        let kind = format!("dapr.internal.default.{app}.workflow");
        eventually(async || self.placement.has(&kind, count)).await;
    }

    /// A sidecar with a worker.
    async fn with_worker(&self, app: &str, tasks: Tasks) -> (Node, Worker, Arc<Tasks>) {
        let node = self.sidecar(app).start().await;
        let tasks = Arc::new(tasks);
        let worker = Worker::connect(&node, &tasks).await;
        self.hosts(app, 1).await;
        (node, worker, tasks)
    }
}

async fn hub(node: &Node, method: &str, message: &impl Message) -> Outcome {
    grpc::unary(
        node.ports.grpc,
        &format!("/TaskHubSidecarService/{method}"),
        &[],
        message,
    )
    .await
}

async fn start(node: &Node, name: &str, id: &str, input: &str) {
    let started = node
        .ask(post(
            &format!("/v1.0/workflows/dapr/{name}/start?instanceID={id}"),
            input.to_owned(),
        ))
        .await;
    assert_eq!(started.status, 202, "{}", started.text());
}

async fn raise(node: &Node, id: &str, event: &str, data: &str) {
    let raised = node
        .ask(post(
            &format!("/v1.0/workflows/dapr/{id}/raiseEvent/{event}"),
            data.to_owned(),
        ))
        .await;
    assert_eq!(raised.status, 202, "{}", raised.text());
    assert_eq!(raised.text(), "{}");
}

async fn status(node: &Node, id: &str) -> String {
    let answer = node.ask(get(&format!("/v1.0/workflows/dapr/{id}"))).await;
    answer.json()["runtimeStatus"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// The final state of an instance.
async fn ended(node: &Node, id: &str) -> WorkflowState {
    let about = GetInstanceRequest {
        instance_id: id.to_owned(),
        get_inputs_and_outputs: true,
    };
    let found = hub(node, "WaitForInstanceCompletion", &about).await;
    let found: GetInstanceResponse = found.message();
    found.workflow_state.expect("a state")
}

async fn output(node: &Node, id: &str) -> String {
    let state = ended(node, id).await;
    assert_eq!(state.workflow_status(), Status::Completed, "{state:?}");
    state.output.unwrap_or_default()
}

async fn history(node: &Node, id: &str) -> Vec<HistoryEvent> {
    let about = GetInstanceHistoryRequest {
        instance_id: id.to_owned(),
    };
    let history: GetInstanceHistoryResponse = hub(node, "GetInstanceHistory", &about).await.message();
    history.events
}

fn double(input: Option<&str>) -> Result<String, String> {
    let number: u32 = input
        .unwrap_or_default()
        .parse()
        .map_err(|_| "no number".to_owned())?;
    Ok((number * 2).to_string())
}

/// Doubles its input three times in sequence.
fn chain(tasks: Tasks) -> Tasks {
    let tasks = tasks.activity("double", |request| double(request.input.as_deref()));
    tasks.workflow("chain", |context| {
        let mut value = context.input.clone();
        for _ in 0..3 {
            match context.activity("double", &value)? {
                Ok(next) => value = next,
                Err(error) => return Some(End::Failed(error)),
            }
        }
        Some(End::Completed(value))
    })
}

/// The started and completed activities of a history.
fn steps(events: &[HistoryEvent]) -> Vec<(&'static str, i32)> {
    let step = |event: &HistoryEvent| match &event.event_type {
        Some(EventType::TaskScheduled(_)) => Some(("scheduled", event.event_id)),
        Some(EventType::TaskCompleted(done)) => Some(("completed", done.task_scheduled_id)),
        _ => None,
    };
    events.iter().filter_map(step).collect()
}

fn steps_of_chain() -> Vec<(&'static str, i32)> {
    let steps = (0..3).flat_map(|id| [("scheduled", id), ("completed", id)]);
    steps.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_sequential_activities() {
    let world = World::new().await;
    let (node, _worker, tasks) = world.with_worker("shop", chain(Tasks::default())).await;
    start(&node, "chain", "good", "5").await;
    assert_eq!(output(&node, "good").await, "40");
    assert_eq!(tasks.ran().len(), 3);
    start(&node, "chain", "bad", "x").await;
    let bad = ended(&node, "bad").await;
    assert_eq!(bad.workflow_status(), Status::Failed);
    assert_eq!(bad.failure_details.unwrap().error_message, "no number");
    assert_eq!(steps(&history(&node, "good").await), steps_of_chain());
    // An ended instance may be started again.
    start(&node, "chain", "good", "1").await;
    assert_eq!(output(&node, "good").await, "8");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_activities_concurrently() {
    let world = World::new().await;
    let tasks = Tasks::default()
        .activity("double", |request| double(request.input.as_deref()))
        .workflow("fan", |context| {
            let begun: Vec<_> = (0..50)
                .map(|n| context.begin_activity("double", &n.to_string()))
                .collect();
            let mut sum = 0;
            for id in begun {
                sum += context.wait(id)?.unwrap().parse::<u32>().unwrap();
            }
            Some(End::Completed(sum.to_string()))
        });
    let (node, _worker, tasks) = world.with_worker("shop", tasks).await;
    start(&node, "fan", "a", "").await;
    assert_eq!(
        output(&node, "a").await,
        (0..50).sum::<u32>().checked_mul(2).unwrap().to_string()
    );
    assert_eq!(tasks.ran().len(), 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn handles_timers_events_and_suspension() {
    let world = World::new().await;
    let tasks = Tasks::default().workflow("wait", |context| {
        context.status = Some("asleep".to_owned());
        let timer = context.begin_timer(100, None);
        context.wait(timer)?.unwrap();
        context.status = Some("awake".to_owned());
        let limit = context.begin_timer(3_600_000, Some("PAID"));
        let paid = context.event("paid");
        if paid.is_none() && context.wait(limit).is_some() {
            return Some(End::Failed("never paid".to_owned()));
        }
        Some(End::Completed(paid?))
    });
    let (node, _worker, _tasks) = world.with_worker("shop", tasks).await;
    start(&node, "wait", "a", "").await;
    let custom = async || {
        let answer = node.ask(get("/v1.0/workflows/dapr/a")).await.json();
        answer["properties"]["dapr.workflow.custom_status"].clone()
    };
    eventually(async || custom().await == "awake").await;
    let pause = node.ask(post("/v1.0/workflows/dapr/a/pause", "")).await;
    assert_eq!(pause.status, 202, "{}", pause.text());
    eventually(async || status(&node, "a").await == "SUSPENDED").await;
    raise(&node, "a", "Paid", "17").await;
    let resume = node.ask(post("/v1.0/workflows/dapr/a/resume", "")).await;
    assert_eq!(resume.status, 202, "{}", resume.text());
    assert_eq!(output(&node, "a").await, "17");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_and_terminates_children() {
    let world = World::new().await;
    let tasks = chain(Tasks::default())
        .workflow("parent", |context| {
            let one = context.begin_child("chain", "", "1");
            let two = context.begin_child("chain", "named", "x");
            let (one, two) = (context.wait(one)?, context.wait(two)?);
            Some(End::Completed(format!("{} {}", one.unwrap(), two.unwrap_err())))
        })
        .workflow("sleeper", |context| {
            context.event("never")?;
            Some(End::Completed(String::new()))
        })
        .workflow("guardian", |context| {
            let child = context.begin_child("sleeper", "asleep", "");
            context.wait(child)?.ok();
            Some(End::Completed(String::new()))
        });
    let (node, _worker, _tasks) = world.with_worker("shop", tasks).await;
    start(&node, "parent", "p", "").await;
    assert_eq!(output(&node, "p").await, "8 no number");
    assert_eq!(output(&node, "p:0000").await, "8");
    assert_eq!(ended(&node, "named").await.workflow_status(), Status::Failed);
    start(&node, "guardian", "g", "").await;
    eventually(async || status(&node, "asleep").await == "RUNNING").await;
    let terminate = node.ask(post("/v1.0/workflows/dapr/g/terminate", "")).await;
    assert_eq!(terminate.status, 202, "{}", terminate.text());
    assert_eq!(ended(&node, "g").await.workflow_status(), Status::Terminated);
    assert_eq!(ended(&node, "asleep").await.workflow_status(), Status::Terminated);
}

/// The child notifies its parent in its own turn, and the parent's next turn starts the same child again.
#[tokio::test(flavor = "multi_thread")]
async fn restarts_child_in_next_turn() {
    let world = World::new().await;
    let tasks = chain(Tasks::default()).workflow("parent", |context| {
        let mut results = Vec::new();
        for input in ["1", "2", "3"] {
            let child = context.begin_child("chain", "again", input);
            results.push(context.wait(child)?.unwrap());
        }
        Some(End::Completed(results.join(" ")))
    });
    let (node, _worker, tasks) = world.with_worker("shop", tasks).await;
    start(&node, "parent", "p", "").await;
    // Not longer than one waits for the other.
    let ended = tokio::time::timeout(Duration::from_secs(9), output(&node, "p")).await;
    assert_eq!(ended.expect("neither waits for the other"), "8 16 24");
    assert_eq!(tasks.ran().len(), 9);
}

#[tokio::test(flavor = "multi_thread")]
async fn continues_as_new_with_pending_events() {
    let world = World::new().await;
    let tasks = Tasks::default()
        .activity("double", |request| double(request.input.as_deref()))
        .workflow("loop", |context| {
            let (count, sum) = context.input.split_once(' ').unwrap();
            let (count, sum) = (count.parse::<u32>().unwrap(), sum.parse::<u32>().unwrap());
            if count == 3 {
                return Some(End::Completed(sum.to_string()));
            }
            let first = context.input.split(' ').next().unwrap().to_owned();
            let doubled = context.activity("double", &first)?;
            let raised = context.event("add")?;
            let sum = sum + doubled.unwrap().parse::<u32>().unwrap() + raised.parse::<u32>().unwrap();
            Some(End::ContinueAsNew(format!("{} {sum}", count + 1)))
        })
        .workflow("endless", |context| {
            Some(End::ContinueAsNew(context.input.clone()))
        });
    let (node, _worker, _tasks) = world.with_worker("shop", tasks).await;
    start(&node, "loop", "a", "0 0").await;
    for number in [100, 200, 300] {
        raise(&node, "a", "add", &number.to_string()).await;
    }
    assert_eq!(output(&node, "a").await, (600 + 2 + 4).to_string());
    let events = history(&node, "a").await;
    assert!(events.len() < 8, "only the last execution is kept: {events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_activities_and_children_of_other_apps() {
    let world = World::new().await;
    let tasks = Tasks::default().workflow("far", |context| {
        context.app = Some("bank".to_owned());
        let activity = context.begin_activity("double", "4");
        context.app = Some("bank".to_owned());
        let child = context.begin_child("chain", "", "1");
        let (activity, child) = (context.wait(activity)?, context.wait(child)?);
        Some(End::Completed(format!(
            "{} {}",
            activity.unwrap(),
            child.unwrap()
        )))
    });
    let (shop, _worker, shop_tasks) = world.with_worker("shop", tasks).await;
    start(&shop, "far", "a", "").await;
    // No host yet: it is reported as running, and continues when the other app appears.
    eventually(async || status(&shop, "a").await == "RUNNING").await;
    let (_bank, _bank_worker, bank_tasks) = world.with_worker("bank", chain(Tasks::default())).await;
    assert_eq!(output(&shop, "a").await, "8 8");
    assert!(shop_tasks.ran().is_empty());
    assert_eq!(bank_tasks.ran().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn instance_survives_sidecar() {
    let world = World::new().await;
    let tasks = || {
        chain(Tasks::default()).workflow("wait", |context| {
            let doubled = context.activity("double", "3")?;
            let event = context.event("go")?;
            Some(End::Completed(format!("{} {event}", doubled.unwrap())))
        })
    };
    let (node, worker, ran) = world.with_worker("shop", tasks()).await;
    start(&node, "wait", "a", "").await;
    eventually(async || history(&node, "a").await.len() >= 5).await;
    worker.leave().await;
    node.stop().await.unwrap();
    world.hosts("shop", 0).await;
    let (node, _worker, again) = world.with_worker("shop", tasks()).await;
    raise(&node, "a", "go", "now").await;
    assert_eq!(output(&node, "a").await, "6 now");
    assert_eq!(
        (ran.ran().len(), again.ran().len()),
        (1, 0),
        "an activity whose result is stored is not run again"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reruns_activity_of_lost_worker() {
    let world = World::new().await;
    let (calls, gate) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new((Mutex::new(false), Condvar::new())),
    );
    let tasks = {
        let (calls, gate) = (Arc::clone(&calls), Arc::clone(&gate));
        Tasks::default()
            .activity("slow", move |_| {
                calls.fetch_add(1, Ordering::SeqCst);
                let (open, opened) = &*gate;
                tokio::task::block_in_place(|| {
                    drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
                });
                Ok("done".to_owned())
            })
            .workflow("w", |context| {
                Some(End::Completed(context.activity("slow", "")?.unwrap()))
            })
    };
    let (node, worker, tasks) = world.with_worker("shop", tasks).await;
    start(&node, "w", "a", "").await;
    eventually(async || calls.load(Ordering::SeqCst) == 1).await;
    let other = Worker::connect(&node, &tasks).await;
    worker.leave().await;
    eventually(async || calls.load(Ordering::SeqCst) == 2).await;
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    assert_eq!(output(&node, "a").await, "done");
    drop(other);
}

/// Two sidecars of an app behind a load balancer.
async fn pair(world: &World) -> (Node, Node) {
    (
        world.sidecar("shop").spec(CLUSTERED).start().await,
        world.sidecar("shop").spec(CLUSTERED).start().await,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn forwards_answer_to_waiting_sidecar() {
    let world = World::new().await;
    let (one, two) = pair(&world).await;
    let tasks = Arc::new(chain(Tasks::default()));
    let _worker = Worker::answering(&one, &[&two], &tasks).await;
    world.hosts("shop", 1).await;
    assert!(world.placement.has("dapr.internal.default.shop.executor", 1));
    start(&two, "chain", "a", "1").await;
    assert_eq!(output(&two, "a").await, "8");
    let _other = Worker::answering(&two, &[&one, &two], &tasks).await;
    world.hosts("shop", 2).await;
    let ids: Vec<_> = (0..8).map(|n| format!("b{n}")).collect();
    for id in &ids {
        start(&one, "chain", id, "2").await;
    }
    for id in &ids {
        assert_eq!(output(&one, id).await, "16");
    }
    assert_eq!(tasks.ran().len(), 9 * 3, "each activity is run once");
}

type Gate = Arc<(Mutex<bool>, Condvar)>;

fn wait_for(gate: &Gate) {
    let (open, opened) = &**gate;
    // Limited, so that a failing test does not hang.
    let long = Duration::from_secs(60);
    tokio::task::block_in_place(|| {
        drop(
            opened
                .wait_timeout_while(open.lock().unwrap(), long, |open| !*open)
                .unwrap(),
        );
    });
}

fn open(gate: &Gate) {
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
}

/// Activities that block until their gate opens.
fn gated_activities(gate: &Gate) -> Tasks {
    let gate = Arc::clone(gate);
    Tasks::default().activity("slow", move |_| {
        wait_for(&gate);
        Ok("done".to_owned())
    })
}

fn gated(gate: &Gate) -> Arc<Tasks> {
    Arc::new(gated_activities(gate).workflow("w", |context| {
        Some(End::Completed(context.activity("slow", "")?.unwrap()))
    }))
}

/// One of two workers disconnects: its activities are rerun at once, those of the other worker are not.
async fn one_of_two_workers_leaves(spec: &str, answers_cross: bool) {
    const INSTANCES: usize = 16;
    let world = World::new().await;
    let one = world.sidecar("shop").spec(spec).start().await;
    let two = world.sidecar("shop").spec(spec).start().await;
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let (stays, leaves) = (gated(&gate), gated(&gate));
    let (of_one, of_two) = if answers_cross { (&two, &one) } else { (&one, &two) };
    let _worker = Worker::answering(&one, &[of_one], &stays).await;
    let other = Worker::answering(&two, &[of_two], &leaves).await;
    world.hosts("shop", 2).await;
    for id in 0..INSTANCES {
        start(&one, "w", &id.to_string(), "").await;
    }
    eventually(async || stays.ran().len() + leaves.ran().len() == INSTANCES).await;
    other.leave().await;
    world.hosts("shop", 1).await;
    eventually(async || stays.ran().len() == INSTANCES).await;
    open(&gate);
    for id in 0..INSTANCES {
        assert_eq!(output(&two, &id.to_string()).await, "done");
    }
    assert_eq!(stays.ran().len(), INSTANCES);
}

/// Regression: reminders sent on a replaced scheduler stream waited for the running ones.
#[tokio::test(flavor = "multi_thread")]
async fn lost_work_never_waits_for_other_workers() {
    one_of_two_workers_leaves("", false).await;
}

/// Whichever executor runs it.
#[tokio::test(flavor = "multi_thread")]
async fn wait_follows_executor() {
    one_of_two_workers_leaves(CLUSTERED, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn purges_ended_instances_after_retention() {
    let world = World::new().await;
    let node = world
        .sidecar("shop")
        .spec("  workflow:\n    stateRetentionPolicy:\n      completed: 0s\n")
        .start()
        .await;
    let tasks = Arc::new(chain(Tasks::default()));
    let _worker = Worker::connect(&node, &tasks).await;
    world.hosts("shop", 1).await;
    start(&node, "chain", "gone", "1").await;
    start(&node, "chain", "stays", "x").await;
    assert_eq!(ended(&node, "stays").await.workflow_status(), Status::Failed);
    eventually(async || node.ask(get("/v1.0/workflows/dapr/gone")).await.status == 404).await;
    assert_eq!(status(&node, "stays").await, "FAILED");
}

#[tokio::test(flavor = "multi_thread")]
async fn reruns_instance_from_event() {
    let world = World::new().await;
    let (node, _worker, tasks) = world.with_worker("shop", chain(Tasks::default())).await;
    start(&node, "chain", "old", "5").await;
    assert_eq!(output(&node, "old").await, "40");
    let request = RerunWorkflowFromEventRequest {
        source_instance_id: "old".to_owned(),
        event_id: 1,
        new_instance_id: Some("new".to_owned()),
        input: Some("100".to_owned()),
        overwrite_input: true,
        ..RerunWorkflowFromEventRequest::default()
    };
    let rerun: RerunWorkflowFromEventResponse =
        hub(&node, "RerunWorkflowFromEvent", &request).await.message();
    assert_eq!(rerun.new_instance_id, "new");
    assert_eq!(output(&node, "new").await, "400");
    assert_eq!(tasks.ran().len(), 5);
    let refused = hub(&node, "RerunWorkflowFromEvent", &request).await;
    assert_eq!(
        refused.status.code(),
        tonic::Code::AlreadyExists,
        "{:?}",
        refused.status
    );
    // Once it is purged, a new instance may exist, with new activities.
    let request = RerunWorkflowFromEventRequest {
        event_id: 2,
        new_instance_id: Some("again".to_owned()),
        ..request
    };
    for ran in [6, 7] {
        let rerun = hub(&node, "RerunWorkflowFromEvent", &request).await;
        assert_eq!(rerun.status.code(), tonic::Code::Ok, "{:?}", rerun.status);
        let result = tokio::time::timeout(Duration::from_secs(9), output(&node, "again")).await;
        assert_eq!(result.expect("its activity runs"), "200");
        assert_eq!(tasks.ran().len(), ran);
        let purged = node.ask(post("/v1.0/workflows/dapr/again/purge", "")).await;
        assert_eq!(purged.status, 202, "{}", purged.text());
    }
}
