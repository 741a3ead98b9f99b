//! Stores a job exactly once, even if the store commits the write and its response is lost.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use super::backend::{Backend, Condition, Write};
use super::{PAUSES, STORE_TIMEOUT, retried};
use crate::storage::pair::{Range, counter_key, job_key};
use crate::storage::{Scheduled, StorageError};
use crate::stored;

/// A job due later than this cannot have been triggered since it was requested. Longer than an attempt, plus
/// a margin for clock skew between members.
const SAFE_RETRY_HORIZON: Duration = Duration::from_secs(10);

/// Stores a job. `overwrite` replaces a job with that name and resets its progress. The job's bytes are
/// unique: they contain a random number.
///
/// # Errors
/// [`StorageError::Unknown`] if the job may have been stored, triggered and deleted before the check.
pub(super) async fn schedule(
    backend: &dyn Backend,
    name: &str,
    job: Vec<u8>,
    overwrite: bool,
) -> Result<Scheduled, StorageError> {
    let key = job_key(name);
    let mut conditions: Vec<Condition> = match overwrite {
        true => Vec::new(),
        false => vec![Condition::Modified(key.clone(), 0)],
    };
    let writes = [
        Write::Delete(Range::one(counter_key(name))),
        Write::Put {
            key: key.clone(),
            value: job.clone(),
            lease: None,
        },
    ];
    let deadline = Instant::now() + STORE_TIMEOUT;
    let (mut pauses, mut unanswered) = (PAUSES, None);
    loop {
        let failure = match backend.commit(&conditions, &writes).await {
            Ok(true) => return Ok(Scheduled::Stored),
            // Only this attempt can have written.
            Ok(false) if unanswered.is_none() => return Ok(Scheduled::Exists),
            // Another client wrote between the check and the write.
            Ok(false) => None,
            Err(error) if error.is_passing() => Some(error),
            Err(error) => return Err(error),
        };
        if let Some(StorageError::Unanswered(why)) = &failure {
            unanswered = Some(why.clone());
        }
        if let Some(why) = &unanswered {
            // Writing again would undo later changes of the job.
            let looking = retried(|| backend.get(vec![key.clone()]));
            let slow = |_| Err(StorageError::Unanswered(why.clone()));
            let found = timeout_at(deadline, looking).await.unwrap_or_else(slow)?;
            let modified = match found.into_iter().flatten().next() {
                Some(pair) if pair.value == job => return Ok(Scheduled::Stored),
                Some(_) if !overwrite => return Ok(Scheduled::Exists),
                Some(pair) => pair.modified,
                None if may_be_over(&job) => return Err(StorageError::Unknown(why.clone())),
                None => 0,
            };
            conditions = vec![Condition::Modified(key.clone(), modified)];
        }
        let pause = pauses.pause();
        if Instant::now() + pause >= deadline {
            let why = "other clients write the same job".to_owned();
            return Err(failure.unwrap_or(StorageError::Unavailable(why)));
        }
        tokio::time::sleep(pause).await;
    }
}

/// Whether a job stored a moment ago may have been triggered already.
fn may_be_over(job: &[u8]) -> bool {
    let first = stored::read(job, None)
        .ok()
        .and_then(|read| read.ticks.tick(&read.progress));
    first.is_some_and(|first| first <= Timestamp::now() + SAFE_RETRY_HORIZON)
}
