use std::sync::Mutex;
use std::time::Duration;

use outrigger_policy::resiliency::{ComponentKind, Direction, Resiliency};
use outrigger_resources::load::text;
use outrigger_telemetry::metrics::Metrics;

use super::*;

const FAILURE: Outcome = Outcome::Failure { code: None };
const LIMITS: Limits = Limits {
    in_flight: 1,
    unsettled: 2,
};

/// Retries twice without pause.
fn policy() -> Arc<Policy> {
    policy_after("1ms")
}

/// Retries twice, each after `pause`.
fn policy_after(pause: &str) -> Arc<Policy> {
    let yaml = format!(
        "apiVersion: dapr.io/v1alpha1\nkind: Resiliency\nmetadata:\n  name: r\nspec:\n  policies:\n    retries:\n      \
         twice:\n        policy: constant\n        duration: {pause}\n        maxRetries: 2\n  targets:\n    \
         components:\n      source:\n        inbound:\n          retry: twice\n"
    );
    let resources = text(&yaml, "app").unwrap().resiliency;
    let policies = Resiliency::build(&resources, "app").0;
    let found = policies.component("source", ComponentKind::Binding, Direction::Inbound);
    found.unwrap()
}

fn metrics() -> SidecarMetrics {
    SidecarMetrics::new(Metrics::disabled())
}

#[tokio::test]
async fn returns_result_of_last_attempt() {
    let (policy, metrics) = (policy(), metrics());
    let (inbox, engine) = engine::<(), _, _>(LIMITS, Some(&policy), &metrics);
    let stop = CancellationToken::new();
    let source = async {
        let fine = inbox.offer(None, 2).await.settled().await;
        let never = inbox.offer(None, 9).await.settled().await;
        drop(inbox);
        (fine.unwrap(), never.unwrap())
    };
    // An event succeeds at the attempt that it names.
    let delivering = engine.run(&stop, OnStop::DeliverAll, |event, attempt: Attempt| async move {
        let outcome = if attempt.number >= *event {
            Outcome::Success
        } else {
            FAILURE
        };
        (attempt.number, outcome)
    });
    let (answers, ()) = tokio::join!(source, delivering);
    assert_eq!(answers, (2, 3), "the first retry, and the end of all retries");
}

#[tokio::test]
async fn retry_blocks_only_its_key() {
    let (policy, metrics) = (policy(), metrics());
    let limits = Limits {
        unsettled: 3,
        ..LIMITS
    };
    let (inbox, mut engine) = engine(limits, Some(&policy), &metrics);
    drop(inbox);
    for event in ["a1", "b1", "a2"] {
        let (reply, _unheard) = oneshot::channel();
        let key = event.chars().next();
        engine.take(Offer { key, event, reply });
    }
    let (seen, stop) = (Mutex::new(Vec::new()), CancellationToken::new());
    let delivering = engine.run(&stop, OnStop::DeliverAll, |event, attempt: Attempt| {
        seen.lock().unwrap().push(*event);
        async move {
            let fails = *event == "a1" && attempt.number == 1;
            ((), if fails { FAILURE } else { Outcome::Success })
        }
    });
    delivering.await;
    let seen = seen.into_inner().unwrap();
    let of_a: Vec<_> = seen.iter().filter(|event| event.starts_with('a')).collect();
    assert_eq!(of_a, [&"a1", &"a1", &"a2"]);
    assert_eq!((seen.len(), seen[1]), (4, "b1"), "b does not wait for a");
}

#[tokio::test]
async fn stop_skips_queued_events() {
    let metrics = metrics();
    let (inbox, engine) = engine::<(), _, _>(LIMITS, None, &metrics);
    let (stop, open) = (CancellationToken::new(), CancellationToken::new());
    let source = async {
        let first = inbox.offer(None, "first").await;
        let second = inbox.offer(None, "second").await;
        let third = inbox.offer(None, "third");
        let third = tokio::time::timeout(Duration::from_millis(50), third).await;
        stop.cancel();
        let second = second.settled().await;
        open.cancel();
        (first.settled().await, second, third)
    };
    let delivering = engine.run(&stop, OnStop::FinishAttempts, |event, _| {
        let open = open.clone();
        async move {
            open.cancelled().await;
            (*event, Outcome::Success)
        }
    });
    let ((first, second, third), ()) = tokio::join!(source, delivering);
    assert_eq!(first.unwrap(), "first", "it was in flight");
    assert!(matches!(second, Err(Undelivered::Stopped)));
    if let Ok(third) = third {
        let third = third.settled().await;
        assert!(matches!(third, Err(Undelivered::Stopped)), "it was not in flight");
    }
}

#[tokio::test]
async fn pauses_while_app_is_unhealthy() {
    let metrics = metrics();
    let (set_health, health) = Health::new(false);
    let (inbox, engine) = engine::<(), _, _>(LIMITS, None, &metrics);
    let engine = engine.while_healthy(health.clone());
    let stop = CancellationToken::new();
    let source = async {
        let pending = inbox.offer(None, ()).await;
        tokio::task::yield_now().await;
        set_health.send_replace(true);
        let was_healthy = pending.settled().await.unwrap();
        drop(inbox);
        was_healthy
    };
    let delivering = engine.run(&stop, OnStop::DeliverAll, |_, _| {
        let was_healthy = health.is_healthy();
        async move { (was_healthy, Outcome::Success) }
    });
    let (was_healthy, ()) = tokio::join!(source, delivering);
    assert!(was_healthy);
}

