//! Recovers an etcd that has reached its quota. etcd then refuses all puts until the file is smaller and the
//! alarm is disarmed. Deleting jobs must be enough for that, because the scheduler's etcd has no operator who
//! disarms alarms.

use std::time::Duration;

use tokio::time::Instant;

use super::{DEFRAGMENT_TIMEOUT, Defragment, LOG};
use crate::proto::etcd::{
    AlarmMember, AlarmRequest, AlarmType, CompactionRequest, StatusResponse, alarm_request::AlarmAction,
};
use crate::storage::StorageError;

/// One tenth of the quota must be free before puts are allowed again; with less, the next puts would raise
/// the alarm again.
const FREE_PART: u64 = 10;

/// Progress of the recovery while the alarm is raised.
pub(super) struct SpaceRecovery {
    /// Maximum bytes in use for puts to be allowed.
    max_size: u64,
    /// Pause between attempts while etcd reports no space to reclaim.
    every: Duration,
    full: Option<Attempts>,
}

#[derive(Default)]
struct Attempts {
    /// etcd's revision at the last check.
    revision: i64,
    /// Revision up to which history is compacted.
    compacted: i64,
    /// Time and revision of the last defragmentation.
    defragmented: Option<(Instant, i64)>,
}

impl SpaceRecovery {
    pub(super) fn new(quota: u64, every: Duration) -> Self {
        Self {
            max_size: quota - quota / FREE_PART,
            every,
            full: None,
        }
    }

    /// Resets the progress: no alarm is raised.
    pub(super) fn clear(&mut self) {
        self.full = None;
    }

    /// Frees space if this member raised the alarm, and disarms the alarm once there is enough.
    pub(super) async fn recover(
        &mut self,
        of: &Defragment,
        status: &StatusResponse,
    ) -> Result<(), StorageError> {
        let header = status.header.as_ref();
        let (member, revision) = header.map_or((0, 0), |header| (header.member_id, header.revision));
        // Each scheduler recovers its own member, so that members stall one after another.
        let own = AlarmMember {
            member_id: member,
            alarm: AlarmType::Nospace.into(),
        };
        if !of.alarms(AlarmAction::Get, None).await?.contains(&own) {
            self.full = None;
            return Ok(());
        }
        let full = self.full.get_or_insert_with(|| {
            tracing::warn!(
                target: LOG,
                "etcd has reached its quota of {} bytes (--etcd-space-quota) and stores no new jobs: delete jobs, or \
                 raise the quota and restart the scheduler",
                of.quota
            );
            Attempts::default()
        });
        // Compacts up to the revision of the last check, which leaves time to readers of older revisions.
        if full.revision > full.compacted {
            of.compact(full.revision).await?;
            full.compacted = full.revision;
        }
        full.revision = revision;
        let mut now = of.status().await?;
        if bytes(now.db_size) > self.max_size {
            let is_promising = bytes(now.db_size_in_use) <= self.max_size;
            // etcd updates its count of free pages on the next write, and writes are refused now.
            let is_worth_a_try = full
                .defragmented
                .is_none_or(|(when, of)| of < full.compacted && when.elapsed() >= self.every);
            if full.compacted == 0 || !(is_promising || is_worth_a_try) {
                return Ok(());
            }
            full.defragmented = Some((Instant::now(), full.compacted));
            of.defragment().await?;
            let before = now.db_size;
            now = of.status().await?;
            tracing::info!(target: LOG, "etcd's file was defragmented from {before} to {} bytes", now.db_size);
        }
        if bytes(now.db_size) > self.max_size {
            return Ok(());
        }
        of.alarms(AlarmAction::Deactivate, Some(own)).await?;
        self.full = None;
        tracing::info!(
            target: LOG,
            "etcd accepts new jobs again: {} of {} bytes are in use, its NOSPACE alarm is disarmed",
            now.db_size,
            of.quota
        );
        Ok(())
    }
}

fn bytes(told: i64) -> u64 {
    u64::try_from(told).unwrap_or(0)
}

impl Defragment {
    /// Lists all alarms, or changes one.
    pub(super) async fn alarms(
        &self,
        action: AlarmAction,
        which: Option<AlarmMember>,
    ) -> Result<Vec<AlarmMember>, StorageError> {
        let which = which.unwrap_or_default();
        let request = AlarmRequest {
            action: action.into(),
            member_id: which.member_id,
            alarm: which.alarm,
        };
        let answer = self.client.call(request, |mut stubs, request| async move {
            stubs.maintenance.alarm(request).await
        });
        Ok(answer.await?.alarms)
    }

    async fn compact(&self, revision: i64) -> Result<(), StorageError> {
        let request = CompactionRequest {
            revision,
            physical: true,
        };
        let compacting =
            self.client
                .call_within(DEFRAGMENT_TIMEOUT, request, |mut stubs, request| async move {
                    stubs.kv.compact(request).await
                });
        match compacting.await {
            // Compacted before by etcd's auto-compaction, or for another member.
            Err(StorageError::Failed(text)) if text.contains("has been compacted") => Ok(()),
            done => done.map(drop),
        }
    }
}
