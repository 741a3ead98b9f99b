//! What a target asks of its app: nothing while that is unwell, and no more at once than it takes.

use outrigger_runtime::app::Health;

use super::bulks::app;
use super::*;

/// Invariant: while the app is unwell no event is attempted, and none is parked for it.
#[tokio::test]
async fn an_unwell_app_is_asked_nothing_and_parks_nothing() {
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
        assert!(early.await.is_err(), "settled while the app is unwell");
        assert!(calls.try_recv().is_err(), "the app was called");
        assert_eq!(scene.dead_letters(), []);
        setter.send_replace(true);
        for _ in 0..3 {
            // The app drops them, and the dead-letter topic has them then.
            assert_eq!(scene.settlement().await, Settlement::Acknowledge);
        }
        assert_eq!(scene.dead_letters().len(), 3);
        stop.cancel();
    };
    tokio::join!(target.run(&stop, &asked, None), test);
    drop(target);
    scene.end().await;
}

#[test]
fn no_more_is_attempted_than_the_app_takes() {
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
