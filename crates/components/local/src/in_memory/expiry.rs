//! Expiry of values, and its response metadata.

use std::time::{Duration, SystemTime};

use outrigger_component::{
    Error, Pairs, Result,
    state::{TTL, TTL_EXPIRES},
};

/// Seconds from 1970 to the year 10000, which RFC 3339 cannot express; treated as never.
const END_OF_TIME: u64 = 253_402_300_800;

/// Expiry time from `ttlInSeconds`; zero and negative values mean none. This store accepts 64-bit numbers,
/// the others 32-bit.
///
/// # Errors
/// Kind `InvalidRequest` unless the value is a whole number.
pub(super) fn of(metadata: &Pairs) -> Result<Option<SystemTime>> {
    let Some(text) = metadata.get(TTL).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let seconds: i64 = text.parse().map_err(|error| {
        let text = format!(
            "error parsing TTL: incorrect value for metadata '{TTL}': {text:?} is not a whole number of seconds"
        );
        Error::invalid_request(text).because(error)
    })?;
    Ok(after(seconds))
}

fn after(seconds: i64) -> Option<SystemTime> {
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(END_OF_TIME);
    let end = SystemTime::now().checked_add(Duration::from_secs(seconds))?;
    (end < last).then_some(end)
}

/// Response metadata for `expires`.
pub(super) fn reported(expires: Option<SystemTime>) -> Pairs {
    let Some(since) = expires.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()) else {
        return Pairs::new();
    };
    Pairs::from([(TTL_EXPIRES.to_owned(), rfc3339(since.as_secs()))])
}

/// Seconds since 1970 as RFC 3339 in UTC, capped at the last expressible time.
fn rfc3339(seconds: u64) -> String {
    let second = i64::try_from(seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(second)
        .unwrap_or(jiff::Timestamp::MAX)
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_times_in_utc() {
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
    fn only_positive_ttls_expire() {
        let end = |ttl: &str| of(&Pairs::from([(TTL.to_owned(), ttl.to_owned())]));
        for some in ["1", "2147483648", "99999999999"] {
            assert!(end(some).unwrap().is_some(), "{some}");
        }
        for never in ["", "0", "-1", "9223372036854775807"] {
            assert!(end(never).unwrap().is_none(), "{never}");
        }
        for wrong in ["ten", "1.5", "9223372036854775808"] {
            assert!(end(wrong).is_err(), "{wrong}");
        }
        assert_eq!(of(&Pairs::new()).unwrap(), None);
    }
}
