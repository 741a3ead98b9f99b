//! Due times of timers, and the formats of their times.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use outrigger_resources::value::{format_go_nanos, go_nanos};
use outrigger_schedule::moment::{IsoSpan, MomentError, moment};

/// Why the times of a timer or reminder are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The due time.
    #[error("error parsing {what} due time: {cause}")]
    Due {
        /// `timer` or `reminder`.
        what: &'static str,
        /// The expected format.
        cause: MomentError,
    },
    /// The period.
    #[error(
        "invalid {what} period: parse error: {text:?} is not a valid period (expected a duration such as 1h30m, or ISO 8601 such as \
         R5/PT1H30M)"
    )]
    Period {
        /// `timer` or `reminder`.
        what: &'static str,
        /// The period of the request, unparsed.
        text: String,
    },
    /// The period is `R0`.
    #[error("invalid timer period: has zero repetitions")]
    NoRepetitions,
    /// The period has calendar units, which reminder schedules do not support.
    #[error("unsupported period format: {0} (years, months, weeks and days cannot be used; use hours)")]
    Calendar(String),
    /// The TTL.
    #[error("error parsing {what} TTL: {cause}")]
    Ttl {
        /// `timer` or `reminder`.
        what: &'static str,
        /// The expected format.
        cause: MomentError,
    },
    /// The timer would never fire.
    #[error("timer has already expired: dueTime: {due} TTL: {ttl}")]
    Expired {
        /// The due time, which is after the end of the TTL.
        due: Timestamp,
        /// The `ttl` of the request, unparsed.
        ttl: String,
    },
}

/// The interval between two occurrences, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Period {
    /// Calendar and clock parts.
    span: IsoSpan,
    /// Occurrences, including the first; `None` is unlimited.
    times: Option<u32>,
}

impl Period {
    /// `None` for an empty text: one occurrence.
    fn parse(text: &str, what: &'static str) -> Result<Option<Self>, TimeError> {
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = || TimeError::Period {
            what,
            text: text.to_owned(),
        };
        let period = if let Ok(nanos) = go_nanos(text) {
            let nanos = u64::try_from(nanos).map_err(|_| wrong())?;
            let time = Duration::from_nanos(nanos);
            Self {
                span: IsoSpan {
                    time,
                    ..IsoSpan::default()
                },
                times: None,
            }
        } else if let Some(count) = text.strip_prefix('R').and_then(|count| count.parse().ok()) {
            Self {
                span: IsoSpan::default(),
                times: Some(count),
            }
        } else {
            let span = IsoSpan::parse(text).ok_or_else(wrong)?;
            let times = span.repetitions;
            Self { span, times }
        };
        Ok(Some(period))
    }

    fn is_nothing(&self) -> bool {
        !self.span.is_calendar() && self.span.time.is_zero()
    }
}

/// Converts the period of a reminder to the scheduler's schedule and repeat count. As in Dapr, `R0` is
/// unlimited.
///
/// # Errors
/// [`TimeError`].
pub fn reminder_schedule(period: &str) -> Result<Option<(String, Option<u32>)>, TimeError> {
    let Some(period_) = Period::parse(period, "reminder")? else {
        return Ok(None);
    };
    if period_.span.is_calendar() {
        return Err(TimeError::Calendar(period.to_owned()));
    }
    let nanos = i64::try_from(period_.span.time.as_nanos()).unwrap_or(i64::MAX);
    Ok(Some((
        format!("@every {}", format_go_nanos(nanos)),
        period_.times.filter(|times| *times > 0),
    )))
}

/// The remaining due times of a timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recurrence {
    next: Timestamp,
    period: Option<Period>,
    /// Remaining occurrences, including the next.
    left: Option<u32>,
    ends: Option<Timestamp>,
}

impl Recurrence {
    /// Parses the times of a timer request.
    ///
    /// # Errors
    /// [`TimeError`].
    pub fn timer(due: &str, period: &str, ttl: &str, now: Timestamp) -> Result<Self, TimeError> {
        let what = "timer";
        let next = if due.is_empty() {
            now
        } else {
            moment(due, now).map_err(|cause| TimeError::Due { what, cause })?
        };
        let period = Period::parse(period, what)?;
        if period.is_some_and(|period| period.times == Some(0)) {
            return Err(TimeError::NoRepetitions);
        }
        let ends = if ttl.is_empty() {
            None
        } else {
            let ends = moment(ttl, next).map_err(|cause| TimeError::Ttl { what, cause })?;
            if now > ends || next > ends {
                let ttl = ttl.to_owned();
                return Err(TimeError::Expired { due: next, ttl });
            }
            Some(ends)
        };
        let left = period.and_then(|period| period.times);
        Ok(Self {
            next,
            period,
            left,
            ends,
        })
    }

