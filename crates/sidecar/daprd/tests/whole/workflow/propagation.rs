//! Histories passed on to activities and children.

use outrigger_wire::durabletask::{HistoryPropagationScope as Scope, PropagatedHistory};

use super::*;

/// Apps, workflows and numbers of events.
fn describe(received: Option<&PropagatedHistory>) -> String {
    let chunks = received.into_iter().flat_map(|received| &received.chunks);
    let chunks = chunks.map(|chunk| {
        let events = chunk.raw_events.len();
        format!("{}/{}:{events}", chunk.app_id, chunk.workflow_name)
    });
    chunks.collect::<Vec<_>>().join(" ")
}

/// Invariant: a lineage reaches through apps and continue-as-new; own history ends it.
#[tokio::test(flavor = "multi_thread")]
async fn passes_lineage_across_apps() {
    let world = World::new().await;
    let tasks = Tasks::default()
        .activity("mark", |request| {
            Ok(describe(request.propagated_history.as_ref()))
        })
        .workflow("root", |context| {
            let none = context.activity("mark", "")?.unwrap();
            assert_eq!(none, "");
            context.app = Some("bank".to_owned());
            context.passes = Scope::Lineage;
            let child = context.begin_child("middle", "m", "first");
            Some(End::Completed(context.wait(child)?.unwrap()))
        });
    let (shop, _worker, _) = world.with_worker("shop", tasks).await;
    let tasks = Tasks::default()
        .activity("report", |request| {
            Ok(describe(request.propagated_history.as_ref()))
        })
        .workflow("middle", |context| {
            if context.input == "first" {
                return Some(End::ContinueAsNew("second".to_owned()));
            }
            let received = describe(context.received.as_ref());
            context.passes = Scope::Lineage;
            let lineage = context.activity("report", "")?.unwrap();
            context.passes = Scope::OwnHistory;
            let own = context.activity("report", "")?.unwrap();
            Some(End::Completed([received, lineage, own].join(", ")))
        });
    let (bank, _worker, _) = world.with_worker("bank", tasks).await;
    start(&shop, "root", "r", "").await;
    // A step begins with its own event; each history ends with the event that passes it on.
    let received = "shop/root:6 bank/middle:2";
    let expected = format!("{received}, {received} bank/middle:3, bank/middle:6");
    assert_eq!(output(&shop, "r").await, expected);
    let scopes = history(&bank, "m")
        .await
        .into_iter()
        .filter_map(|event| match event.event_type {
            Some(EventType::TaskScheduled(task)) => task.history_propagation_scope,
            _ => None,
        });
    assert!(scopes.eq([Scope::Lineage, Scope::OwnHistory].map(i32::from)));
}
