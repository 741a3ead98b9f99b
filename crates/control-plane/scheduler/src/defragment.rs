//! Shrinks the database file of the etcd that the scheduler runs. etcd reuses the space of deleted and
//! compacted keys but does not return it to the disk. The thresholds are Dapr's (`scheduler.md`, section
//! 1.3). At its quota etcd refuses writes until space is freed and the alarm is disarmed; module `full` does
//! both.

mod full;

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::proto::etcd::{AlarmType, DefragmentRequest, StatusRequest, StatusResponse};
use crate::storage::StorageError;
use crate::storage::etcd::Client;

const LOG: &str = "dapr.scheduler.etcd";
/// The file is defragmented when its size exceeds the bytes in use by this factor.
const MIN_RATIO: i64 = 2;
/// Deadline of a defragmentation. The member does not answer while it runs; other members do.
const DEFRAGMENT_TIMEOUT: Duration = Duration::from_secs(300);

/// How often to check etcd.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Interval of checks for unused space.
    pub(crate) every: Duration,
    /// Interval of checks for the quota alarm.
    pub(crate) alarm: Duration,
}

impl Pace {
    /// The intervals outside of tests.
    pub(crate) const USUAL: Self = Self {
        every: Duration::from_secs(600),
        alarm: Duration::from_secs(10),
    };
}

/// See the module documentation.
pub(crate) struct Defragment {
    /// A client of the scheduler's own etcd only.
    client: Client,
    /// Quota of the file in bytes.
    quota: u64,
}

impl Defragment {
    pub(crate) fn new(client: Client, quota: u64) -> Self {
        Self { client, quota }
    }

    /// Checks periodically until `stop`.
    pub(crate) async fn run(self, pace: Pace, stop: CancellationToken) {
        // Random offset, so that members started together do not stall together.
        let mut next = Instant::now() + pace.every.mul_f64(rand::random_range(0.5..1.0));
        let mut room = full::SpaceRecovery::new(self.quota, pace.every);
        loop {
            let wait = next.saturating_duration_since(Instant::now()).min(pace.alarm);
            let defragment_unused = async {
                tokio::time::sleep(wait).await;
                let status = self.status().await?;
                if status
                    .errors
                    .iter()
                    .any(|error| error.contains(AlarmType::Nospace.as_str_name()))
                {
                    return room.recover(&self, &status).await;
                }
                room.clear();
                if Instant::now() >= next {
                    self.defragment_unused(&status).await?;
                    next = Instant::now() + pace.every;
                }
                Ok(())
            };
            match stop.run_until_cancelled(defragment_unused).await {
                None => return,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::debug!(target: LOG, "cannot defragment etcd's file, retrying: {error}");
                    next = next.max(Instant::now() + pace.alarm);
                }
            }
        }
    }

    async fn status(&self) -> Result<StatusResponse, StorageError> {
        self.client
            .call(StatusRequest {}, |mut stubs, request| async move {
                stubs.maintenance.status(request).await
            })
            .await
    }

    /// Defragments the file if enough of it is unused.
    async fn defragment_unused(&self, before: &StatusResponse) -> Result<(), StorageError> {
        if before.db_size < before.db_size_in_use.saturating_mul(MIN_RATIO) {
            return Ok(());
        }
        self.defragment().await?;
        tracing::info!(
            target: LOG,
            "etcd's file was defragmented: it had {} bytes with {} in use",
            before.db_size,
            before.db_size_in_use
        );
        Ok(())
    }

    async fn defragment(&self) -> Result<(), StorageError> {
        self.client
            .call_within(
                DEFRAGMENT_TIMEOUT,
                DefragmentRequest {},
                |mut stubs, request| async move { stubs.maintenance.defragment(request).await },
            )
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests;