    /// The next due time.
    pub fn next(&self) -> Timestamp {
        self.next
    }

    /// Time until the next occurrence; zero if overdue.
    pub fn wait(&self, now: Timestamp) -> Duration {
        let wait = SignedDuration::try_from(self.next - now).unwrap_or_default();
        Duration::try_from(wait).unwrap_or_default()
    }

    /// Advances past an occurrence; `None` if it was the last.
    #[must_use]
    pub fn passed(mut self) -> Option<Self> {
        let period = self.period.filter(|period| !period.is_nothing())?;
        if let Some(left) = &mut self.left {
            *left -= 1;
            if *left == 0 {
                return None;
            }
        }
        self.next = period.span.after(self.next)?;
        // The end time is exclusive.
        if self.ends.is_some_and(|ends| self.next >= ends) {
            return None;
        }
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "2024-01-31T12:00:00Z";

    fn start() -> Timestamp {
        START.parse().unwrap()
    }

    /// Due times in seconds after the start, at most ten.
    fn times(due: &str, period: &str, ttl: &str) -> Vec<i64> {
        let mut timer = Recurrence::timer(due, period, ttl, start()).ok();
        let mut times = Vec::new();
        while let Some(now) = timer
            && times.len() < 10
        {
            times.push(now.next().as_second() - start().as_second());
            timer = now.passed();
        }
        times
    }

    #[test]
    fn timer_fires_requested_times() {
        assert_eq!(times("", "", ""), [0]);
        assert_eq!(times("5s", "", ""), [5]);
        assert_eq!(times("PT5S", "R3/PT2S", ""), [5, 7, 9]);
        assert_eq!(times("0s", "R1/PT2S", ""), [0]);
        assert_eq!(times("", "R3", ""), [0], "there is no time between two");
        assert_eq!(times("1s", "0h0m2s", "7s"), [1, 3, 5, 7], "8 s is the end");
        assert_eq!(times("1s", "R-1/PT2S", "7s"), [1, 3, 5, 7], "without a limit");
        assert_eq!(times("1s", "2s", "6s"), [1, 3, 5], "7 s is the end, and too late");
        assert_eq!(
            times("2024-01-31T12:00:04Z", "1s", "2024-01-31T12:00:06Z"),
            [4, 5]
        );
        assert_eq!(times("", "R2/P1M", ""), [0, 31 * 86_400], "the 2nd of March");
    }

    #[test]
    fn invalid_time_names_cause() {
        let error = |due, period, ttl| {
            let timer = Recurrence::timer(due, period, ttl, start());
            timer.unwrap_err().to_string()
        };
        assert!(error("soon", "", "").starts_with("error parsing timer due time: format not recognized"));
        assert!(error("R5/PT1S", "", "").contains("repeats not supported"));
        assert!(error("", "often", "").starts_with("invalid timer period: parse error: "));
        assert!(error("", "-3s", "").starts_with("invalid timer period: parse error: "));
        assert_eq!(
            error("", "R0/PT1S", ""),
            "invalid timer period: has zero repetitions"
        );
        assert!(error("", "", "never").starts_with("error parsing timer TTL: "));
        assert!(error("", "", "2020-01-01T00:00:00Z").contains("already expired"));
        assert!(error("1h", "", "2024-01-31T12:00:01Z").contains("already expired"));
    }

    #[test]
    fn converts_reminder_schedules() {
        let of = |text| reminder_schedule(text).map_err(|error| error.to_string());
        assert_eq!(of(""), Ok(None));
        assert_eq!(of("10s"), Ok(Some(("@every 10s".to_owned(), None))));
        assert_eq!(of("R4/PT1M30S"), Ok(Some(("@every 1m30s".to_owned(), Some(4)))));
        assert!(
            of("P1D")
                .unwrap_err()
                .starts_with("unsupported period format: P1D")
        );
        assert_eq!(of("R0/PT1S"), Ok(Some(("@every 1s".to_owned(), None))));
    }

    #[test]
    fn wait_is_never_negative() {
        let timer = Recurrence::timer("10s", "", "", start()).unwrap();
        assert_eq!(timer.wait(start()), Duration::from_secs(10));
        assert_eq!(timer.wait(start() + Duration::from_secs(11)), Duration::ZERO);
    }
}
