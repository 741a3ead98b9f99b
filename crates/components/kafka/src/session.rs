//! One membership in a consumer group, from joining to leaving.
//!
//! The client's `poll` returns records and maintains the membership; it is never cancelled. If there is no
//! capacity, partitions are paused.

mod hand_out;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    future::Future,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use krafka::{CloseOptions, ConsumerRecord, KrafkaError, consumer::Consumer};
use outrigger_component::{
    Error, Kind, Result,
    pubsub::{Feed, Settlement},
};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until, timeout},
};
use tokio_util::task::TaskTracker;

use super::{
    BrokerInner, CALL_TIMEOUT, LOG,
    offsets::{Offsets, Position, TakenRecord},
    positions::{Committing, begin, committed, committing, count, is_permanent, known, undecodable},
    rebalance::{Change, Listener, PartitionChange},
    settings::Settings,
    values::{Reader, Values},
};

/// A record held by the engine or waiting for redelivery.
pub(super) type Tracked = Arc<TakenRecord<ConsumerRecord>>;

type Polling = Pin<Box<dyn Future<Output = krafka::Result<Vec<ConsumerRecord>>> + Send>>;

/// How long a poll waits for records before it maintains the membership.
const POLL_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a poll waits while all partitions are paused.
const PAUSED_POLL_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum records per poll.
const MAX_POLL_RECORDS: usize = 500;
/// Maximum uncompressed size of a batch in bytes; the client decompresses it as a whole.
const MAX_UNPACKED: usize = 32 * 1024 * 1024;
/// Pause before an undecodable batch is read again.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(10);
/// Timeout of joining the group: its other members must rejoin.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// How long settlements are collected before a commit.
const COMMIT_DELAY: Duration = Duration::from_millis(100);
/// How long a rebalance waits for records in progress.
const REBALANCE_GRACE: Duration = Duration::from_secs(3);

pub(super) struct Session {
    shared: Arc<BrokerInner>,
    topic: Arc<str>,
    consumer: Leaving,
    /// Paused partitions were resumed.
    resumed: Arc<Notify>,
    changes: mpsc::Receiver<Change>,
    polling: Polling,
    committing: Option<Committing>,
    /// Time of the next commit.
    commit_at: Option<Instant>,
    /// Polled records without capacity.
    ahead: VecDeque<ConsumerRecord>,
    offsets: Offsets<ConsumerRecord>,
    values: Reader,
    paused: BTreeSet<i32>,
    /// Blocked partitions, with the time of the next read.
    stuck: BTreeMap<i32, Instant>,
    /// Number of the topic's partitions when the session joined.
    partitions: usize,
    /// Number of the topic's partitions when the subscription began.
    first_partitions: usize,
    /// Consecutive client errors.
    failures: u32,
}

/// Leaves the group even if the owner is dropped; closing the component waits for that.
struct Leaving {
    client: Arc<Consumer>,
    members: TaskTracker,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !self.client.is_closed()
        {
            let client = Arc::clone(&self.client);
            let leaving = async move {
                let options = CloseOptions::new().timeout(CALL_TIMEOUT);
                // If this fails, the brokers notice after the session timeout.
                let _left = Box::pin(client.close_with(options)).await;
            };
            self.members.spawn_on(leaving, &runtime);
        }
    }
}

/// A consumer that has not joined yet; it sends rebalance changes to `changes`.
async fn consumer(settings: &Settings, in_flight: usize, changes: mpsc::Sender<Change>) -> Result<Consumer> {
    let kafka = settings.connect().await?;
    let wanted = &settings.consumer;
    let batch = i32::try_from(in_flight.min(MAX_POLL_RECORDS)).unwrap_or(i32::MAX);
    let building = kafka
        .consumer(&settings.group)
        .auto_offset_reset(wanted.initial_offset)
        .isolation_level(wanted.isolation)
        .enable_auto_commit(false)
        .partition_assignment_strategy(wanted.strategy)
        .heartbeat_interval(wanted.heartbeat)
        .session_timeout(wanted.session)
        .fetch_min_bytes(wanted.fetch_min)
        .max_partition_fetch_bytes(wanted.fetch_partition)
        .fetch_max_bytes(wanted.fetch_most)
        .max_poll_records(batch)
        .max_buffered_records(wanted.buffer)
        .max_decompressed_size(max_unpacked(settings))
        .idle_poll_backoff(PAUSED_POLL_TIMEOUT)
        .metrics_push(false)
        .rebalance_listener(Listener(changes))
        .build();
    building.await.map_err(|error| settings.failure(&error))
}

/// Any message that can be published must be readable within a batch.
fn max_unpacked(settings: &Settings) -> usize {
    MAX_UNPACKED.max(settings.max_message.saturating_mul(2))
}

