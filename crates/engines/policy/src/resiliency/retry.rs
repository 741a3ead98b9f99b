//! Retry decisions and backoff.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Backoff between attempts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Backoff {
    /// A constant interval.
    Constant(Duration),
    /// Growing intervals, with jitter.
    Exponential {
        /// Before the first retry; not limited by `max`.
        initial: Duration,
        /// Maximum interval before jitter.
        max: Duration,
        /// Maximum total time of all attempts and waits; `None` means unlimited.
        max_elapsed: Option<Duration>,
    },
}

impl Backoff {
    /// Initial interval of exponential policies.
    pub const INITIAL: Duration = Duration::from_millis(500);
    /// Growth factor of the interval.
    pub const MULTIPLIER: f64 = 1.5;
    /// Jitter as a fraction in both directions.
    pub const RANDOMIZATION: f64 = 0.5;
    /// Maximum total time of exponential policies.
    pub const MAX_ELAPSED: Duration = Duration::from_secs(15 * 60);

    /// The configurable exponential policy.
    pub const fn exponential(max: Duration) -> Self {
        Self::Exponential {
            initial: Self::INITIAL,
            max,
            max_elapsed: Some(Self::MAX_ELAPSED),
        }
    }
}

/// A retry policy.
#[derive(Debug, Clone, PartialEq)]
pub struct RetrySpec {
    /// Backoff between attempts.
    pub backoff: Backoff,
    /// Retries after the first attempt; `None` means unlimited.
    pub max_retries: Option<u32>,
    /// The status codes to retry.
    pub matching: CodeMatch,
}

impl RetrySpec {
    /// Default interval of constant policies.
    pub const DEFAULT_DURATION: Duration = Duration::from_secs(5);
    /// Default maximum interval.
    pub const DEFAULT_MAX_INTERVAL: Duration = Duration::from_secs(60);

    /// Whether there are retries, so that the request must be kept.
    pub const fn retries(&self) -> bool {
        !matches!(self.max_retries, Some(0))
    }
}

/// Status codes to retry. An absent list matches every code of its kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CodeMatch {
    http: Option<Vec<RangeInclusive<i64>>>,
    grpc: Option<Vec<RangeInclusive<i64>>>,
}

/// Why a list of status codes is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodeListError {
    /// Not a number.
    #[error("failed to parse {which} code {code} from pattern {pattern} to int")]
    Number {
        /// `start` or `end`.
        which: &'static str,
        /// The text in place of the number.
        code: String,
        /// The list entry.
        pattern: String,
    },
    /// More than one dash.
    #[error("invalid pattern {0}, more than one '-' exists")]
    Dashes(String),
    /// Not a status code of this kind.
    #[error("invalid pattern {pattern}, {which} code {code} is not valid")]
    Range {
        /// `start` or `end`.
        which: &'static str,
        /// The number.
        code: i64,
        /// The list entry.
        pattern: String,
    },
    /// The end is before the start.
    #[error("invalid pattern {0}, start value should not bigger than end value")]
    Backwards(String),
}

pub(super) const HTTP_CODES: RangeInclusive<i64> = 100..=599;
pub(super) const GRPC_CODES: RangeInclusive<i64> = 0..=16;

impl CodeMatch {
    /// Parses lists such as `429,500-504` (HTTP, 100-599) and `2,14` (gRPC, 0-16). Empty matches every
    /// code.
    ///
    /// # Errors
    /// The first invalid entry.
    pub fn parse(http: &str, grpc: &str) -> Result<Self, CodeListError> {
        Ok(Self {
            http: ranges(http, &HTTP_CODES)?,
            grpc: ranges(grpc, &GRPC_CODES)?,
        })
    }

    /// Whether an explicit list contains this HTTP status.
    pub fn names_http(&self, status: u16) -> bool {
        let status = i64::from(status);
        self.http
            .as_ref()
            .is_some_and(|ranges| ranges.iter().any(|range| range.contains(&status)))
    }

