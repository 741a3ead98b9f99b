use proptest::prelude::*;

use super::*;

fn breaker(max_requests: u32, interval: Option<u64>, trip: &str, start: Instant) -> Breaker {
    let spec = BreakerSpec {
        max_requests,
        interval: interval.map(Duration::from_secs),
        timeout: Duration::from_secs(10),
        trip: Trip::compile(trip).unwrap(),
        ..BreakerSpec::named("test")
    };
    Breaker::new("test".into(), spec, start)
}

fn call(breaker: &Breaker, success: bool, now: Instant) -> Result<Option<StateChange>, BreakerError> {
    breaker
        .allow(now)
        .map(|permit| breaker.record(permit, success, now))
}

fn seconds(start: Instant, seconds: u64) -> Instant {
    start + Duration::from_secs(seconds)
}

const TRIPPED: StateChange = StateChange {
    from: BreakerState::Closed,
    to: BreakerState::Open,
};

#[test]
fn opens_after_consecutive_failures_and_recovers_through_half_open() {
    let start = Instant::now();
    let breaker = breaker(1, None, "consecutiveFailures > 3", start);
    for success in [false, false, false, true, false, false, false] {
        assert_eq!(call(&breaker, success, start), Ok(None));
    }
    assert_eq!(call(&breaker, false, start), Ok(Some(TRIPPED)));
    assert_eq!(call(&breaker, true, start), Err(BreakerError::Open));
    assert_eq!(
        call(&breaker, true, seconds(start, 10)),
        Err(BreakerError::Open),
        "expiry is exclusive"
    );

    let later = seconds(start, 11);
    assert_eq!(breaker.state(later), BreakerState::HalfOpen);
    let probe = breaker.allow(later).unwrap();
    assert_eq!(
        probe.change,
        Some(StateChange {
            from: BreakerState::Open,
            to: BreakerState::HalfOpen
        })
    );
    assert_eq!(breaker.allow(later).unwrap_err(), BreakerError::TooManyRequests);
    let closed = breaker.record(probe, true, later).unwrap();
    assert_eq!(
        closed,
        StateChange {
            from: BreakerState::HalfOpen,
            to: BreakerState::Closed
        }
    );
    assert_eq!(breaker.state(later), BreakerState::Closed);
}

#[test]
fn failed_probe_reopens() {
    let start = Instant::now();
    let breaker = breaker(2, None, "totalFailures > 0", start);
    assert_eq!(call(&breaker, false, start), Ok(Some(TRIPPED)));
    let later = seconds(start, 11);
    assert_eq!(call(&breaker, true, later), Ok(None), "two successes are needed");
    let reopened = call(&breaker, false, later).unwrap().unwrap();
    assert_eq!(
        reopened,
        StateChange {
            from: BreakerState::HalfOpen,
            to: BreakerState::Open
        }
    );
    assert_eq!(call(&breaker, true, seconds(start, 20)), Err(BreakerError::Open));
}

#[test]
fn interval_resets_counts() {
    let start = Instant::now();
    let breaker = breaker(1, Some(5), "totalFailures > 1", start);
    assert_eq!(call(&breaker, false, start), Ok(None));
    assert_eq!(call(&breaker, false, seconds(start, 6)), Ok(None));
    assert_eq!(call(&breaker, false, seconds(start, 7)), Ok(Some(TRIPPED)));
}

#[test]
fn ignores_late_results() {
    let start = Instant::now();
    let breaker = breaker(1, None, "totalFailures > 0", start);
    let slow = breaker.allow(start).unwrap();
    assert_eq!(call(&breaker, false, start), Ok(Some(TRIPPED)));
    let later = seconds(start, 11);
    let probe = breaker.allow(later).unwrap();
    assert_eq!(breaker.record(slow, false, later), None);
    assert_eq!(breaker.state(later), BreakerState::HalfOpen);
    assert!(breaker.record(probe, true, later).is_some());
}

#[test]
fn counts_requests() {
    let start = Instant::now();
    let breaker = breaker(1, None, "requests > 4", start);
    for _ in 0..4 {
        assert_eq!(call(&breaker, true, start), Ok(None));
    }
    assert_eq!(
        call(&breaker, true, start),
        Ok(None),
        "evaluated on failures only"
    );
    assert_eq!(call(&breaker, false, start), Ok(Some(TRIPPED)));
}

proptest! {
    /// For any order of calls, outcomes and time: an open breaker permits nothing before its timeout, and a
    /// half-open one never more than its limit.
    #[test]
    fn never_exceeds_permitted_calls(
        max in 1u32..4,
        steps in proptest::collection::vec((0u8..4, 0u64..8), 1..80),
    ) {
        let start = Instant::now();
        let breaker = breaker(max, None, "consecutiveFailures > 1", start);
        let mut now = start;
        let mut under_way: Vec<Permit> = Vec::new();
        let mut opened: Option<Instant> = None;
        for (step, wait) in steps {
            match step {
                0 => now += Duration::from_secs(wait),
                1 => {
                    let before = breaker.state(now);
                    if let Ok(permit) = breaker.allow(now) {
                        prop_assert!(opened.is_none_or(|at| now > at + Duration::from_secs(10)) );
                        under_way.push(permit);
                    } else {
                        prop_assert!(before != BreakerState::Closed);
                    }
                }
                _ => if let Some(permit) = under_way.pop() {
                    match breaker.record(permit, step == 2, now) {
                        Some(StateChange { to: BreakerState::Open, .. }) => opened = Some(now),
                        Some(StateChange { to: BreakerState::Closed, .. }) => opened = None,
                        _ => {}
                    }
                },
            }
            let state = breaker.lock();
            prop_assert!(state.state != BreakerState::HalfOpen || state.counts.requests <= max);
        }
    }
}
