//! The stored form of jobs. The bytes are those of Dapr's scheduler, so that each reads what the other wrote.

use std::convert::Infallible;

use jiff::Timestamp;
use outrigger_schedule::cron::{Cron, CronError, Dialect};
use outrigger_schedule::engine::{Key, Target, Version};
use outrigger_schedule::interner::Interner;
use outrigger_schedule::job::{Begin, FailurePolicy, InvalidJob, Job as Ticks, Progress, Request};
use outrigger_wire::common::v1::{
    JobFailurePolicy, JobFailurePolicyConstant, JobFailurePolicyDrop, job_failure_policy,
};
use outrigger_wire::scheduler::v1::{Job as WireJob, JobMetadata};
use prost::Message;
use prost_types::Any;

use crate::names;
use crate::proto::stored::{
    Constant, Counter, Definition, Drop, FailurePolicy as StoredPolicy, Job, failure_policy, job,
};

/// Type URL of [`JobMetadata`] in an `Any`.
const METADATA_TYPE: &str = "type.googleapis.com/dapr.proto.scheduler.v1.JobMetadata";
/// Last second of protobuf timestamps, 9999-12-31T23:59:59Z.
const LAST_SECOND: i64 = 253_402_300_799;

/// Why a stored job cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    /// The bytes are no valid message.
    #[error("it cannot be decoded: {0}")]
    Encoding(#[from] prost::DecodeError),
    /// A field is missing.
    #[error("its {0} is missing")]
    Missing(&'static str),
    /// A time is out of range.
    #[error("its {0} is out of the supported range of dates")]
    Time(&'static str),
    /// The schedule cannot be parsed.
    #[error("its schedule: {0}")]
    Schedule(#[from] CronError),
}

/// Creates a job from a valid request. `partition` is random.
///
/// # Errors
/// [`InvalidJob`].
pub(crate) fn create(
    asked: WireJob,
    metadata: &JobMetadata,
    partition: u64,
    now: Timestamp,
) -> Result<Job, InvalidJob> {
    let policy = asked.failure_policy.as_ref().and_then(policy_of);
    let ticks = Ticks::new(
        &Request {
            schedule: asked.schedule.as_deref(),
            due_time: asked.due_time.as_deref(),
            ttl: asked.ttl.as_deref(),
            repeats: asked.repeats,
            failure_policy: policy,
        },
        now,
    )?;
    Ok(Job {
        partition_id: partition,
        begin: Some(match ticks.begin {
            Begin::After(start) => job::Begin::Start(stamp(start)),
            Begin::At(due) => job::Begin::DueTime(stamp(due)),
        }),
        expiration: ticks.expiration.map(stamp),
        job: Some(Definition {
            schedule: asked.schedule,
            due_time: asked.due_time,
            ttl: asked.ttl,
            repeats: asked.repeats,
            metadata: Some(Any {
                type_url: METADATA_TYPE.to_owned(),
                value: metadata.encode_to_vec(),
            }),
            payload: asked.data,
            failure_policy: Some(store_policy(ticks.failure_policy)),
        }),
    })
}

/// The job as the caller requested it.
pub(crate) fn asked(job: Job) -> Option<WireJob> {
    let definition = job.job?;
    let policy = read_policy(definition.failure_policy.as_ref());
    Some(WireJob {
        schedule: definition.schedule,
        repeats: definition.repeats,
        due_time: definition.due_time,
        ttl: definition.ttl,
        data: definition.payload,
        failure_policy: Some(wire_policy(policy)),
    })
}

/// The metadata of a stored job.
///
/// # Errors
/// If it is missing or cannot be decoded.
pub(crate) fn metadata(job: &Job) -> Result<JobMetadata, Unreadable> {
    let definition = job.job.as_ref().ok_or(Unreadable::Missing("definition"))?;
    let any = definition
        .metadata
        .as_ref()
        .ok_or(Unreadable::Missing("metadata"))?;
    Ok(JobMetadata::decode(any.value.as_slice())?)
}

/// The engine's view of a job: target, key, due times and progress.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) target: Target,
    pub(crate) key: Option<Key>,
    pub(crate) ticks: Ticks,
    pub(crate) progress: Progress,
}

/// Reads a single job; for several, use [`Reader`].
///
/// # Errors
/// [`Unreadable`].
pub(crate) fn read(job: &[u8], counter: Option<&[u8]>) -> Result<Schedule, Unreadable> {
    Reader::default().read(job, counter)
}

/// Reads jobs; jobs with equal schedules or keys share them.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    schedules: Interner<String, Cron>,
    keys: Interner<String, String>,
}

impl Reader {
    /// Reads a stored job and its counter.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub(crate) fn read(&mut self, job: &[u8], counter: Option<&[u8]>) -> Result<Schedule, Unreadable> {
        let job = Job::decode(job)?;
        let metadata = metadata(&job)?;
        let target = names::target(&metadata).ok_or(Unreadable::Missing("target"))?;
        let key = names::key(metadata).map(|key| {
            let Ok(key) = self.keys.get(key, |key| Ok::<_, Infallible>(key.clone()));
            key
        });
        let begin = match job.begin.ok_or(Unreadable::Missing("begin"))? {
            job::Begin::Start(start) => Begin::After(time(start, "start")?),
            job::Begin::DueTime(due) => Begin::At(time(due, "due time")?),
        };
        let definition = job.job.ok_or(Unreadable::Missing("definition"))?;
        let schedule = definition.schedule.filter(|text| !text.is_empty());
        let schedule = schedule
            .map(|text| {
                self.schedules
                    .get(text, |text| Cron::parse(text, Dialect::Stored))
            })
            .transpose()?;
        let ticks = Ticks {
            begin,
            expiration: job.expiration.map(|end| time(end, "expiration")).transpose()?,
            schedule,
            repeats: definition.repeats,
            failure_policy: read_policy(definition.failure_policy.as_ref()),
        };
        Ok(Schedule {
            target,
            key,
            ticks,
            progress: progress(counter, job.partition_id)?,
        })
    }
}

