//! Gives back the space that deleted and compacted keys leave in the file of the etcd that the scheduler runs: etcd itself
//! only uses it again. The thresholds are Dapr's (`scheduler.md`, section 1.3). Where the file has reached its quota, etcd
//! stores nothing more until somebody has made room and taken its alarm back: that is `full`.

mod full;

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::proto::etcd::{AlarmType, DefragmentRequest, StatusRequest, StatusResponse};
use crate::storage::StorageError;
use crate::storage::etcd::Client;

const LOG: &str = "dapr.scheduler.etcd";
/// Size of the file, as a multiple of what is in use, from which on it is made smaller.
const TIMES: i64 = 2;
/// Time for that. The etcd answers nothing meanwhile, and the others of its cluster go on.
const LIMIT: Duration = Duration::from_secs(300);

/// How often the etcd is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// For how much of the file is in use.
    pub(crate) every: Duration,
    /// For whether it is full.
    pub(crate) alarm: Duration,
}

impl Pace {
    /// Outside of tests.
    pub(crate) const USUAL: Self = Self {
        every: Duration::from_secs(600),
        alarm: Duration::from_secs(10),
    };
}

/// See the module's documentation.
pub(crate) struct Defragment {
    /// With the scheduler's own etcd as its only member.
    client: Client,
    /// The bytes that the file may have.
    quota: u64,
}

impl Defragment {
    pub(crate) fn new(client: Client, quota: u64) -> Self {
        Self { client, quota }
    }

    /// Looks again and again until `stop`.
    pub(crate) async fn run(self, pace: Pace, stop: CancellationToken) {
        // Members that were started together do not stand still together.
        let mut next = Instant::now() + pace.every.mul_f64(rand::random_range(0.5..1.0));
        let mut room = full::SpaceRecovery::new(self.quota, pace.every);
        loop {
            let wait = next.saturating_duration_since(Instant::now()).min(pace.alarm);
            let look = async {
                tokio::time::sleep(wait).await;
                let status = self.status().await?;
                if status
                    .errors
                    .iter()
                    .any(|error| error.contains(AlarmType::Nospace.as_str_name()))
                {
                    return room.make(&self, &status).await;
                }
                room.is_there();
                if Instant::now() >= next {
                    self.look(&status).await?;
                    next = Instant::now() + pace.every;
                }
                Ok(())
            };
            match stop.run_until_cancelled(look).await {
                None => return,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    tracing::debug!(target: LOG, "the file of etcd could not be made smaller, it is tried again: {error}");
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

    /// Makes the file smaller if much of it is not in use.
    async fn look(&self, before: &StatusResponse) -> Result<(), StorageError> {
        if before.db_size < before.db_size_in_use.saturating_mul(TIMES) {
            return Ok(());
        }
        self.defragment().await?;
        tracing::info!(
            target: LOG,
            "the file of etcd had {} bytes, of which {} were in use: it was made smaller",
            before.db_size,
            before.db_size_in_use
        );
        Ok(())
    }

    async fn defragment(&self) -> Result<(), StorageError> {
        self.client
            .call_within(LIMIT, DefragmentRequest {}, |mut stubs, request| async move {
                stubs.maintenance.defragment(request).await
            })
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests;
