//! Parents and children in different states.

use super::*;
use crate::replay::Context;

async fn purged(node: &Node, id: &str) -> u16 {
    let purged = node.ask(post(&format!("/v1.0/workflows/dapr/{id}/purge"), ""));
    purged.await.status.as_u16()
}

async fn is_gone(node: &Node, id: &str) -> bool {
    node.ask(get(&format!("/v1.0/workflows/dapr/{id}"))).await.status == 404
}

/// A parent with a local child and one in another app.
fn split(tasks: Tasks) -> Tasks {
    tasks.workflow("split", |context| {
        let here = context.begin_child("chain", "", "1");
        context.app = Some("bank".to_owned());
        let there = context.begin_child("chain", "", "1");
        let (here, there) = (context.wait(here)?, context.wait(there)?);
        Some(End::Completed(here.unwrap() + &there.unwrap()))
    })
}

/// Invariant: a partial family can be purged, whichever children are gone or elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn purges_parent_without_children() {
    let world = World::new().await;
    let tasks = split(chain(Tasks::default())).workflow("leaver", |context| {
        context.app = Some("bank".to_owned());
        context.begin_child("sleeper", "asleep", "");
        Some(End::Completed(String::new()))
    });
    let (shop, _worker, _) = world.with_worker("shop", tasks).await;
    let tasks = chain(Tasks::default()).workflow("sleeper", |context| {
        context.event("wake")?;
        Some(End::Completed(String::new()))
    });
    let (bank, worker, _) = world.with_worker("bank", tasks).await;
    for parent in ["a", "b"] {
        start(&shop, "split", parent, "").await;
        assert_eq!(output(&shop, parent).await, "88");
    }
    // The local child was purged before; that of the other app is purged with its parent.
    assert_eq!(purged(&shop, "a:0000").await, 202);
    assert!(!is_gone(&bank, "a:0001").await);
    assert_eq!(purged(&shop, "a").await, 202);
    assert!(is_gone(&shop, "a").await && is_gone(&bank, "a:0001").await);
    // If the other app refuses, nothing is purged.
    start(&shop, "leaver", "l", "").await;
    output(&shop, "l").await;
    eventually(async || status(&bank, "asleep").await == "RUNNING").await;
    assert_eq!(purged(&shop, "l").await, 500);
    assert!(!is_gone(&shop, "l").await);
    // Without a host, its children stay.
    worker.leave().await;
    world.hosts("bank", 0).await;
    assert_eq!(purged(&shop, "b").await, 202);
    assert!(is_gone(&shop, "b").await && is_gone(&shop, "b:0000").await);
    assert!(!is_gone(&bank, "b:0001").await);
    assert_eq!(purged(&shop, "b").await, 404, "it is not there itself");
}

/// The `appID` of a request addresses a workflow of another app.
#[tokio::test(flavor = "multi_thread")]
async fn manages_workflows_of_another_app() {
    let world = World::new().await;
    let (shop, _first, _) = world.with_worker("shop", chain(Tasks::default())).await;
    let tasks = Tasks::default().workflow("sleeper", |context| {
        let event = context.event("wake")?;
        Some(End::Completed(event))
    });
    let (bank, _second, _) = world.with_worker("bank", tasks).await;
    let path = |rest: &str| format!("/v1.0/workflows/dapr/{rest}");
    let ask = async |rest: &str| shop.ask(post(&path(rest), "1")).await.status;
    let seen = async |id: &str| {
        let about = shop.ask(get(&path(&format!("{id}?appID=bank")))).await;
        (about.status == 200).then(|| about.json()["runtimeStatus"].clone())
    };
    for id in ["a", "b"] {
        assert_eq!(
            ask(&format!("sleeper/start?instanceID={id}&appID=bank")).await,
            202
        );
        eventually(async || status(&bank, id).await == "RUNNING").await;
        assert_eq!(seen(id).await.unwrap(), "RUNNING");
        assert!(is_gone(&shop, id).await, "it is no workflow of this app");
    }
    assert_eq!(ask("a/pause?appID=bank").await, 202);
    eventually(async || status(&bank, "a").await == "SUSPENDED").await;
    assert_eq!(ask("a/resume?appID=bank").await, 202);
    assert_eq!(ask("a/raiseEvent/wake?appID=bank").await, 202);
    assert_eq!(ask("b/terminate?appID=bank").await, 202);
    eventually(async || seen("a").await.unwrap() == "COMPLETED").await;
    eventually(async || seen("b").await.unwrap() == "TERMINATED").await;
    for id in ["a", "b"] {
        let purged = shop.ask(post(&path(&format!("{id}/purge?appID=bank")), "")).await;
        assert_eq!(purged.status, 202, "{}", purged.text());
        assert!(seen(id).await.is_none() && is_gone(&bank, id).await);
    }
    // An empty id and the app's id mean this app.
    for (number, app) in ["", "shop"].into_iter().enumerate() {
        let started = ask(&format!("chain/start?instanceID=own{number}&appID={app}")).await;
        assert_eq!(started, 202, "{app:?}");
    }
    let refused = shop.ask(post(&path("chain/start?appID=a%7Cb"), "1")).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["errorCode"]),
        (400, &"ERR_WORKFLOW_APP_ID_INVALID".into())
    );
}

