//! Ids that are in use, and families across apps.

use outrigger_wire::durabletask::purge_instances_request::Request;
use outrigger_wire::durabletask::{PurgeInstancesRequest, PurgeInstancesResponse};

use super::*;
use crate::replay::Context;

/// Begins a child in another app.
fn begin_in(context: &mut Context, app: &str, name: &str, id: &str) -> i32 {
    context.app = Some(app.to_owned());
    context.begin_child(name, id, "")
}

fn sleeper(tasks: Tasks) -> Tasks {
    tasks.workflow("sleeper", |context| {
        let raised = context.event("wake")?;
        Some(End::Completed(raised))
    })
}

/// A family over two apps: `top` here has `middle` there, which has `low` there and `lowest` here. Parents do
/// not wait for their children.
fn top(tasks: Tasks) -> Tasks {
    sleeper(tasks).workflow("top", |context| {
        begin_in(context, "bank", "middle", "middle");
        Some(End::Completed(String::new()))
    })
}

fn middle(tasks: Tasks) -> Tasks {
    sleeper(tasks).workflow("middle", |context| {
        context.begin_child("sleeper", "low", "");
        begin_in(context, "shop", "sleeper", "lowest");
        Some(End::Completed(String::new()))
    })
}

/// Waits until the lowest instances run, and those above them are stored.
async fn runs(shop: &Node, bank: &Node) {
    for (node, id, expected) in [
        (bank, "low", "RUNNING"),
        (shop, "lowest", "RUNNING"),
        (bank, "middle", "COMPLETED"),
    ] {
        eventually(async || status(node, id).await == expected).await;
    }
}

async fn is_gone(node: &Node, id: &str) -> bool {
    node.ask(get(&format!("/v1.0/workflows/dapr/{id}"))).await.status == 404
}

async fn start_again(node: &Node, id: &str) -> String {
    let again = post(&format!("/v1.0/workflows/dapr/top/start?instanceID={id}"), "");
    node.ask(again).await.error(500, "ERR_START_WORKFLOW")
}

async fn purge_by_force(node: &Node, id: &str) -> i32 {
    let request = PurgeInstancesRequest {
        request: Some(Request::InstanceId(id.to_owned())),
        recursive: true,
        force: Some(true),
    };
    let purged: PurgeInstancesResponse = hub(node, "PurgeInstances", &request).await.message();
    purged.deleted_instance_count
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_id_while_descendant_runs() {
    let world = World::new().await;
    let (shop, _worker, _) = world.with_worker("shop", top(Tasks::default())).await;
    let (bank, _banker, _) = world.with_worker("bank", middle(Tasks::default())).await;
    start(&shop, "top", "a", "").await;
    output(&shop, "a").await;
    eventually(async || status(&bank, "middle").await == "COMPLETED").await;
    let refused = start_again(&shop, "a").await;
    let text = "cannot recreate workflow with ID 'a': child workflow 'middle': child workflow 'low";
    assert!(
        refused.contains(text) && refused.ends_with("': orchestration has not yet completed"),
        "{refused}"
    );
    raise(&bank, "low", "wake", "").await;
    output(&bank, "low").await;
    let refused = start_again(&shop, "a").await;
    assert!(refused.contains("child workflow 'lowest': "), "{refused}");
    raise(&shop, "lowest", "wake", "").await;
    output(&shop, "lowest").await;
    start(&shop, "top", "a", "").await;
    runs(&shop, &bank).await;
    // Purged children have ended.
    assert_eq!(purge_by_force(&bank, "middle").await, 3);
    start(&shop, "top", "a", "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refuses_id_while_child_is_unreachable() {
    let world = World::new().await;
    let (shop, _worker, _) = world.with_worker("shop", top(Tasks::default())).await;
    let (_bank, banker, _) = world.with_worker("bank", middle(Tasks::default())).await;
    start(&shop, "top", "a", "").await;
    output(&shop, "a").await;
    banker.leave().await;
    world.hosts("bank", 0).await;
    let refused = start_again(&shop, "a").await;
    let text = "cannot recreate workflow with ID 'a': failed to verify child workflow 'middle' is in a terminal state";
    assert!(refused.contains(text), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn child_with_used_id_fails() {
    let world = World::new().await;
    let tasks = sleeper(Tasks::default()).workflow("parent", |context| {
        let child = context.begin_child("sleeper", "taken", "");
        let failed = context.wait(child)?.unwrap_err();
        Some(End::Completed(failed))
    });
    let (node, _worker, _) = world.with_worker("shop", tasks).await;
    start(&node, "sleeper", "taken", "").await;
    eventually(async || status(&node, "taken").await == "RUNNING").await;
    start(&node, "parent", "p", "").await;
    assert_eq!(
        output(&node, "p").await,
        "an active workflow with ID 'taken' already exists"
    );
    let failure = history(&node, "p")
        .await
        .into_iter()
        .find_map(|event| match event.event_type {
            Some(EventType::ChildWorkflowInstanceFailed(failed)) => failed.failure_details,
            _ => None,
        });
    assert_eq!(failure.unwrap().error_type, "WorkflowInstanceAlreadyExists");
    assert_eq!(status(&node, "taken").await, "RUNNING");
}

#[tokio::test(flavor = "multi_thread")]
async fn purges_family_across_apps() {
    let world = World::new().await;
    let (shop, _worker, _) = world.with_worker("shop", top(Tasks::default())).await;
    let (bank, _banker, _) = world.with_worker("bank", middle(Tasks::default())).await;
    start(&shop, "top", "a", "").await;
    output(&shop, "a").await;
    runs(&shop, &bank).await;
    let purged = shop.ask(post("/v1.0/workflows/dapr/a/purge", "")).await;
    assert_eq!(purged.status, 500, "{}", purged.text());
    assert!(!is_gone(&shop, "a").await && !is_gone(&bank, "middle").await);
    assert_eq!(purge_by_force(&shop, "a").await, 4);
    for (node, id) in [(&shop, "a"), (&bank, "middle"), (&bank, "low"), (&shop, "lowest")] {
        assert!(is_gone(node, id).await, "{id}");
    }
}

/// Invariant: an instance ends although its child cannot be reached, and the child ends later.
#[tokio::test(flavor = "multi_thread")]
async fn terminates_unreachable_child_later() {
    let world = World::new().await;
    let tasks = sleeper(Tasks::default()).workflow("guardian", |context| {
        let here = context.begin_child("sleeper", "here", "");
        let there = begin_in(context, "bank", "sleeper", "there");
        context.wait(here)?.ok();
        context.wait(there)?.ok();
        Some(End::Completed(String::new()))
    });
    let (shop, _worker, _) = world.with_worker("shop", tasks).await;
    let (bank, banker, _) = world.with_worker("bank", sleeper(Tasks::default())).await;
    start(&shop, "guardian", "g", "").await;
    eventually(async || status(&shop, "here").await == "RUNNING").await;
    eventually(async || status(&bank, "there").await == "RUNNING").await;
    banker.leave().await;
    world.hosts("bank", 0).await;
    let terminate = shop.ask(post("/v1.0/workflows/dapr/g/terminate", "")).await;
    assert_eq!(terminate.status, 202, "{}", terminate.text());
    eventually(async || status(&shop, "g").await == "TERMINATED").await;
    eventually(async || status(&shop, "here").await == "TERMINATED").await;
    assert_eq!(status(&bank, "there").await, "RUNNING");
    let _banker = Worker::connect(&bank, &Arc::new(sleeper(Tasks::default()))).await;
    eventually(async || status(&bank, "there").await == "TERMINATED").await;
}
