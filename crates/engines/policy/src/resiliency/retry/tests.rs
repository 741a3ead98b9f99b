use proptest::prelude::*;

use super::*;

fn spec(backoff: Backoff, max_retries: Option<u32>) -> RetrySpec {
    RetrySpec {
        backoff,
        max_retries,
        matching: CodeMatch::default(),
    }
}

#[test]
fn constant_policy_has_limit() {
    let start = Instant::now();
    let second = Duration::from_secs(1);
    let spec = spec(Backoff::Constant(second), Some(2));
    let mut state = RetryState::new(&spec, start, 1);
    assert_eq!(state.next_delay(&spec, None, start), Some(second));
    assert_eq!(state.next_delay(&spec, Some(500), start), Some(second));
    assert_eq!(state.next_delay(&spec, None, start), None);
}

#[test]
fn only_explicit_lists_name_statuses() {
    let matching = CodeMatch::parse("100-101,503", "").unwrap();
    assert!(matching.names_http(101) && matching.names_http(503) && !matching.names_http(102));
    assert!(!CodeMatch::parse("", "2").unwrap().names_http(101));
}

#[test]
fn no_retries() {
    let start = Instant::now();
    let spec = spec(Backoff::Constant(Duration::ZERO), Some(0));
    assert!(!spec.retries());
    assert_eq!(
        RetryState::new(&spec, start, 1).next_delay(&spec, None, start),
        None
    );
}

#[test]
fn unlimited_constant_retries_ignore_the_clock() {
    let start = Instant::now();
    let spec = spec(Backoff::Constant(Duration::from_secs(5)), None);
    let mut state = RetryState::new(&spec, start, 1);
    for day in 0..100 {
        assert!(
            state
                .next_delay(&spec, None, start + Duration::from_secs(86_400 * day))
                .is_some()
        );
    }
}

#[test]
fn exponential_policy_ends_after_15_minutes() {
    let start = Instant::now();
    let spec = spec(Backoff::exponential(RetrySpec::DEFAULT_MAX_INTERVAL), None);
    let mut state = RetryState::new(&spec, start, 7);
    let mut now = start;
    let mut retries = 0;
    while let Some(delay) = state.next_delay(&spec, None, now) {
        now += delay;
        retries += 1;
        assert!(retries < 1000);
    }
    let total = now - start;
    assert!(
        total <= Backoff::MAX_ELAPSED && total > Backoff::MAX_ELAPSED - Duration::from_secs(90),
        "{total:?}"
    );
}

#[test]
fn code_lists() {
    let all = CodeMatch::default();
    assert!(all.matches(500) && all.matches(14) && all.matches(0));
    assert!(!all.matches(17) && !all.matches(600) && !all.matches(-1));

    let some = CodeMatch::parse("429,500-503", "14").unwrap();
    assert!(some.matches(429) && some.matches(500) && some.matches(503) && some.matches(14));
    assert!(!some.matches(404) && !some.matches(504) && !some.matches(2));

    let http_only = CodeMatch::parse("503,", "").unwrap();
    assert!(http_only.matches(503) && http_only.matches(2) && !http_only.matches(500));

    let none = CodeMatch::parse(",", "").unwrap();
    assert!(!none.matches(500));
}

#[test]
fn bad_code_lists() {
    let message = |http, grpc| CodeMatch::parse(http, grpc).unwrap_err().to_string();
    assert_eq!(
        message("1-2-3", ""),
        "invalid pattern 1-2-3, more than one '-' exists"
    );
    assert_eq!(
        message("abc", ""),
        "failed to parse start code abc from pattern abc to int"
    );
    assert_eq!(
        message("500-x", ""),
        "failed to parse end code x from pattern 500-x to int"
    );
    assert_eq!(
        message("99", ""),
        "invalid pattern 99, start code 99 is not valid"
    );
    assert_eq!(
        message("", "1-17"),
        "invalid pattern 1-17, end code 17 is not valid"
    );
    assert_eq!(
        message("503-500", ""),
        "invalid pattern 503-500, start value should not bigger than end value"
    );
    assert_eq!(
        message("500, 501", ""),
        "failed to parse start code  501 from pattern  501 to int"
    );
}

#[test]
fn does_not_retry_unmatched_codes() {
    let start = Instant::now();
    let spec = RetrySpec {
        matching: CodeMatch::parse("500", "").unwrap(),
        ..spec(Backoff::Constant(Duration::ZERO), None)
    };
    let mut state = RetryState::new(&spec, start, 1);
    assert!(state.next_delay(&spec, Some(500), start).is_some());
    assert!(state.next_delay(&spec, None, start).is_some());
    assert!(state.next_delay(&spec, Some(501), start).is_none());
}

proptest! {
    #[test]
    fn exponential_intervals_stay_in_bounds(seed in any::<u64>(), max_ms in 1u64..100_000) {
        let start = Instant::now();
        let max = Duration::from_millis(max_ms);
        let spec = spec(Backoff::exponential(max), None);
        let mut state = RetryState::new(&spec, start, seed);
        let mut base = Backoff::INITIAL;
        for _ in 0..20 {
            let delay = state.next_delay(&spec, None, start).unwrap();
            let slack = Duration::from_micros(1);
            prop_assert!(delay + slack >= base / 2 && delay <= base * 3 / 2 + slack, "{:?} around {:?}", delay, base);
            base = if base.as_secs_f64() * 1.5 >= max.as_secs_f64() { max } else { base * 3 / 2 };
        }
    }
}
