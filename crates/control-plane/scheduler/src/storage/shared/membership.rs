//! The membership of this scheduler in the group that shares the store: its entry, bound to a lease, and its
//! shard once all entries agree ([`outrigger_schedule::quorum`]).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outrigger_schedule::quorum::{self, Entry, GroupMembers, View};
use outrigger_schedule::shard::Shard;
use outrigger_wire::scheduler::v1::Host;
use prost::Message;
use prost_types::Any;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::advances::{Advances, Fence};
use super::backend::{Backend, Condition, Watch, Write};
use super::follow::follow;
use super::{FIRST_PAUSE, PAUSES, SelfMember};
use crate::fault;
use crate::proto::stored::Leadership;
use crate::storage::pair::{Pair, Range};
use crate::storage::{Change, Hosts, LEADERSHIP, StorageError, Tenure};

const LOG: &str = "dapr.scheduler.members";
/// Lifetime of a lease that is not renewed; then other members take over.
const LEASE: Duration = Duration::from_secs(20);
/// Interval of lease renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// Pause before a failed renewal is retried.
const RENEW_RETRY: Duration = Duration::from_millis(500);
/// A scheduler stops using its jobs this long before its lease may expire.
const MARGIN: Duration = Duration::from_secs(2);
/// How long apps have to answer triggers in flight when the group changes. Later answers are dropped.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of checks of all entries, in case the watch reports nothing.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Type URL of a [`Host`] in an `Any`.
const HOST_TYPE: &str = "type.googleapis.com/dapr.proto.scheduler.v1.Host";

/// The membership of this scheduler: its lease and entry, and the shard of jobs that follows from all
/// entries.
pub(super) struct Membership {
    backend: Arc<dyn Backend>,
    own: SelfMember,
    /// Distinguishes this process from others with the same id.
    uid: u64,
    changes: mpsc::Sender<Change>,
    hosts: watch::Sender<Hosts>,
    advances: Advances,
    until: LeaseEnd,
    stop: CancellationToken,
    /// The shard whose jobs it triggers.
    assignment: Option<Assignment>,
    /// The last tenure.
    tenure: Tenure,
}

/// A shard of the jobs, and the task that follows it in the store.
struct Assignment {
    shard: Shard,
    following: AbortOnDropHandle<Result<(), StorageError>>,
}

/// The stored entry of a member.
struct Member {
    entry: Entry,
    address: Option<String>,
    created: i64,
    modified: i64,
}

/// Why the wait for a change of the entries ended.
enum WakeReason {
    Stopped,
    Look,
    /// The watch of entries failed.
    Unwatched(StorageError),
    /// The watch of jobs failed.
    Unfollowed(StorageError),
}