fn progress(counter: Option<&[u8]>, partition: u64) -> Result<Progress, Unreadable> {
    let Some(counter) = counter else {
        return Ok(Progress::default());
    };
    let counter = Counter::decode(counter)?;
    // The counter belongs to a replaced job.
    if counter.job_partition_id != partition {
        return Ok(Progress::default());
    }
    let last = counter
        .last_trigger
        .map(|last| time(last, "last trigger"))
        .transpose()?;
    Ok(Progress {
        count: counter.count,
        last,
        attempts: counter.attempts,
    })
}

/// The field of a job that assigns it to a scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Partition {
    #[prost(uint64, tag = "1")]
    partition_id: u64,
}

/// The partition of a stored job; 0 if it cannot be decoded.
pub(crate) fn partition(job: &[u8]) -> u64 {
    Partition::decode(job).map_or(0, |job| job.partition_id)
}

/// The version of a job written at this revision.
pub(crate) fn version(revision: i64, job: &[u8]) -> Version {
    Version {
        revision: revision.unsigned_abs(),
        partition: partition(job),
    }
}

/// Encodes the progress of a job.
pub(crate) fn counter(progress: &Progress, partition: u64) -> Vec<u8> {
    let counter = Counter {
        job_partition_id: partition,
        count: progress.count,
        last_trigger: progress.last.map(stamp),
        attempts: progress.attempts,
    };
    counter.encode_to_vec()
}

fn stamp(time: Timestamp) -> prost_types::Timestamp {
    // Before 1970 jiff counts nanoseconds backwards; protobuf counts them forwards.
    let nanos = time.as_nanosecond();
    prost_types::Timestamp {
        seconds: i64::try_from(nanos.div_euclid(1_000_000_000)).unwrap_or(i64::MAX),
        nanos: i32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or(0),
    }
}

/// Dapr's scheduler stores "never" as a time in the last hours of protobuf's range. They map to the maximum
/// timestamp, as in [`outrigger_schedule::moment`].
fn time(stamp: prost_types::Timestamp, of: &'static str) -> Result<Timestamp, Unreadable> {
    let last_hours = Timestamp::MAX.as_second() + 1..=LAST_SECOND;
    if last_hours.contains(&stamp.seconds) && (0..1_000_000_000).contains(&stamp.nanos) {
        return Ok(Timestamp::MAX);
    }
    Timestamp::new(stamp.seconds, stamp.nanos).map_err(|_| Unreadable::Time(of))
}

fn policy_of(policy: &JobFailurePolicy) -> Option<FailurePolicy> {
    Some(match policy.policy.as_ref()? {
        job_failure_policy::Policy::Drop(_) => FailurePolicy::Drop,
        job_failure_policy::Policy::Constant(constant) => FailurePolicy::Constant {
            interval: span(constant.interval),
            max_retries: constant.max_retries,
        },
    })
}

/// A missing or negative interval means no pause.
fn span(interval: Option<prost_types::Duration>) -> std::time::Duration {
    interval.and_then(|span| span.try_into().ok()).unwrap_or_default()
}

fn store_policy(policy: FailurePolicy) -> StoredPolicy {
    let policy = match policy {
        FailurePolicy::Drop => failure_policy::Policy::Drop(Drop {}),
        FailurePolicy::Constant {
            interval,
            max_retries,
        } => failure_policy::Policy::Constant(Constant {
            interval: prost_types::Duration::try_from(interval).ok(),
            max_retries,
        }),
    };
    StoredPolicy { policy: Some(policy) }
}