/// Invariant: a purge waits only once for an app without hosts, however many children it has.
#[tokio::test(flavor = "multi_thread")]
async fn purge_waits_once_per_app() {
    let world = World::new().await;
    let tasks = Tasks::default().workflow("scatter", |context| {
        let begin = |context: &mut Context| {
            context.app = Some("bank".to_owned());
            context.begin_child("chain", "", "1")
        };
        let begun: Vec<_> = (0..4).map(|_| begin(context)).collect();
        for child in begun {
            context.wait(child)?.ok();
        }
        Some(End::Completed(String::new()))
    });
    let (shop, _worker, _) = world.with_worker("shop", tasks).await;
    let (_bank, worker, _) = world.with_worker("bank", chain(Tasks::default())).await;
    start(&shop, "scatter", "a", "").await;
    output(&shop, "a").await;
    worker.leave().await;
    world.hosts("bank", 0).await;
    assert_eq!(purged(&shop, "a").await, 202);
    assert!(is_gone(&shop, "a").await);
    let operations = "dapr_runtime_workflow_operation_count";
    let failed = [r#"operation="purge_workflow""#, r#"status="failed""#];
    shop.counts(operations, &failed, 1.0).await;
}

/// Invariant: a terminated parent ends even if its child is stalled and accepts no events.
#[tokio::test(flavor = "multi_thread")]
async fn terminates_parent_of_stalled_child() {
    let world = World::new().await;
    let tasks = Tasks::default()
        .activity("large", |_| Ok("x".repeat(6_000)))
        .workflow("grower", |context| {
            for _ in 0..3 {
                context.activity("large", "")?.ok();
            }
            Some(End::Completed(String::new()))
        })
        .workflow("guardian", |context| {
            let child = context.begin_child("grower", "grower", "");
            context.wait(child)?.ok();
            Some(End::Completed(String::new()))
        });
    let node = world.sidecar("shop").flag("--max-body-size=16000").start().await;
    let _worker = Worker::connect(&node, &Arc::new(tasks)).await;
    world.hosts("shop", 1).await;
    start(&node, "guardian", "g", "").await;
    eventually(async || status(&node, "grower").await == "UNKNOWN").await;
    let terminate = node.ask(post("/v1.0/workflows/dapr/g/terminate", "")).await;
    assert_eq!(terminate.status, 202, "{}", terminate.text());
    eventually(async || status(&node, "g").await == "TERMINATED").await;
    assert_eq!(status(&node, "grower").await, "UNKNOWN");
}

#[tokio::test(flavor = "multi_thread")]
async fn continue_as_new_keeps_child() {
    let world = World::new().await;
    let tasks = Tasks::default()
        .workflow("waits", |context| {
            let raised = context.event("go")?;
            Some(End::Completed(raised))
        })
        .workflow("parent", |context| {
            let child = context.begin_child("waits", "", "");
            if context.input == "first" {
                context.event("next")?;
                return Some(End::ContinueAsNew("second".to_owned()));
            }
            Some(End::Completed(context.wait(child)?.unwrap()))
        });
    let (node, _worker, _tasks) = world.with_worker("shop", tasks).await;
    start(&node, "parent", "p", "first").await;
    eventually(async || status(&node, "p:0000").await == "RUNNING").await;
    raise(&node, "p", "next", "1").await;
    eventually(async || {
        let events = history(&node, "p").await;
        let is_second = |event: &HistoryEvent| match &event.event_type {
            Some(EventType::ExecutionStarted(started)) => started.input.as_deref() == Some("second"),
            _ => false,
        };
        let is_child = |event: &HistoryEvent| {
            matches!(event.event_type, Some(EventType::ChildWorkflowInstanceCreated(_)))
        };
        events.iter().any(is_second) && events.iter().any(is_child)
    })
    .await;
    raise(&node, "p:0000", "go", "7").await;
    assert_eq!(output(&node, "p").await, "7");
}

/// Regression: the result of an abandoned child was taken for that of a newer child with the same number.
#[tokio::test(flavor = "multi_thread")]
async fn ignores_result_of_abandoned_child() {
    let world = World::new().await;
    let tasks = Tasks::default()
        .workflow("waits", |context| {
            let raised = context.event("go")?;
            Some(End::Completed(raised))
        })
        .workflow("parent", |context| {
            if context.input == "first" {
                context.begin_child("waits", "left", "");
                context.event("next")?;
                return Some(End::ContinueAsNew("second".to_owned()));
            }
            let child = context.begin_child("waits", "kept", "");
            Some(End::Completed(context.wait(child)?.unwrap()))
        });
    let (node, _worker, _tasks) = world.with_worker("shop", tasks).await;
    start(&node, "parent", "p", "first").await;
    eventually(async || status(&node, "left").await == "RUNNING").await;
    raise(&node, "p", "next", "").await;
    eventually(async || status(&node, "kept").await == "RUNNING").await;
    raise(&node, "left", "go", "1").await;
    assert_eq!(output(&node, "left").await, "1");
    raise(&node, "kept", "go", "2").await;
    assert_eq!(output(&node, "p").await, "2");
}
