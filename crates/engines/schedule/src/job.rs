//! A job: the times of its ticks, and the effect of a tick's outcome.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::cron::{Cron, CronError, Dialect};
use crate::moment::{MomentError, moment};

/// Treatment of a failed tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailurePolicy {
    /// Drop it and continue with the next tick.
    Drop,
    /// Retry after `interval`, up to `max_retries` times; `None` retries until it succeeds.
    Constant {
        /// Time between attempts.
        interval: Duration,
        /// Attempts after the first.
        max_retries: Option<u32>,
    },
}

impl Default for FailurePolicy {
    /// The default for a job without a policy.
    fn default() -> Self {
        Self::Constant {
            interval: Duration::from_secs(1),
            max_retries: Some(3),
        }
    }
}

/// The request for a job.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// Recurrence: six fields, or a name.
    pub schedule: Option<&'a str>,
    /// The first tick.
    pub due_time: Option<&'a str>,
    /// Expiry, relative to the first tick if that is given.
    pub ttl: Option<&'a str>,
    /// Number of ticks.
    pub repeats: Option<u32>,
    /// `None` means the default.
    pub failure_policy: Option<FailurePolicy>,
}

/// Why a job is invalid. The texts are Dapr's (`scheduler.md`, section 3.1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidJob {
    /// Neither due time nor schedule.
    #[error("job must have either a due time or a schedule")]
    NoTime,
    /// Repeats without a schedule.
    #[error("job must have a schedule to repeat")]
    RepeatsWithoutSchedule,
    /// `repeats: 0`.
    #[error("defined repeats must be greater than 0")]
    NoRepeats,
    /// A TTL without a schedule.
    #[error("job must have a schedule to have a ttl")]
    TtlWithoutSchedule,
    /// The schedule cannot be parsed.
    #[error("failed to parse job schedule: {0}")]
    Schedule(#[from] CronError),
    /// The schedule has no future time.
    #[error("job must have a schedule that occurs: {0} never does")]
    Never(String),
    /// `dueTime` is neither a time nor a duration.
    #[error("failed to parse due time: {0}")]
    DueTime(MomentError),
    /// Invalid TTL.
    #[error("failed to parse ttl: {0}")]
    Ttl(MomentError),
    /// It expires before its first tick.
    #[error("ttl must be greater than due time: ttl {ttl} <= due time {due}")]
    TtlBeforeDueTime {
        /// Expiry.
        ttl: Timestamp,
        /// First tick.
        due: Timestamp,
    },
}

/// Start of a job's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// The first tick is the schedule's first time after this.
    After(Timestamp),
    /// The first tick is at this time.
    At(Timestamp),
}

/// The schedule of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Start of the ticks.
    pub begin: Begin,
    /// No tick is later than this.
    pub expiration: Option<Timestamp>,
    /// Recurrence; `None` means a single tick. Shared by jobs with the same schedule text.
    pub schedule: Option<Arc<Cron>>,
    /// Number of ticks; `None` means unlimited.
    pub repeats: Option<u32>,
    /// Treatment of failed ticks.
    pub failure_policy: FailurePolicy,
}

/// Progress of a job. The stored progress suffices to continue after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Completed ticks, including dropped ones.
    pub count: u32,
    /// Due time of the last completed tick.
    pub last: Option<Timestamp>,
    /// Failed attempts of the current tick.
    pub attempts: u32,
}

/// Outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The app accepted it.
    Success,
    /// The app or the delivery failed.
    Failed,
}

/// The next step of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A tick, due at this time.
    Tick(Timestamp),
    /// A retry of the same tick, after this time.
    Retry(Duration),
    /// The job is over.
    Over,
}

impl Job {
    /// Validates a request. `now` is the time of creation.
    ///
    /// # Errors
    /// [`InvalidJob`].
    pub fn new(request: &Request<'_>, now: Timestamp) -> Result<Self, InvalidJob> {
        let schedule = request.schedule.filter(|text| !text.is_empty());
        let due_time = request.due_time.filter(|text| !text.is_empty());
        if schedule.is_none() && due_time.is_none() {
            return Err(InvalidJob::NoTime);
        }
        match request.repeats {
            Some(0) => return Err(InvalidJob::NoRepeats),
            Some(2..) if schedule.is_none() => return Err(InvalidJob::RepeatsWithoutSchedule),
            _ => {}
        }
        let ttl = request.ttl.filter(|text| !text.is_empty());
        if ttl.is_some() && schedule.is_none() {
            return Err(InvalidJob::TtlWithoutSchedule);
        }
        let due = due_time
            .map(|text| moment(text, now))
            .transpose()
            .map_err(InvalidJob::DueTime)?;
        let expiration = ttl
            .map(|text| moment(text, due.unwrap_or(now)))
            .transpose()
            .map_err(InvalidJob::Ttl)?;
        if let (Some(due), Some(ttl)) = (due, expiration)
            && ttl <= due
        {
            return Err(InvalidJob::TtlBeforeDueTime { ttl, due });
        }
        let schedule = schedule
            .map(|text| Cron::parse(text, Dialect::Job))
            .transpose()?
            .map(Arc::new);
        if due.is_none()
            && schedule
                .as_ref()
                .is_some_and(|schedule| schedule.after(now).is_none())
        {
            return Err(InvalidJob::Never(request.schedule.unwrap_or_default().to_owned()));
        }
        Ok(Self {
            begin: due.map_or(Begin::After(now), Begin::At),
            expiration,
            schedule,
            repeats: request.repeats,
            failure_policy: request.failure_policy.unwrap_or_default(),
        })
    }