fn read_policy(policy: Option<&StoredPolicy>) -> FailurePolicy {
    match policy.and_then(|policy| policy.policy.as_ref()) {
        None => FailurePolicy::default(),
        Some(failure_policy::Policy::Drop(_)) => FailurePolicy::Drop,
        Some(failure_policy::Policy::Constant(constant)) => FailurePolicy::Constant {
            interval: span(constant.interval),
            max_retries: constant.max_retries,
        },
    }
}

fn wire_policy(policy: FailurePolicy) -> JobFailurePolicy {
    let policy = match policy {
        FailurePolicy::Drop => job_failure_policy::Policy::Drop(JobFailurePolicyDrop {}),
        FailurePolicy::Constant {
            interval,
            max_retries,
        } => job_failure_policy::Policy::Constant(JobFailurePolicyConstant {
            interval: prost_types::Duration::try_from(interval).ok(),
            max_retries,
        }),
    };
    JobFailurePolicy { policy: Some(policy) }
}

#[cfg(test)]
mod tests {
    use outrigger_wire::scheduler::v1::{JobTargetMetadata, TargetJob, job_target_metadata::Type};

    use super::*;

    const NOW: &str = "2026-03-01T00:00:00.5Z";

    fn stored(asked: WireJob) -> Job {
        let metadata = JobMetadata {
            app_id: "app".into(),
            namespace: "ns".into(),
            target: Some(JobTargetMetadata {
                r#type: Some(Type::Job(TargetJob {})),
            }),
            concurrency_key: None,
        };
        create(asked, &metadata, 7, NOW.parse().unwrap()).unwrap()
    }

    fn every_minute() -> WireJob {
        WireJob {
            schedule: Some("@every 1m".into()),
            repeats: Some(3),
            ttl: Some("1h".into()),
            data: Some(Any {
                type_url: "t".into(),
                value: b"payload".to_vec(),
            }),
            ..WireJob::default()
        }
    }

    #[test]
    fn round_trips_jobs() {
        let job = stored(every_minute());
        let read = read(&job.encode_to_vec(), None).unwrap();
        assert_eq!(partition(&job.encode_to_vec()), 7);
        let tick = read.ticks.tick(&read.progress).unwrap();
        assert_eq!(tick.to_string(), "2026-03-01T00:01:00.5Z");
        let back = asked(job).unwrap();
        let policy = back.failure_policy.unwrap();
        assert_eq!(policy_of(&policy), Some(FailurePolicy::default()));
        assert_eq!(
            WireJob {
                failure_policy: None,
                ..back
            },
            every_minute()
        );
    }

    #[test]
    fn ignores_counter_of_replaced_job() {
        let job = stored(every_minute()).encode_to_vec();
        let progress = Progress {
            count: 1,
            last: Some("2026-03-01T00:01:00.5Z".parse().unwrap()),
            attempts: 2,
        };
        let of_this = read(&job, Some(&counter(&progress, 7))).unwrap();
        assert_eq!(of_this.progress, progress);
        let of_another = read(&job, Some(&counter(&progress, 8))).unwrap();
        assert_eq!(of_another.progress, Progress::default());
    }

    /// Regression: a job of Dapr's that never ends could not be read, and its store was refused.
    #[test]
    fn clamps_times_at_calendar_end() {
        let with = |seconds, nanos| {
            let mut job = stored(every_minute());
            job.begin = Some(job::Begin::DueTime(prost_types::Timestamp { seconds, nanos }));
            job.expiration = Some(prost_types::Timestamp { seconds, nanos });
            read(&job.encode_to_vec(), None)
        };
        let end = Timestamp::MAX.as_second();
        for (seconds, nanos) in [(LAST_SECOND, 0), (LAST_SECOND, 999_999_999), (end + 1, 0)] {
            let read = with(seconds, nanos).unwrap();
            assert_eq!(read.ticks.begin, Begin::At(Timestamp::MAX), "{seconds} {nanos}");
            assert_eq!(read.ticks.expiration, Some(Timestamp::MAX), "{seconds} {nanos}");
            assert_eq!(read.ticks.tick(&read.progress), Some(Timestamp::MAX));
        }
        let exact = Timestamp::from_second(end).unwrap();
        assert_eq!(with(end, 0).unwrap().ticks.begin, Begin::At(exact));
        for (seconds, nanos) in [(LAST_SECOND + 1, 0), (LAST_SECOND, -1), (i64::MAX, 0)] {
            let error = with(seconds, nanos).unwrap_err().to_string();
            assert_eq!(
                error, "its due time is out of the supported range of dates",
                "{seconds} {nanos}"
            );
        }
    }

    #[test]
    fn names_unreadable_field() {
        let error = read(&[0xff], None).unwrap_err().to_string();
        assert!(error.contains("cannot be decoded"), "{error}");
        let mut job = stored(every_minute());
        job.begin = None;
        let error = read(&job.encode_to_vec(), None).unwrap_err().to_string();
        assert_eq!(error, "its begin is missing");
    }
}
