//! Calls of the app by a target: none while it is unhealthy, and no more than its concurrency.

use outrigger_runtime::app::Health;
use outrigger_testing::log_lines::{Line, Lines};
use tracing::Level;

use super::super::dispatch::{MAX_IN_FLIGHT, limits};
use super::bulks::app;
use super::*;
use crate::subscriptions::spec::Bulk;

/// Invariant: while the app is unhealthy, no event is attempted or dead-lettered.
#[tokio::test]
async fn unhealthy_app_gets_no_events() {
    let mut scene = Scene::new("", wanted()).await;
    let (setter, health) = Health::new(false);
    let (app, mut calls) = app(health, None).await;
    let (steps, target) = scene.target(wanted(), app);
    let stop = CancellationToken::new();
    let asked = CancellationToken::new();
    let test = async {
        for _ in 0..3 {
            assert!(steps.send(Step::Deliver(EVENT, None)).is_ok());
        }
        let early = tokio::time::timeout(Duration::from_millis(300), scene.settled.recv());
        assert!(early.await.is_err(), "settled while the app is unhealthy");
        assert!(calls.try_recv().is_err(), "the app was called");
        assert_eq!(scene.dead_letters(), []);
        setter.send_replace(true);
        for _ in 0..3 {
            // The app drops them, so they are dead-lettered.
            assert_eq!(scene.settlement().await, Settlement::Acknowledge);
        }
        assert_eq!(scene.dead_letters().len(), 3);
        stop.cancel();
    };
    tokio::join!(target.run(&stop, &asked, None), test);
    drop(target);
    scene.end().await;
}

/// Invariant: if the broker drops messages without a consumer, an unhealthy app does not end the
/// subscription. Messages that arrive then are returned for any consumer, and none is dead-lettered.
#[tokio::test]
async fn keeps_required_consumer_while_app_unhealthy() {
    let mut scene = Scene::new("", wanted()).await;
    let (setter, health) = Health::new(true);
    let (app, mut calls) = app(health.clone(), None).await;
    let (steps, to_do) = mpsc::unbounded_channel();
    *scene.fake.steps.lock().unwrap() = Some(to_do);
    scene.fake.needs_consumer.store(true, Ordering::Relaxed);
    let before = &scene.subscriptions.dependencies;
    let subscriptions = Subscriptions::new(Dependencies {
        app_id: Arc::clone(&before.app_id),
        pubsubs: Arc::clone(&before.pubsubs),
        resilience: Arc::clone(&before.resilience),
        app: Some(app),
        tracer: Tracer::off(),
        ask_app: false,
        max_answer: 1024,
    });
    let yaml = "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata: {name: s}\nspec: {pubsubname: broker, topic: orders, \
                routes: {default: /orders}, deadLetterTopic: dead}\n";
    let resources = text(yaml, "app").unwrap().subscriptions;
    subscriptions.declare(&resources).unwrap();
    let stop = CancellationToken::new();
    let following = tokio::spawn(Arc::clone(&subscriptions).follow(health, stop.clone()));
    for (is_well, settlement) in [
        (true, Settlement::Acknowledge),
        (false, Settlement::Release),
        (false, Settlement::Release),
        (true, Settlement::Acknowledge),
    ] {
        setter.send_replace(is_well);
        // The broker gives its steps to one subscription: a second one would fail.
        assert!(steps.send(Step::Deliver(EVENT, None)).is_ok());
        assert_eq!(scene.settlement().await, settlement, "well: {is_well}");
        assert_eq!(calls.try_recv().is_ok(), is_well, "the app was called");
    }
    assert_eq!(scene.dead_letters().len(), 2, "what the app dropped");
    stop.cancel();
    following.await.unwrap();
    subscriptions.end_reading();
    tokio::time::timeout(LONG, subscriptions.drained()).await.unwrap();
    scene.end().await;
}

#[test]
fn limits_attempts_to_app_concurrency() {
    let bulk = Bulk {
        count: 10,
        wait: Duration::ZERO,
    };
    for (concurrency, bulk, calls, in_flight) in [
        (None, None, None, MAX_IN_FLIGHT),
        (None, None, Some(3), 3),
        (NonZeroUsize::new(2), None, Some(3), 2),
        (None, Some(&bulk), Some(3), 30),
        (None, None, Some(usize::MAX), MAX_IN_FLIGHT),
    ] {
        assert_eq!(limits(concurrency, bulk, calls).in_flight, in_flight);
    }
}

#[tokio::test]
async fn warns_about_missing_broker() {
    let scene = Scene::new("", wanted()).await;
    let declared = |pubsub: &str| {
        let yaml = format!(
            "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata: {{name: s}}\nspec: {{pubsubname: {pubsub}, \
             topic: orders, routes: {{default: /orders}}}}\n"
        );
        text(&yaml, "app").unwrap().subscriptions
    };
    let missing = |pubsub: &str, reloads| scene.subscriptions.missing(&declared(pubsub), reloads);
    assert_eq!(
        missing("borker", false),
        [
            ":1: subscription \"s\": no pub/sub component \"borker\" is loaded: it gets no events (did you mean broker? \
             add it, or correct spec.pubsubname)"
        ]
    );
    assert_eq!(
        missing("kafka", true),
        [
            ":1: subscription \"s\": no pub/sub component \"kafka\" is loaded: it gets no events until one comes (add \
             it, or correct spec.pubsubname)"
        ]
    );
    for fine in ["broker", "\"\""] {
        assert!(missing(fine, false).is_empty(), "{fine}");
    }
    // The app of the scene only opens streams.
    let lines = Lines::new();
    scene.subscriptions.show_missing(&declared("broker"), false);
    assert_eq!(
        lines
            .take(LOG, Level::WARN)
            .iter()
            .map(Line::to_string)
            .collect::<Vec<_>>(),
        [
            "WARN :1: subscription \"s\" gets no events: the app has no port (give --app-port, in Kubernetes the \
             annotation dapr.io/app-port)"
        ]
    );
    scene.end().await;
}