    /// Whether a status code is retried. Numbers that are neither gRPC codes nor HTTP statuses never are.
    pub fn matches(&self, code: i32) -> bool {
        let code = i64::from(code);
        let list = if GRPC_CODES.contains(&code) {
            &self.grpc
        } else if HTTP_CODES.contains(&code) {
            &self.http
        } else {
            return false;
        };
        list.as_ref()
            .is_none_or(|ranges| ranges.iter().any(|range| range.contains(&code)))
    }
}

fn ranges(
    list: &str,
    valid: &RangeInclusive<i64>,
) -> Result<Option<Vec<RangeInclusive<i64>>>, CodeListError> {
    if list.is_empty() {
        return Ok(None);
    }
    entries(list, valid).collect::<Result<_, _>>().map(Some)
}

/// The parsed entries of a list of codes.
pub(super) fn entries<'l>(
    list: &'l str,
    valid: &'l RangeInclusive<i64>,
) -> impl Iterator<Item = Result<RangeInclusive<i64>, CodeListError>> + 'l {
    let entries = list.split(',').filter(|entry| !entry.is_empty());
    entries.map(|entry| range(entry, valid))
}

fn range(pattern: &str, valid: &RangeInclusive<i64>) -> Result<RangeInclusive<i64>, CodeListError> {
    let code = |which, code: &str| {
        let number = code.parse().map_err(|_| CodeListError::Number {
            which,
            code: code.to_owned(),
            pattern: pattern.to_owned(),
        })?;
        if valid.contains(&number) {
            Ok(number)
        } else {
            Err(CodeListError::Range {
                which,
                code: number,
                pattern: pattern.to_owned(),
            })
        }
    };
    let (start, end) = match pattern.split_once('-') {
        Some((_, end)) if end.contains('-') => return Err(CodeListError::Dashes(pattern.to_owned())),
        Some((start, end)) => (code("start", start)?, code("end", end)?),
        None => {
            let only = code("start", pattern)?;
            (only, only)
        }
    };
    if end < start {
        return Err(CodeListError::Backwards(pattern.to_owned()));
    }
    Ok(start..=end)
}

/// Retry state of one run of an operation.
#[derive(Debug)]
pub struct RetryState {
    started: Instant,
    retries: u32,
    /// The next interval in nanoseconds, before jitter.
    interval: f64,
    random: u64,
}

impl RetryState {
    /// The initial state. `seed` determines the jitter.
    pub fn new(spec: &RetrySpec, now: Instant, seed: u64) -> Self {
        let first = match spec.backoff {
            Backoff::Constant(duration) => duration,
            Backoff::Exponential { initial, .. } => initial,
        };
        Self {
            started: now,
            retries: 0,
            interval: nanos(first),
            random: seed,
        }
    }

    /// After a failure with this status code, if any: the pause before the next attempt, or `None` to stop.
    pub fn next_delay(&mut self, spec: &RetrySpec, code: Option<i32>, now: Instant) -> Option<Duration> {
        if code.is_some_and(|code| !spec.matching.matches(code)) {
            return None;
        }
        if spec.max_retries.is_some_and(|max| self.retries >= max) {
            return None;
        }
        self.retries = self.retries.saturating_add(1);
        match spec.backoff {
            Backoff::Constant(duration) => Some(duration),
            Backoff::Exponential { max, max_elapsed, .. } => {
                let delay = self.jittered();
                let max = nanos(max);
                self.interval = if self.interval >= max / Backoff::MULTIPLIER {
                    max
                } else {
                    self.interval * Backoff::MULTIPLIER
                };
                let elapsed = now.saturating_duration_since(self.started).saturating_add(delay);
                max_elapsed.is_none_or(|limit| elapsed <= limit).then_some(delay)
            }
        }
    }

    fn jittered(&mut self) -> Duration {
        let spread = Backoff::RANDOMIZATION * self.interval;
        let value = self.interval - spread + self.unit() * 2.0 * spread;
        Duration::from_nanos(value as u64)
    }

    /// A number in [0, 1) (splitmix64).
    fn unit(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn nanos(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e9
}

#[cfg(test)]
mod tests;
