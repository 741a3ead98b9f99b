use std::sync::Arc;

use super::super::breaker::{BreakerSpec, BreakerState};
use super::super::policy::{Breakers, Seed, Subject};
use super::super::retry::{Backoff, CodeMatch, RetrySpec};
use super::super::trip::Trip;
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const FAILED: Outcome = Outcome::Failure { code: Some(500) };

fn policy(retries: Option<u32>, trip: Option<&str>) -> Policy {
    Policy {
        subject: Subject::App("app".into()),
        target: "app_app".into(),
        resource: Arc::default(),
        timeout: Some(SECOND),
        retry: retries.map(|retries| {
            Arc::new(RetrySpec {
                backoff: Backoff::Constant(SECOND),
                max_retries: Some(retries),
                matching: CodeMatch::parse("500-599", "").unwrap(),
            })
        }),
        breakers: trip.map_or(Breakers::None, |trip| {
            let spec = BreakerSpec {
                trip: Trip::compile(trip).unwrap(),
                ..BreakerSpec::named("cb")
            };
            Breakers::per_key(spec, String::new(), 2, None)
        }),
        seed: Seed::random(),
    }
}

fn key() -> Key<'static> {
    Key::app("app", "method")
}

#[test]
fn retries_then_recovers() {
    let (policy, now) = (policy(Some(3), None), Instant::now());
    let mut run = policy.start(key(), now);
    assert_eq!(run.before(now), Ok(Some(SECOND)));
    assert_eq!(run.after(FAILED, now), Some(SECOND));
    assert_eq!(run.before(now), Ok(Some(SECOND)));
    assert_eq!(run.after(Outcome::TimedOut, now), Some(SECOND));
    assert_eq!(run.before(now), Ok(Some(SECOND)));
    assert_eq!(run.after(Outcome::Success, now), None);
    assert_eq!(run.attempts(), 3);
    let events = run.take_events();
    assert!(matches!(
        events[..],
        [
            Event::RetryStarted { after: SECOND },
            Event::TimeoutExpired,
            Event::Recovered { attempts: 3 }
        ]
    ));
    assert!(run.take_events().is_empty());
    assert_eq!(run.operation(), "endpoint[app, app:method]");
}

#[test]
fn gives_up() {
    let (policy, now) = (policy(Some(1), None), Instant::now());
    for outcomes in [
        vec![FAILED, FAILED],
        vec![Outcome::Failure { code: Some(404) }],
        vec![Outcome::Final],
        vec![Outcome::Failure { code: None }, Outcome::TimedOut],
    ] {
        let mut run = policy.start(key(), now);
        let mut next = None;
        for outcome in &outcomes {
            run.before(now).unwrap();
            next = run.after(*outcome, now);
        }
        assert_eq!(next, None, "{outcomes:?}");
        assert_eq!(run.attempts() as usize, outcomes.len());
    }
}

#[test]
fn makes_one_attempt_without_retries() {
    let (policy, now) = (policy(None, None), Instant::now());
    let mut run = policy.start(key(), now);
    run.before(now).unwrap();
    assert_eq!(run.after(FAILED, now), None);
    assert!(run.take_events().is_empty());
}

#[test]
fn open_breaker_ends_retries() {
    let (policy, now) = (policy(Some(10), Some("consecutiveFailures > 1")), Instant::now());
    let mut run = policy.start(key(), now);
    for _ in 0..2 {
        run.before(now).unwrap();
        assert!(run.after(FAILED, now).is_some());
    }
    assert_eq!(run.before(now), Err(BreakerError::Open));
    let events = run.take_events();
    assert!(matches!(
        events[..],
        [
            Event::RetryStarted { .. },
            Event::BreakerChanged { counted: true, .. }
        ]
    ));
    assert_eq!(run.breaker_state(now), Some(BreakerState::Open));

    let mut other = policy.start(Key::app("app", "other"), now);
    assert!(other.before(now).is_ok(), "each key has its own breaker");
    let later = now + Duration::from_secs(61);
    let mut run = policy.start(key(), later);
    assert!(run.before(later).is_ok());
    assert_eq!(run.after(Outcome::Success, later), None);
    assert!(matches!(
        run.take_events()[..],
        [
            Event::BreakerChanged { counted: false, .. },
            Event::BreakerChanged { counted: true, .. }
        ]
    ));
}

#[test]
fn unsendable_request_does_not_open_breaker() {
    let (policy, now) = (policy(Some(10), Some("consecutiveFailures > 0")), Instant::now());
    for _ in 0..5 {
        let mut run = policy.start(key(), now);
        run.before(now).unwrap();
        assert_eq!(run.after(Outcome::Unsendable, now), None);
        assert_eq!(run.breaker_state(now), Some(BreakerState::Closed));
    }
    // It does not close one either, nor keep the place of the probe.
    let mut run = policy.start(key(), now);
    run.before(now).unwrap();
    let _retry = run.after(FAILED, now);
    let later = now + Duration::from_secs(61);
    for _ in 0..2 {
        let mut probe = policy.start(key(), later);
        probe.before(later).unwrap();
        assert_eq!(probe.after(Outcome::Unsendable, later), None);
        assert_eq!(probe.breaker_state(later), Some(BreakerState::HalfOpen));
    }
}

#[test]
fn unrepeatable_request_counts_as_failure() {
    let (policy, now) = (policy(Some(10), Some("consecutiveFailures > 0")), Instant::now());
    for (state, outcome) in [
        (BreakerState::Closed, Outcome::Success),
        (BreakerState::Open, FAILED),
    ] {
        let mut run = policy.start(key(), now);
        run.before(now).unwrap();
        assert_eq!(run.after(outcome.if_repeatable(false), now), None);
        assert_eq!(run.breaker_state(now), Some(state));
        assert_eq!(outcome.if_repeatable(true), outcome);
    }
    assert_eq!(Outcome::TimedOut.if_repeatable(false), Outcome::Final);
    assert_eq!(Outcome::Unsendable.if_repeatable(false), Outcome::Unsendable);
}

#[test]
fn cancelled_probe_returns_permit() {
    let (policy, now) = (policy(None, Some("consecutiveFailures > 0")), Instant::now());
    let fail = |now| {
        let mut run = policy.start(key(), now);
        run.before(now).unwrap();
        run.after(FAILED, now)
    };
    assert_eq!(fail(now), None);
    let later = now + Duration::from_secs(61);
    let mut probe = policy.start(key(), later);
    probe.before(later).unwrap();
    drop(probe);
    let mut run = policy.start(key(), later);
    assert_eq!(run.before(later), Err(BreakerError::Open), "counted as a failure");
    let much_later = later + Duration::from_secs(61);
    assert!(run.before(much_later).is_ok());
    assert_eq!(run.after(Outcome::Success, much_later), None);
}
