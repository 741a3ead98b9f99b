//! Where actors live when hosts join, leave and lose placement.

use super::*;

/// Invariant: an actor is active in one place at any time. The old host deactivates it before the new one may
/// activate it.
#[tokio::test]
async fn deactivates_before_activation_elsewhere() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let (one, two) = (echo(only()).await, echo(only()).await);
    let first = start(&net, &placement, "first", Some(&one)).await;
    eventually(async || placement.has("T", 1)).await;
    for id in 0..30 {
        assert_eq!(invoke(&first, &id.to_string(), "m").await.status, 200);
    }
    let _second = start(&net, &placement, "second", Some(&two)).await;
    eventually(async || placement.has("T", 2)).await;
    let ended: Vec<_> = calls(&one)
        .into_iter()
        .filter(|call| call.starts_with("DELETE"))
        .collect();
    assert!((1..30).contains(&ended.len()), "some move, some stay: {ended:?}");
    for id in 0..30 {
        assert_eq!(invoke(&first, &id.to_string(), "m").await.status, 200);
        let moved = ended.contains(&format!("DELETE /actors/T/{id}"));
        let there = calls(&two).contains(&format!("PUT /actors/T/{id}/method/m?q=1"));
        assert_eq!(moved, there, "{id}");
    }
}

/// Invariant: a host that loses its stream to placement deactivates its actors.
#[tokio::test]
async fn deactivates_actors_without_placement() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let app = echo(only()).await;
    let node = start(&net, &placement, "me", Some(&app)).await;
    eventually(async || placement.has("T", 1)).await;
    assert_eq!(invoke(&node, "1", "m").await.status, 200);
    placement.end_streams();
    eventually(async || calls(&app).contains(&"DELETE /actors/T/1".to_owned())).await;
    assert_eq!(
        invoke(&node, "1", "m").await.status,
        200,
        "the next stream brings a table"
    );
}

/// Invariant: `lock` blocks no call.
#[tokio::test]
async fn calls_continue_under_lock() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let app = echo(only()).await;
    let node = Arc::new(start(&net, &placement, "me", Some(&app)).await);
    eventually(async || placement.has("T", 1)).await;
    assert_eq!(invoke(&node, "1", "m").await.status, 200);
    placement.hold(true);
    placement.begin();
    eventually(async || placement.is_locked()).await;
    assert_eq!(invoke(&node, "2", "m").await.status, 200);
    assert!(placement.is_locked());
    placement.hold(false);
}

/// Invariant: a graceful leave fails no call, and the host's actors are deactivated before others activate
/// them.
#[tokio::test]
async fn leaving_host_fails_no_call() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let (one, two) = (echo(only()).await, echo(only()).await);
    let first = start(&net, &placement, "first", Some(&one)).await;
    let _second = start(&net, &placement, "second", Some(&two)).await;
    let client = Arc::new(start(&net, &placement, "client", None).await);
    eventually(async || placement.has("T", 2)).await;
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut callers = tokio::task::JoinSet::new();
    for id in 0..12 {
        let (client, over) = (Arc::clone(&client), Arc::clone(&over));
        callers.spawn(async move {
            let mut count = 0;
            while !over.load(Ordering::SeqCst) {
                let answer = invoke(&client, &id.to_string(), "m").await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                count += 1;
            }
            count
        });
    }
    eventually(async || one.calls() > 20 && two.calls() > 20).await;
    first.stop().await.unwrap();
    let (gone, left) = (one.calls(), two.calls());
    eventually(async || two.calls() > left + 50).await;
    over.store(true, Ordering::SeqCst);
    while let Some(count) = within(callers.join_next()).await {
        assert!(count.unwrap() > 0);
    }
    assert_eq!(one.calls(), gone, "no actor is active there");
    let active = calls(&one)
        .iter()
        .filter(|call| call.starts_with("DELETE"))
        .count();
    assert!(active > 0);
}

#[tokio::test]
async fn shutdown_deactivates_actors_first() {
    let (net, placement) = (Net::plain(), Placement::start().await);
    let app = echo(only()).await;
    let node = start(&net, &placement, "me", Some(&app)).await;
    eventually(async || placement.has("T", 1)).await;
    for id in 0..5 {
        assert_eq!(invoke(&node, &id.to_string(), "m").await.status, 200);
    }
    node.stop().await.unwrap();
    let ended = calls(&app).into_iter().filter(|call| call.starts_with("DELETE"));
    assert_eq!(ended.count(), 5);
}