impl Membership {
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        own: SelfMember,
        changes: mpsc::Sender<Change>,
        hosts: watch::Sender<Hosts>,
        advances: Advances,
        until: LeaseEnd,
        stop: CancellationToken,
    ) -> Self {
        Self {
            backend,
            own,
            uid: rand::random(),
            changes,
            hosts,
            advances,
            until,
            stop,
            assignment: None,
            tenure: 0,
        }
    }

    /// Runs until stopped; then releases the jobs and, if the store answers, deletes its entry.
    pub(super) async fn run(mut self) {
        let mut pauses = PAUSES;
        while !self.stop.is_cancelled() {
            let begun = Instant::now();
            if let Err(error) = self.lease().await {
                tracing::warn!(
                    target: LOG,
                    "cannot join the group of schedulers, retrying: {error}"
                );
            }
            if begun.elapsed() > LEASE {
                pauses.reset();
            }
            let wait = tokio::time::sleep(pauses.pause());
            self.stop.run_until_cancelled(wait).await;
        }
    }

    /// Takes part as a member for the lifetime of one lease.
    async fn lease(&mut self) -> Result<(), StorageError> {
        let asked = Instant::now();
        let stop = self.stop.clone();
        let Some(lease) = stop.run_until_cancelled(self.backend.grant(LEASE)).await else {
            return Ok(());
        };
        let lease = lease?;
        fault::point("lease granted");
        let lost = CancellationToken::new();
        self.until.set(Some(asked + LEASE - MARGIN));
        let keeping: JoinHandle<()> = tokio::spawn(renew(
            Arc::clone(&self.backend),
            lease,
            asked + LEASE - MARGIN,
            self.until.clone(),
            lost.clone(),
        ));
        let keeping = AbortOnDropHandle::new(keeping);
        let outcome = lost.run_until_cancelled(self.member(lease)).await;
        if self.stop.is_cancelled() && !lost.is_cancelled() {
            self.release_assignment().await;
        }
        drop(keeping);
        // Before the call: the store may not answer, and other members may get the jobs before that is
        // noticed.
        self.until.set(None);
        self.abort_assignment().await;
        fault::point("before the lease is given back");
        // If this fails, the lease expires.
        let _ = self.backend.revoke(lease).await;
        fault::point("lease given back");
        outcome.unwrap_or(Ok(()))
    }

    /// Acts on changes of the entries until stopped.
    async fn member(&mut self, lease: i64) -> Result<(), StorageError> {
        let mut watch: Option<Box<dyn Watch>> = None;
        let (mut taken, mut unwatched) = (false, false);
        // An entry bound to an earlier lease would be deleted with that lease, even while this one is
        // renewed.
        let mut is_bound = false;
        loop {
            let Some((revision, members)) = self.members_retried().await? else {
                return Ok(());
            };
            if std::mem::take(&mut unwatched) {
                watch = None;
            }
            let watch = watch.get_or_insert_with(|| self.backend.watch(Range::prefix(LEADERSHIP), revision));
            let entries: Vec<Entry> = members.iter().map(|member| member.entry.clone()).collect();
            match quorum::view(&self.own.id, self.uid, &entries) {
                View::Absent => {
                    self.abort_assignment().await;
                    let uids = entries.iter().map(|entry| entry.uid);
                    let seen = GroupMembers::of(uids.chain([self.uid]));
                    is_bound |= self.write(lease, seen, None).await?;
                    continue;
                }
                View::Taken if self.own.lock.is_some() => {
                    self.abort_assignment().await;
                    is_bound |= self.take_over(lease, &members).await?;
                    continue;
                }
                View::Taken => {
                    self.abort_assignment().await;
                    if !std::mem::replace(&mut taken, true) {
                        tracing::warn!(
                            target: LOG,
                            "another scheduler has the id {:?}, or had it until it exited: waiting for its lease to \
                             expire, at most {} s after its exit",
                            self.own.id,
                            LEASE.as_secs()
                        );
                    }
                }
                View::Outdated(seen) => {
                    self.release_assignment().await;
                    let created = members.iter().find(|member| member.entry.id == self.own.id);
                    is_bound |= self
                        .write(lease, seen, created.map(|member| member.created))
                        .await?;
                    continue;
                }
                View::Disagreed | View::Agreed(_) if !is_bound => {
                    if let Some(own) = members.iter().find(|member| member.entry.id == self.own.id) {
                        is_bound |= self.write(lease, own.entry.seen, Some(own.created)).await?;
                    }
                    continue;
                }
                View::Disagreed => self.release_assignment().await,
                View::Agreed(shard) => self.take(lease, shard, &members).await,
            }
            match self.wait(&mut **watch).await {
                WakeReason::Look => {}
                WakeReason::Unwatched(error) => {
                    tracing::debug!(target: LOG, "watching the members of the group again: {error}");
                    unwatched = true;
                    tokio::time::sleep(FIRST_PAUSE).await;
                }
                WakeReason::Stopped => return Ok(()),
                // The engine has ended, so the scheduler is stopping.
                WakeReason::Unfollowed(StorageError::Closed) => {
                    self.stop.cancelled().await;
                    return Ok(());
                }
                WakeReason::Unfollowed(error) => {
                    tracing::warn!(target: LOG, "reading the stored jobs again: {error}");
                    self.release_assignment().await;
                    tokio::time::sleep(FIRST_PAUSE).await;
                }
            }
        }
    }

    /// Overwrites the entry of an earlier process with this id, whose lease may not have expired yet.
    async fn take_over(&self, lease: i64, members: &[Member]) -> Result<bool, StorageError> {
        let left = members.iter().find(|member| member.entry.id == self.own.id);
        let others = members.iter().filter(|member| member.entry.id != self.own.id);
        let uids = others.map(|member| member.entry.uid);
        let seen = GroupMembers::of(uids.chain([self.uid]));
        tracing::info!(target: LOG, "taking over the group entry of the previous process");
        self.write(lease, seen, left.map(|left| left.created)).await
    }

    async fn wait(&mut self, watch: &mut dyn Watch) -> WakeReason {
        let Self { assignment, stop, .. } = self;
        let following = async {
            match assignment {
                Some(assignment) => match (&mut assignment.following).await {
                    Ok(Err(error)) => error,
                    Ok(Ok(())) => StorageError::Closed,
                    Err(ended) => StorageError::Failed(ended.to_string()),
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => WakeReason::Stopped,
            error = following => WakeReason::Unfollowed(error),
            // Any event means that the entries must be read again.
            event = watch.next() => event.map_or_else(WakeReason::Unwatched, |_| WakeReason::Look),
            () = tokio::time::sleep(CHECK_INTERVAL) => WakeReason::Look,
        }
    }

    /// Like [`Membership::members`], with retries for the lifetime of a lease: a lost response is no reason
    /// to give up a shard whose lease is renewed. After that the other members, which wait for this one's
    /// entry, continue without it. `None` if stopped.
    async fn members_retried(&self) -> Result<Option<(i64, Vec<Member>)>, StorageError> {
        let begun = Instant::now();
        let mut pauses = PAUSES;
        loop {
            match self.members().await {
                Err(error) if error.is_passing() && begun.elapsed() < LEASE => {
                    let pause = pauses.pause();
                    if pause == FIRST_PAUSE {
                        tracing::warn!(
                            target: LOG,
                            "cannot read the entries of the group of schedulers, retrying; this scheduler keeps its \
                             jobs while its lease lasts: {error}"
                        );
                    }
                    let wait = tokio::time::sleep(pause);
                    if self.stop.run_until_cancelled(wait).await.is_none() {
                        return Ok(None);
                    }
                }
                read => return read.map(Some),
            }
        }
    }

    /// All entries and their revision.
    async fn members(&self) -> Result<(i64, Vec<Member>), StorageError> {
        let mut scan = self.backend.scan(Range::prefix(LEADERSHIP), None).await?;
        let mut members = Vec::new();
        while let Some(chunk) = scan.chunks.recv().await {
            members.extend(chunk?.iter().filter_map(Member::read));
        }
        Ok((scan.revision, members))
    }

    /// Writes this scheduler's entry: creates it, or replaces the one created at this revision. `false` if
    /// another process wrote in between, which the next check detects.
    async fn write(
        &self,
        lease: i64,
        seen: GroupMembers,
        created: Option<i64>,
    ) -> Result<bool, StorageError> {
        let key = [LEADERSHIP, &self.own.id].concat().into_bytes();
        let host = Host {
            address: self.own.address.clone(),
        };
        let entry = Leadership {
            total: seen.total,
            uids: seen.uids,
            uid: self.uid,
            replica_data: Some(Any {
                type_url: HOST_TYPE.to_owned(),
                value: host.encode_to_vec(),
            }),
        };
        let condition = match created {
            Some(created) => Condition::Created(key.clone(), created),
            None => Condition::Modified(key.clone(), 0),
        };
        let put = Write::Put {
            key,
            value: entry.encode_to_vec(),
            lease: Some(lease),
        };
        let is_written = self.backend.commit(&[condition], &[put]).await?;
        fault::point("entry written");
        Ok(is_written)
    }

    /// Starts to trigger the jobs of a shard.
    async fn take(&mut self, lease: i64, shard: Shard, members: &[Member]) {
        let current = self.assignment.as_ref().map(|assignment| &assignment.shard);
        let is_new_group = current != Some(&shard);
        if is_new_group {
            self.release_assignment().await;
        }
        // Before the jobs: their limits depend on the group.
        self.announce(members, is_new_group);
        if is_new_group {
            let own = members.iter().find(|member| member.entry.id == self.own.id);
            let key = [LEADERSHIP, &self.own.id].concat().into_bytes();
            self.tenure += 1;
            self.advances.fence(own.map(|own| Fence {
                tenure: self.tenure,
                key,
                lease,
                created: own.created,
                modified: own.modified,
            }));
            tracing::info!(
                target: LOG,
                "member of a group of {} schedulers: {}",
                members.len(),
                members.iter().map(|member| member.entry.id.as_str()).collect::<Vec<_>>().join(", ")
            );
            fault::point("place taken");
            let following = follow(
                Arc::clone(&self.backend),
                shard,
                self.tenure,
                self.changes.clone(),
            );
            self.assignment = Some(Assignment {
                shard,
                following: AbortOnDropHandle::new(tokio::spawn(following)),
            });
        }
    }

    /// Announces the addresses of the group to sidecars.
    fn announce(&self, members: &[Member], is_new_group: bool) {
        let addresses: Hosts = members
            .iter()
            .filter_map(|member| member.address.clone())
            .collect();
        // Also announces a member that returned at its old address: Dapr's sidecars end all streams when one
        // breaks, and reopen them only after an announcement.
        self.hosts.send_if_modified(|hosts| {
            let other = *hosts != addresses;
            *hosts = addresses;
            other || is_new_group
        });
    }

    /// Releases the jobs: no new triggers are sent, and answers that arrive soon are stored.
    async fn release_assignment(&mut self) {
        let Some(assignment) = self.assignment.take() else {
            return;
        };
        drop(assignment);
        fault::point("jobs released");
        let (done, drained) = oneshot::channel();
        if self.changes.send(Change::Pause(done)).await.is_ok()
            && timeout(DRAIN_TIMEOUT, drained).await.is_err()
        {
            tracing::info!(
                target: LOG,
                "apps did not answer in time: the next owner triggers the unanswered jobs again"
            );
        }
        fault::point("answers awaited");
        // A missing engine means that the process is shutting down.
        let _ = self.changes.send(Change::Reset(self.tenure)).await;
        self.advances.flush().await;
        // Later answers are not stored, and the entry is not rewritten for them.
        self.advances.fence(None);
        fault::point("answers stored");
    }

    /// Drops the jobs at once, because other members own them or soon may.
    async fn abort_assignment(&mut self) {
        self.advances.fence(None);
        if self.assignment.take().is_some() {
            tracing::warn!(target: LOG, "no longer a member of the group of schedulers: triggering no jobs");
        }
        // A missing engine means that the process is shutting down.
        let _ = self.changes.send(Change::Reset(self.tenure)).await;
    }
}

impl Member {
    /// `None` if the pair is not a valid entry.
    fn read(pair: &Pair) -> Option<Self> {
        let id = std::str::from_utf8(pair.key.strip_prefix(LEADERSHIP.as_bytes())?).ok()?;
        let entry = Leadership::decode(pair.value.as_slice())
            .inspect_err(|error| {
                tracing::error!(target: LOG, "cannot decode the group entry of the scheduler {id:?}: {error}");
            })
            .ok()?;
        let host = entry
            .replica_data
            .and_then(|host| Host::decode(host.value.as_slice()).ok());
        Some(Self {
            entry: Entry {
                id: id.to_owned(),
                uid: entry.uid,
                seen: GroupMembers {
                    total: entry.total,
                    uids: entry.uids,
                },
            },
            address: host
                .map(|host| host.address)
                .filter(|address| !address.is_empty()),
            created: pair.created,
            modified: pair.modified,
        })
    }
}

/// Deadline after which the lease of this scheduler may have expired; `None` without a lease. The scheduler
/// triggers nothing past it, even if the renewal task has not noticed, as after the process was suspended.
#[derive(Debug, Clone, Default)]
pub(super) struct LeaseEnd(Arc<Mutex<Option<Instant>>>);

impl LeaseEnd {
    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Extends the deadline unless it has passed.
    fn extend(&self, until: Instant) -> bool {
        let mut end = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_in_time = end.is_some_and(|end| Instant::now() < end);
        if is_in_time {
            *end = Some(until);
        }
        is_in_time
    }

    pub(super) fn has_come(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_none_or(|until| until <= Instant::now())
    }
}

/// Renews a lease that the store keeps until `until` at least; returns when it is lost or may be.
async fn renew(
    backend: Arc<dyn Backend>,
    lease: i64,
    mut until: Instant,
    end: LeaseEnd,
    lost: CancellationToken,
) {
    let _told = lost.drop_guard();
    let mut wait = RENEW_INTERVAL;
    loop {
        tokio::time::sleep(wait).await;
        let asked = Instant::now();
        match tokio::time::timeout_at(until, backend.keep(lease)).await {
            Ok(Ok(true)) => {
                until = asked + LEASE - MARGIN;
                if !end.extend(until) {
                    // Its jobs must be read again.
                    tracing::warn!(target: LOG, "the lease of this scheduler was renewed too late");
                    return;
                }
                wait = RENEW_INTERVAL;
            }
            Ok(Ok(false)) => {
                tracing::warn!(target: LOG, "the lease of this scheduler has expired");
                return;
            }
            Ok(Err(error)) if Instant::now() + RENEW_RETRY < until => {
                tracing::warn!(target: LOG, "cannot renew the lease of this scheduler: {error}");
                wait = RENEW_RETRY;
            }
            Ok(Err(_)) | Err(_) => {
                tracing::warn!(target: LOG, "cannot renew the lease of this scheduler in time");
                return;
            }
        }
    }
}