#[tokio::test]
async fn revoked_key_cancels_retry() {
    let (policy, metrics) = (policy_after("1h"), metrics());
    let (inbox, engine) = engine(LIMITS, Some(&policy), &metrics);
    let stop = CancellationToken::new();
    let source = async {
        let failed = inbox.offer(Some('a'), FAILURE).await;
        let fine = inbox.offer(Some('b'), Outcome::Success).await;
        fine.settled().await.unwrap();
        // The attempt at `a` is over, because concurrency is one.
        inbox.revoke(Box::new(|key| *key == 'a')).await;
        let settled = failed.settled().await;
        drop(inbox);
        settled
    };
    let delivering = engine.run(&stop, OnStop::FinishAttempts, |outcome, _| async move {
        ((), *outcome)
    });
    let (settled, ()) = tokio::join!(source, delivering);
    assert!(matches!(settled, Err(Undelivered::Revoked)), "{settled:?}");
}

/// The result of an event whose key is revoked during its last attempt, which ends in `outcome`. `undecided`:
/// the source has to decide on the event.
async fn revoked_in_its_last_attempt(outcome: Outcome, undecided: bool) -> Result<u32, Undelivered> {
    let (policy, metrics) = (policy(), metrics());
    let (inbox, mut engine) = engine(LIMITS, Some(&policy), &metrics);
    if undecided {
        engine = engine.in_order(|_| true).pausing_keys(|_| true);
    }
    let (stop, begun, gone) = (
        CancellationToken::new(),
        CancellationToken::new(),
        CancellationToken::new(),
    );
    let source = async {
        let pending = inbox.offer(Some('a'), ()).await;
        begun.cancelled().await;
        inbox.revoke(Box::new(|key| *key == 'a')).await;
        gone.cancel();
        let settled = pending.settled().await;
        drop(inbox);
        settled
    };
    let delivering = engine.run(&stop, OnStop::FinishAttempts, |_, attempt: Attempt| {
        let (begun, gone) = (begun.clone(), gone.clone());
        async move {
            if attempt.number < 3 {
                return (attempt.number, FAILURE);
            }
            begun.cancel();
            gone.cancelled().await;
            (attempt.number, outcome)
        }
    });
    tokio::join!(source, delivering).0
}

#[tokio::test]
async fn revoked_attempt_counts_only_on_success() {
    for outcome in [FAILURE, Outcome::TimedOut, Outcome::Final] {
        let settled = revoked_in_its_last_attempt(outcome, false).await;
        assert!(
            matches!(settled, Err(Undelivered::Revoked)),
            "{outcome:?}: {settled:?}"
        );
    }
    let settled = revoked_in_its_last_attempt(Outcome::Success, false).await;
    assert_eq!(settled.unwrap(), 3);
    // For example an event dropped by the app, with a dead-letter topic.
    let settled = revoked_in_its_last_attempt(Outcome::Success, true).await;
    assert!(matches!(settled, Err(Undelivered::Revoked)), "{settled:?}");
}

/// Bulks depend on this: an event that waits for a retry is unsettled but not in flight.
#[tokio::test]
async fn observer_sees_load() {
    let (policy, metrics) = (policy_after("1h"), metrics());
    let (inbox, engine) = engine::<(), _, ()>(LIMITS, Some(&policy), &metrics);
    let (stop, depths) = (CancellationToken::new(), Mutex::new(Vec::new()));
    let tell = |in_flight, unsettled| {
        let mut depths = depths.lock().unwrap();
        if depths.last() != Some(&(in_flight, unsettled)) {
            depths.push((in_flight, unsettled));
        }
        if (in_flight, unsettled) == (1, 2) {
            stop.cancel();
        }
    };
    let engine = engine.observed_by(Box::new(tell));
    let source = async {
        let _fails = inbox.offer(None, false).await;
        let _is_slow = inbox.offer(None, true).await;
        stop.cancelled().await;
    };
    let delivering = engine.run(&stop, OnStop::FinishAttempts, |is_slow, _| {
        let stop = &stop;
        async move {
            if *is_slow {
                stop.cancelled().await;
            }
            ((), FAILURE)
        }
    });
    tokio::join!(delivering, source);
    assert_eq!(depths.lock().unwrap()[..4], [(0, 0), (1, 1), (0, 1), (1, 2)]);
}

#[tokio::test]
async fn revoked_undecided_event_is_not_returned() {
    let metrics = metrics();
    let limits = Limits {
        unsettled: 3,
        ..LIMITS
    };
    let (inbox, engine) = engine::<char, _, _>(limits, None, &metrics);
    let engine = engine.in_order(|_| true).pausing_keys(|()| true);
    let stop = CancellationToken::new();
    let source = async {
        let first = inbox.offer(Some('a'), "first").await;
        let behind = inbox.offer(Some('a'), "behind").await;
        let (answer, key) = first.decided().await;
        assert!(answer.is_ok());
        inbox.revoke(Box::new(|_| true)).await;
        assert!(matches!(behind.settled().await, Err(Undelivered::Revoked)));
        assert!(!key.return_key().await, "another consumer has the key");
        // The key is assigned again and does not wait for anything.
        let next = inbox.offer(Some('a'), "next").await;
        let (answer, key) = next.decided().await;
        assert!(answer.is_ok() && key.return_key().await);
        let behind = inbox.offer(Some('a'), "behind").await;
        assert!(matches!(behind.settled().await, Err(Undelivered::Blocked)));
        inbox.reopen('a').await;
        let last = inbox.offer(Some('a'), "last").await;
        drop(last.decided().await);
        drop(inbox);
    };
    let seen = Mutex::new(Vec::new());
    let delivering = engine.run(&stop, OnStop::DeliverAll, |event, _| {
        seen.lock().unwrap().push(*event);
        async { ((), Outcome::Success) }
    });
    let both = async { tokio::join!(source, delivering) };
    tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
    assert_eq!(seen.into_inner().unwrap(), ["first", "next", "last"]);
}
