//! An etcd that has reached its quota. It refuses all puts from then on, until its file is smaller and the alarm that it
//! raised is taken back. Nobody does that by hand for the etcd of a scheduler: deleting jobs has to be enough.

use std::time::Duration;

use tokio::time::Instant;

use super::{Defragment, LIMIT, LOG};
use crate::proto::etcd::{
    AlarmMember, AlarmRequest, AlarmType, CompactionRequest, StatusResponse, alarm_request::AlarmAction,
};
use crate::storage::StorageError;

/// The part of the quota that has to be free before puts are let in again, one in: with less the next ones would raise the
/// alarm anew.
const FREE: u64 = 10;

/// What was done to make room, as long as there is none.
pub(super) struct SpaceRecovery {
    /// The most bytes that the file may have for puts to be let in.
    most: u64,
    /// Between two attempts where etcd does not say that there is room to be gained.
    every: Duration,
    full: Option<Attempts>,
}

#[derive(Default)]
struct Attempts {
    /// The etcd's revision at the last look.
    revision: i64,
    /// History up to here is gone.
    compacted: i64,
    /// When the file was made smaller last, and of which revision it was.
    defragmented: Option<(Instant, i64)>,
}

impl SpaceRecovery {
    pub(super) fn new(quota: u64, every: Duration) -> Self {
        Self {
            most: quota - quota / FREE,
            every,
            full: None,
        }
    }

    /// No alarm is raised.
    pub(super) fn is_there(&mut self) {
        self.full = None;
    }

    /// Makes room if the alarm is that of this member, and takes it back once there is some.
    pub(super) async fn make(
        &mut self,
        of: &Defragment,
        status: &StatusResponse,
    ) -> Result<(), StorageError> {
        let header = status.header.as_ref();
        let (member, revision) = header.map_or((0, 0), |header| (header.member_id, header.revision));
        // That of another member is its scheduler's. One after the other stands still for a while, and not all together.
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
                "etcd has reached its quota of {} bytes (--etcd-space-quota) and stores no new jobs: delete some, or raise it \
                 and restart the scheduler",
                of.quota
            );
            Attempts::default()
        });
        // Up to what was there at the last look: who reads an older revision has had time to end.
        if full.revision > full.compacted {
            of.compact(full.revision).await?;
            full.compacted = full.revision;
        }
        full.revision = revision;
        let mut now = of.status().await?;
        if bytes(now.db_size) > self.most {
            let is_promising = bytes(now.db_size_in_use) <= self.most;
            // etcd counts what is free when it writes the next time, and nobody may write.
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
            tracing::info!(target: LOG, "the file of etcd had {before} bytes and has {} now", now.db_size);
        }
        if bytes(now.db_size) > self.most {
            return Ok(());
        }
        of.alarms(AlarmAction::Deactivate, Some(own)).await?;
        self.full = None;
        tracing::info!(
            target: LOG,
            "etcd has room again, {} of {} bytes are in use: its alarm NOSPACE is taken back, and new jobs are stored",
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
    /// Asks for all alarms, or changes one.
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
        let compacting = self
            .client
            .call_within(LIMIT, request, |mut stubs, request| async move {
                stubs.kv.compact(request).await
            });
        match compacting.await {
            // By etcd itself, as its flags say, or for another member.
            Err(StorageError::Failed(text)) if text.contains("has been compacted") => Ok(()),
            done => done.map(drop),
        }
    }
}