/// `resumed` signals that paused partitions were resumed.
fn poll(consumer: &Arc<Consumer>, resumed: &Arc<Notify>) -> Polling {
    let (consumer, resumed) = (Arc::clone(consumer), Arc::clone(resumed));
    Box::pin(async move {
        let began = Instant::now();
        let polled = consumer.poll(POLL_TIMEOUT).await;
        // If its buffer is full of records of paused partitions, the client does not wait.
        if polled.as_ref().is_ok_and(Vec::is_empty) {
            tokio::select! {
                () = sleep_until(began + PAUSED_POLL_TIMEOUT) => {}
                () = resumed.notified() => {}
            }
        }
        polled
    })
}

/// Polls after a delay; the caller continues other work until then.
fn poll_after(pause: Duration, consumer: &Arc<Consumer>, resumed: &Arc<Notify>) -> Polling {
    let polling = poll(consumer, resumed);
    Box::pin(async move {
        sleep(pause).await;
        polling.await
    })
}

impl Session {
    /// `before`: number of the topic's partitions when the subscription began, if it did.
    pub(super) async fn open(
        shared: &Arc<BrokerInner>,
        topic: &Arc<str>,
        in_flight: usize,
        values: &Values,
        before: Option<usize>,
    ) -> Result<Self> {
        let settings = &shared.settings;
        let (sender, changes) = mpsc::channel(1);
        let consumer = Leaving {
            client: Arc::new(consumer(settings, in_flight, sender).await?),
            members: shared.members.clone(),
        };
        let partitions = known(&shared.settings, &consumer.client, topic).await?;
        let subscribing = Box::pin(consumer.client.subscribe([topic.as_ref()])).await;
        subscribing.map_err(|error| settings.failure_of(topic, &error))?;
        let resumed = Arc::default();
        let mut session = Self {
            shared: Arc::clone(shared),
            topic: Arc::clone(topic),
            polling: poll(&consumer.client, &resumed),
            consumer,
            resumed,
            changes,
            committing: None,
            commit_at: None,
            ahead: VecDeque::new(),
            offsets: Offsets::new(settings.consumer.retry.clone(), settings.consumer.returns_keys),
            values: Reader::new(values),
            paused: BTreeSet::new(),
            stuck: BTreeMap::new(),
            partitions,
            first_partitions: before.unwrap_or(partitions),
            failures: 0,
        };
        match timeout(JOIN_TIMEOUT, session.join()).await {
            Ok(joined) => joined?,
            Err(_) => {
                let text = format!(
                    "the consumer group {:?} cannot be joined within {JOIN_TIMEOUT:?}",
                    settings.group
                );
                return Err(Error::new(Kind::Timeout, text));
            }
        }
        Ok(session)
    }

    /// Waits for the group to assign partitions to this member.
    async fn join(&mut self) -> Result<()> {
        loop {
            tokio::select! {
                Some(change) = self.changes.recv() => {
                    let assigned = change.what == PartitionChange::Assigned;
                    self.changed(change, None).await;
                    if assigned {
                        return Ok(());
                    }
                }
                polled = &mut self.polling => self.polled(polled)?,
            }
        }
    }

    /// Number of the topic's partitions when the subscription began.
    pub(super) fn first_partitions(&self) -> usize {
        self.first_partitions
    }

    /// Partitions of this member.
    pub(super) fn assigned(&self) -> Vec<u32> {
        self.offsets
            .assigned()
            .filter_map(|partition| u32::try_from(partition).ok())
            .collect()
    }

    /// Takes records until draining ends. After an error, the caller must rejoin the group.
    pub(super) async fn run(&mut self, feed: &mut Feed<Tracked>) -> Result<()> {
        let (drain, closed) = (feed.drain_token(), self.shared.closed.clone());
        let refresh = self.shared.settings.refresh;
        let mut check_partitions = interval_at(Instant::now() + refresh, refresh);
        check_partitions.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut draining = false;
        loop {
            self.offer(feed);
            if draining && feed.is_settled() {
                return Ok(());
            }
            self.pause(draining).await;
            let (due, commit_at) = (self.offsets.due(), self.commit_at);
            tokio::select! {
                () = closed.cancelled() => {
                    let settled = feed.settled().now_or_never().unwrap_or_default();
                    self.settle(settled, true);
                    return Ok(());
                }
                () = drain.cancelled(), if !draining => {
                    draining = true;
                    self.ahead.clear();
                }
                settled = feed.settled() => self.settle(settled, draining || feed.draining()),
                Some(change) = self.changes.recv() => self.changed(change, Some(feed)).await,
                polled = &mut self.polling => {
                    self.polled(polled)?;
                    if draining {
                        self.ahead.clear();
                    }
                }
                (positions, outcome) = committed(&mut self.committing) => self.committed(&positions, outcome),
                Some(answer) = self.values.answer() => self.answered(answer),
                () = sleep_until(commit_at.unwrap_or_else(Instant::now)),
                    if commit_at.is_some() && self.committing.is_none() => self.commit(),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() && feed.free_capacity() > 0 => {}
                _ = check_partitions.tick(), if !draining => self.check_partitions(feed).await?,
            }
        }
    }