    /// The tick that follows `progress`; `None` if the job is over. Ticks follow the schedule, not the
    /// clock: missed ticks are delivered one after the other.
    pub fn tick(&self, progress: &Progress) -> Option<Timestamp> {
        if self.repeats.is_some_and(|repeats| progress.count >= repeats) {
            return None;
        }
        let tick = match (progress.last, self.begin, &self.schedule) {
            (None, Begin::At(due), _) => Some(due),
            (None, Begin::After(start), Some(schedule)) => schedule.after(start),
            (Some(last), _, Some(schedule)) => schedule.after(last),
            (_, _, None) => None,
        };
        tick.filter(|tick| self.expiration.is_none_or(|end| *tick <= end))
    }

    /// Applies the outcome of an attempt of `tick`.
    pub fn after(&self, progress: &mut Progress, tick: Timestamp, outcome: Outcome) -> Next {
        if outcome == Outcome::Failed
            && let FailurePolicy::Constant {
                interval,
                max_retries,
            } = self.failure_policy
        {
            progress.attempts = progress.attempts.saturating_add(1);
            if max_retries.is_none_or(|most| progress.attempts <= most) {
                return Next::Retry(interval);
            }
        }
        progress.count = progress.count.saturating_add(1);
        progress.last = Some(tick);
        progress.attempts = 0;
        self.tick(progress).map_or(Next::Over, Next::Tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-03-01T00:00:00Z";

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn job(request: Request<'_>) -> Result<Job, InvalidJob> {
        Job::new(&request, time(NOW))
    }

    fn ticks(job: &Job) -> Vec<String> {
        let mut progress = Progress::default();
        let mut ticks = Vec::new();
        let mut next = job.tick(&progress);
        while let Some(tick) = next {
            ticks.push(tick.to_string());
            if ticks.len() == 5 {
                break;
            }
            next = match job.after(&mut progress, tick, Outcome::Success) {
                Next::Tick(tick) => Some(tick),
                _ => None,
            };
        }
        ticks
    }

    #[test]
    fn ticks_follow_request() {
        let once = job(Request {
            due_time: Some("1m"),
            ..Request::default()
        });
        assert_eq!(ticks(&once.unwrap()), ["2026-03-01T00:01:00Z"]);
        let thrice = job(Request {
            schedule: Some("@every 10s"),
            repeats: Some(3),
            ..Request::default()
        });
        assert_eq!(
            ticks(&thrice.unwrap()),
            [
                "2026-03-01T00:00:10Z",
                "2026-03-01T00:00:20Z",
                "2026-03-01T00:00:30Z"
            ]
        );
        let due_first = job(Request {
            schedule: Some("0 0 * * * *"),
            due_time: Some("2026-03-01T00:30:00Z"),
            ttl: Some("2h"),
            ..Request::default()
        });
        assert_eq!(
            ticks(&due_first.unwrap()),
            [
                "2026-03-01T00:30:00Z",
                "2026-03-01T01:00:00Z",
                "2026-03-01T02:00:00Z"
            ]
        );
    }

    #[test]
    fn retries_failures_then_drops() {
        let job = job(Request {
            schedule: Some("@every 1m"),
            failure_policy: Some(FailurePolicy::Constant {
                interval: Duration::from_secs(5),
                max_retries: Some(2),
            }),
            ..Request::default()
        })
        .unwrap();
        let mut progress = Progress::default();
        let tick = job.tick(&progress).unwrap();
        for attempt in 1..=2 {
            let next = job.after(&mut progress, tick, Outcome::Failed);
            assert_eq!(next, Next::Retry(Duration::from_secs(5)));
            assert_eq!((progress.attempts, progress.count), (attempt, 0));
        }
        let next = job.after(&mut progress, tick, Outcome::Failed);
        assert_eq!(next, Next::Tick(time("2026-03-01T00:02:00Z")));
        assert_eq!((progress.attempts, progress.count), (0, 1));
    }

    #[test]
    fn drop_policy_continues() {
        let job = job(Request {
            due_time: Some("0s"),
            failure_policy: Some(FailurePolicy::Drop),
            ..Request::default()
        })
        .unwrap();
        let next = job.after(&mut Progress::default(), time(NOW), Outcome::Failed);
        assert_eq!(next, Next::Over);
    }

    #[test]
    fn errors_name_invalid_field() {
        for (request, text) in [
            (
                Request::default(),
                "job must have either a due time or a schedule",
            ),
            (
                Request {
                    due_time: Some("1s"),
                    repeats: Some(2),
                    ..Request::default()
                },
                "job must have a schedule to repeat",
            ),
            (
                Request {
                    schedule: Some("0 0 0 31 2 *"),
                    ..Request::default()
                },
                "0 0 0 31 2 * never does",
            ),
            (
                Request {
                    schedule: Some("@daily"),
                    repeats: Some(0),
                    ..Request::default()
                },
                "defined repeats must be greater than 0",
            ),
            (
                Request {
                    due_time: Some("1s"),
                    ttl: Some("2s"),
                    ..Request::default()
                },
                "job must have a schedule to have a ttl",
            ),
            (
                Request {
                    schedule: Some("@daily"),
                    due_time: Some("2h"),
                    ttl: Some("2026-03-01T01:00:00Z"),
                    ..Request::default()
                },
                "ttl must be greater than due time",
            ),
            (
                Request {
                    due_time: Some("soon"),
                    ..Request::default()
                },
                "due time",
            ),
            (
                Request {
                    schedule: Some("* * * * *"),
                    ..Request::default()
                },
                "6 fields",
            ),
        ] {
            let error = job(request).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
