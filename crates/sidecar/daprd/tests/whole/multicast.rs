//! Discovery by multicast DNS, the default resolver.

use crate::common::{App, Net, app, eventually, get, post};

/// An id that no other test on the machine uses.
fn unique(name: &str) -> String {
    format!("{name}-{}", uuid::Uuid::new_v4().simple())
}

#[tokio::test]
async fn discovers_and_forgets_peers() {
    let net = Net::multicast();
    let (one, two) = (unique("one"), unique("two"));
    let app = App::echo().await;
    let callee = net.sidecar(&one).app(app.port).start().await;
    let caller = net.sidecar(&two).start().await;
    let target = format!("/v1.0/invoke/{one}/method/m");
    let answer = caller.ask(post(&target, "found")).await;
    assert_eq!(
        (answer.status.as_u16(), answer.text()),
        (200, "found"),
        "{}",
        answer.text()
    );
    callee.stop().await.unwrap();
    let message = caller.ask(get(&target)).await.error(500, "ERR_DIRECT_INVOKE");
    assert!(message.contains(&one), "{message}");
    // Restarted on other ports.
    let _callee = net.sidecar(&one).app(app.port).start().await;
    eventually(async || caller.ask(get(&target)).await.status == 200).await;
}

#[tokio::test]
async fn balances_calls_over_instances() {
    let net = Net::multicast();
    let id = unique("shared");
    let named = |name: &'static str| move |_| async move { app::text(200, name) };
    let (one, two) = (App::start(named("one")).await, App::start(named("two")).await);
    let _first = net.sidecar(&id).app(one.port).start().await;
    let _second = net.sidecar(&id).app(two.port).start().await;
    let caller = net.sidecar(&unique("caller")).start().await;
    let target = format!("/v1.0/invoke/{id}/method/m");
    eventually(async || {
        assert_eq!(caller.ask(get(&target)).await.status, 200);
        one.calls() > 0 && two.calls() > 0
    })
    .await;
}