    /// Commits settled records and leaves the group.
    ///
    /// # Errors
    /// A commit failed; only with `report_errors`.
    pub(super) async fn end(&mut self, report_errors: bool) -> Result<()> {
        // The client no longer waits for this member.
        self.changes.close();
        while self.changes.try_recv().is_ok() {}
        self.polling = Box::pin(std::future::pending());
        let committed = self.commit_now().await;
        let options = CloseOptions::new().timeout(CALL_TIMEOUT);
        if let Err(error) = Box::pin(self.consumer.client.close_with(options)).await {
            tracing::debug!(
                target: LOG,
                "component {}: topic {}: leaving the group: {error}",
                self.shared.component,
                self.topic
            );
        }
        match committed {
            Err(error) if report_errors => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads only from partitions that have capacity and are not blocked.
    async fn pause(&mut self, draining: bool) {
        let all = draining || !self.ahead.is_empty();
        let now = Instant::now();
        let stands = |partition: &i32| self.stuck.get(partition).is_some_and(|until| *until > now);
        let wanted: BTreeSet<i32> = self
            .offsets
            .assigned()
            .filter(|partition| all || self.offsets.is_full(*partition) || stands(partition))
            .collect();
        if wanted == self.paused {
            return;
        }
        let less: Vec<i32> = self.paused.difference(&wanted).copied().collect();
        let more: Vec<i32> = wanted.difference(&self.paused).copied().collect();
        let consumer = &self.consumer.client;
        if !less.is_empty() {
            consumer.resume(&self.topic, &less).await;
            self.resumed.notify_one();
        }
        if !more.is_empty() {
            consumer.pause(&self.topic, &more).await;
        }
        self.paused = wanted;
    }

    /// Takes the polled records and starts the next poll.
    fn polled(&mut self, polled: krafka::Result<Vec<ConsumerRecord>>) -> Result<()> {
        match polled {
            Ok(records) => {
                self.failures = 0;
                for record in &records {
                    self.stuck.remove(&record.partition);
                }
                self.ahead.extend(records);
                self.polling = poll(&self.consumer.client, &self.resumed);
            }
            Err(error) if undecodable(&error, &self.topic).is_some() => {
                self.pause_undecodable(&error);
                // Polls soon, so that other partitions continue.
                self.polling = poll_after(PAUSED_POLL_TIMEOUT, &self.consumer.client, &self.resumed);
            }
            Err(error) if is_permanent(&error) => return Err(self.shared.settings.failure(&error)),
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                if self.failures == 1 {
                    tracing::warn!(
                        target: LOG,
                        "component {}: topic {}: {}; trying again",
                        self.shared.component,
                        self.topic,
                        self.shared.settings.failure(&error)
                    );
                }
                let pause = self.shared.settings.consumer.rejoin;
                self.polling = poll_after(pause, &self.consumer.client, &self.resumed);
            }
        }
        Ok(())
    }

    fn settle(&mut self, settled: Vec<(Tracked, Settlement)>, ending: bool) {
        let now = Instant::now();
        for (taken, settlement) in settled {
            match settlement {
                Settlement::Acknowledge => self.offsets.done(&taken, now),
                // The next member of the group gets it.
                Settlement::Reject | Settlement::Release if ending => {}
                Settlement::Reject => self.returned(taken, now),
                Settlement::Release => self.offsets.behind(taken, now),
            }
        }
        self.commit_soon(now);
    }

    fn commit_soon(&mut self, now: Instant) {
        if self.commit_at.is_none() && !self.offsets.to_commit().is_empty() {
            self.commit_at = Some(now + COMMIT_DELAY);
        }
    }

    fn commit(&mut self) {
        self.commit_at = None;
        let positions = self.offsets.to_commit();
        if !positions.is_empty() {
            self.committing = Some(committing(&self.consumer.client, &self.topic, positions));
        }
    }

    fn committed(&mut self, positions: &[Position], outcome: krafka::Result<()>) {
        self.committing = None;
        match outcome {
            Ok(()) => {
                self.offsets.committed(positions);
                if !self.offsets.to_commit().is_empty() {
                    self.commit_at = Some(Instant::now() + COMMIT_DELAY);
                }
            }
            Err(error) => {
                // Expected during a rebalance; a final commit follows.
                tracing::debug!(
                    target: LOG,
                    "component {}: topic {}: positions cannot be committed: {error}",
                    self.shared.component,
                    self.topic
                );
                self.commit_at = Some(Instant::now() + COMMIT_DELAY * 5);
            }
        }
    }

    /// Commits all positions and waits for the result.
    async fn commit_now(&mut self) -> Result<()> {
        if let Some(under_way) = self.committing.take()
            && let Ok((positions, outcome)) = timeout(CALL_TIMEOUT, under_way).await
        {
            self.committed(&positions, outcome);
        }
        self.commit_at = None;
        let positions = self.offsets.to_commit();
        if positions.is_empty() {
            return Ok(());
        }
        let committing = committing(&self.consumer.client, &self.topic, positions);
        let outcome = match timeout(CALL_TIMEOUT, committing).await {
            Ok((positions, outcome)) => outcome.map(|()| self.offsets.committed(&positions)),
            Err(_) => Err(KrafkaError::timeout("committing positions")),
        };
        outcome.map_err(|error| {
            let error = self.shared.settings.failure(&error);
            tracing::warn!(
                target: LOG,
                "component {}: topic {}: {error}; the last acknowledged records will be redelivered",
                self.shared.component,
                self.topic
            );
            error
        })
    }

    async fn changed(&mut self, change: Change, feed: Option<&mut Feed<Tracked>>) {
        let Change {
            what,
            partitions,
            noted,
        } = change;
        tracing::debug!(
            target: LOG,
            "component {}: topic {}: partitions {partitions:?}: {what:?}",
            self.shared.component,
            self.topic
        );
        match what {
            PartitionChange::Assigned => self.begin(&partitions).await,
            PartitionChange::Revoked | PartitionChange::Lost => {
                self.give_up_partitions(what, &partitions, feed).await
            }
        }
        drop(noted);
    }

    /// Adds partitions. A new group commits its start here, so that it keeps its position without members.
    async fn begin(&mut self, partitions: &[i32]) {
        for partition in partitions {
            self.offsets.assign(*partition);
            self.paused.remove(partition);
        }
        let beginning = begin(
            &self.shared.settings,
            &self.consumer.client,
            &self.topic,
            partitions,
            self.first_partitions,
        );
        match timeout(CALL_TIMEOUT, Box::pin(beginning)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.begins_late(&error.to_string()),
            Err(_) => self.begins_late("no answer in time"),
        }
    }

    fn begins_late(&self, why: &str) {
        tracing::warn!(
            target: LOG,
            "component {}: topic {}: cannot commit a first offset for the group, which may miss records \
             published while it has no member: {why}",
            self.shared.component,
            self.topic
        );
    }

    /// Gives up partitions. Records in progress may finish within the grace period and are committed; queued
    /// records and retries are not.
    async fn give_up_partitions(
        &mut self,
        what: PartitionChange,
        partitions: &[i32],
        feed: Option<&mut Feed<Tracked>>,
    ) {
        let gone: BTreeSet<i32> = partitions.iter().copied().collect();
        self.ahead.retain(|record| !gone.contains(&record.partition));
        if let Some(feed) = feed {
            let is_gone = |taken: &Tracked| gone.contains(&taken.partition);
            let deadline = Instant::now() + REBALANCE_GRACE;
            if feed.unsettled().any(is_gone) {
                let named = gone.iter().filter_map(|it| u32::try_from(*it).ok()).collect();
                let _late = tokio::time::timeout_at(deadline, feed.revoked(named)).await;
            }
            let closed = self.shared.closed.clone();
            while what == PartitionChange::Revoked && feed.unsettled().any(is_gone) {
                tokio::select! {
                    settled = feed.settled() => {
                        let (theirs, ours): (Vec<_>, Vec<_>) =
                            settled.into_iter().partition(|(taken, _)| is_gone(taken));
                        self.settle(theirs, true);
                        self.settle(ours, feed.draining());
                    }
                    () = sleep_until(deadline) => break,
                    () = closed.cancelled() => break,
                }
            }
            feed.forget(is_gone);
        }
        if what == PartitionChange::Revoked {
            // If this fails, the records are redelivered.
            let _lost = self.commit_now().await;
        }
        for partition in &gone {
            self.offsets.revoke(*partition);
            self.paused.remove(partition);
            self.stuck.remove(partition);
        }
    }

    /// If the topic has more partitions, rejoins the group to distribute them.
    async fn check_partitions(&mut self, feed: &mut Feed<Tracked>) -> Result<()> {
        let Ok(Ok(found)) = timeout(CALL_TIMEOUT, count(&self.consumer.client, &self.topic)).await else {
            return Ok(());
        };
        if found > self.partitions {
            let mine: Vec<i32> = self.offsets.assigned().collect();
            self.give_up_partitions(PartitionChange::Revoked, &mine, Some(feed))
                .await;
            let text = format!("the topic has {found} partitions now");
            return Err(Error::new(Kind::Unavailable, text));
        }
        Ok(())
    }
}
