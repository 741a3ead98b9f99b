//! When values expire, and how that is told.

use std::time::{Duration, SystemTime};

use outrigger_component::{Pairs, state::TTL_EXPIRES};

/// The end of a value with `ttl` seconds; zero and less is no end.
pub(super) fn after(ttl: Option<i32>) -> Option<SystemTime> {
    let seconds = u64::try_from(ttl?).ok().filter(|seconds| *seconds > 0)?;
    Some(SystemTime::now() + Duration::from_secs(seconds))
}

/// The response metadata about `expires`.
pub(super) fn reported(expires: Option<SystemTime>) -> Pairs {
    let Some(since) = expires.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()) else {
        return Pairs::new();
    };
    Pairs::from([(TTL_EXPIRES.to_owned(), rfc3339(since.as_secs()))])
}

/// Seconds since 1970 as RFC 3339 in UTC, after Howard Hinnant's `civil_from_days`.
fn rfc3339(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_102_444_800, "2100-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    #[test]
    fn only_positive_ttls_end_a_value() {
        assert!(after(Some(1)).is_some());
        for never in [None, Some(0), Some(-1)] {
            assert!(after(never).is_none());
        }
    }
}
