use std::{collections::HashSet, pin::Pin, sync::Arc, time::Duration};

use ::redis::{Cmd, RedisError, Value, cmd};
use futures::FutureExt;
use outrigger_component::{
    Error, Result,
    pubsub::{Feed, Settlement},
};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until};

use super::{
    BrokerInner,
    entry::{self, Entry, Pending},
};
use crate::link::{Link, Repeat};

/// Maximum wait of a blocking read; draining takes as long.
const BLOCK: Duration = Duration::from_secs(1);
/// Poll interval in a cluster, whose shared connection must not block.
const POLL: Duration = Duration::from_millis(100);
/// Delay after a failed command.
const PAUSE: Duration = Duration::from_secs(1);
/// Idle time before claiming entries of a vanished consumer, without `processingTimeout`.
const CLAIM_AFTER: Duration = Duration::from_secs(60);
/// Start of the pending entries list.
const FIRST: &str = "-";
/// Minimum interval of periodic tasks.
const MIN_PERIOD: Duration = Duration::from_millis(1);
/// Maximum steps per scan of pending entries.
const MAX_STEPS: usize = 16;
/// Entries per command.
const BATCH: usize = 100;

type Reading = Pin<Box<dyn Future<Output = Result<Vec<Entry>>> + Send>>;

/// A member of a consumer group.
pub(super) struct Consumer {
    shared: Arc<BrokerInner>,
    /// Connection for blocking reads; `None` in a cluster.
    dedicated: Option<Arc<Link>>,
    topic: Arc<str>,
}

/// Entries not settled on the server, by state.
#[derive(Default)]
struct Unsettled {
    acknowledged: Vec<String>,
    returned: Vec<String>,
}

impl Unsettled {
    fn is_empty(&self) -> bool {
        self.acknowledged.is_empty() && self.returned.is_empty()
    }

    fn extend(&mut self, settled: Vec<(String, Settlement)>) {
        for (id, settlement) in settled {
            match settlement {
                Settlement::Acknowledge => self.acknowledged.push(id),
                Settlement::Reject | Settlement::Release => self.returned.push(id),
            }
        }
    }
}

fn timer(every: Duration) -> Interval {
    let mut timer = interval(every.max(MIN_PERIOD));
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn has_code(error: &RedisError, code: &str) -> bool {
    error.code() == Some(code)
}

impl Consumer {
    /// Creates the group if needed; it starts at the oldest entry.
    pub(super) async fn join(shared: Arc<BrokerInner>, topic: &str) -> Result<Self> {
        let dedicated = shared.link.dedicated().map(Arc::new);
        let consumer = Self {
            shared,
            dedicated,
            topic: topic.into(),
        };
        consumer.create().await?;
        Ok(consumer)
    }

    async fn create(&self) -> Result<()> {
        let mut create = cmd("XGROUP");
        create
            .arg("CREATE")
            .arg(&*self.topic)
            .arg(&self.shared.options.group);
        create.arg("0").arg("MKSTREAM");
        match self.shared.link.attempt(&create, Repeat::Yes).await? {
            Err(error) if !has_code(&error, "BUSYGROUP") => Err(self.shared.link.failure(error)),
            _ => Ok(()),
        }
    }

    pub(super) async fn run(self, mut feed: Feed<String>) -> Result<()> {
        let (drain, options) = (feed.drain_token(), &self.shared.options);
        let (every, timeout) = (options.scan_interval(), self.timeout());
        // Entries abandoned just before are idle after the timeout.
        let mut look = Some(Instant::now() + every.unwrap_or(timeout));
        // Time of the next scan for returned messages, if there is no periodic scan.
        let mut again: Option<Instant> = None;
        let mut touch = timer(timeout / 3);
        let mut reading: Option<Reading> = None;
        let mut owed = Unsettled::default();
        // Whether a scan of pending entries is due, and its position.
        let mut due = true;
        let mut from = FIRST.to_owned();
        loop {
            if every.is_none() && !owed.returned.is_empty() {
                let pause = options.redeliver_interval.unwrap_or(PAUSE);
                again.get_or_insert_with(|| Instant::now() + pause);
            }
            if !owed.is_empty()
                && let Err(error) = self.settle(&mut owed).await
            {
                self.failed("messages are not settled yet", &error);
                tokio::select! {
                    () = self.shared.closed.cancelled() => return self.leave(feed, reading, owed).await,
                    () = sleep(PAUSE) => continue,
                }
            }
            if feed.draining() && reading.is_none() && feed.is_settled() && owed.is_empty() {
                return Ok(());
            }
            // Only between reads: together they would exceed the capacity.
            if reading.is_none() && due && feed.free_capacity() > 0 {
                let claimed = self.claim_idle(&mut feed, &mut from).await;
                // Without a periodic scan, continue until the end of the list.
                due = every.is_none() && matches!(claimed, Ok(false));
                if let Err(error) = claimed {
                    self.failed("pending messages are not checked", &error);
                    if every.is_none() {
                        look = Some(Instant::now() + timeout);
                    }
                }
            }
            if reading.is_none() && !due && feed.free_capacity() > 0 {
                reading = Some(self.read(feed.free_capacity().min(options.queue_depth)));
            }
            tokio::select! {
                () = self.shared.closed.cancelled() => return self.leave(feed, reading, owed).await,
                () = drain.cancelled(), if !feed.draining() => {}
                settled = feed.settled() => owed.extend(settled),
                read = next(&mut reading) => {
                    reading = None;
                    if every.is_none() && read.is_err() {
                        // The command may have been executed and its entries abandoned.
                        look = Some(Instant::now() + timeout);
                    }
                    self.take(read, &mut feed, &mut owed).await;
                }
                () = std::future::ready(()), if reading.is_none() && due && feed.free_capacity() > 0 => {}
                () = at(look), if !due => {
                    due = true;
                    look = every.map(|every| Instant::now() + every);
                }
                () = at(again), if !due => {
                    due = true;
                    again = None;
                }
                _ = touch.tick() => self.touch(&feed).await,
            }
        }
    }

    /// Idle time before an entry is claimed.
    fn timeout(&self) -> Duration {
        self.shared.options.processing_timeout.unwrap_or(CLAIM_AFTER)
    }

    /// Starts a read that must not be cancelled: its entries become pending with this consumer only.
    fn read(&self, count: usize) -> Reading {
        let mut read = cmd("XREADGROUP");
        let group = &self.shared.options.group;
        read.arg("GROUP").arg(group).arg(group).arg("COUNT").arg(count);
        let wait = self
            .shared
            .link
            .settings
            .read_timeout
            .map_or(BLOCK, |limit| limit / 2);
        if self.dedicated.is_some() {
            read.arg("BLOCK")
                .arg(wait.min(BLOCK).as_millis().max(1).to_string());
        }
        read.arg("STREAMS").arg(&*self.topic).arg(">");
        let (dedicated, shared, topic) = (
            self.dedicated.clone(),
            Arc::clone(&self.shared),
            Arc::clone(&self.topic),
        );
        let closed = shared.closed.clone();
        async move {
            let link = dedicated.as_deref().unwrap_or(&shared.link);
            match link.attempt_parts(&read, Repeat::No).await? {
                Ok(value) => {
                    let entries = entry::read(value);
                    if entries.is_empty() && dedicated.is_none() {
                        sleep(POLL).await;
                    }
                    Ok(entries)
                }
                Err(error) if has_code(&error, "NOGROUP") => {
                    let consumer = Consumer {
                        shared,
                        dedicated,
                        topic,
                    };
                    consumer.create().await.map(|()| Vec::new())
                }
                Err(error) => {
                    let error = link.failure(error);
                    tokio::select! {
                        () = closed.cancelled() => {}
                        () = sleep(PAUSE) => {}
                    }
                    Err(error)
                }
            }
        }
        .boxed()
    }

    async fn take(&self, read: Result<Vec<Entry>>, feed: &mut Feed<String>, owed: &mut Unsettled) {
        match read {
            Ok(entries) => {
                for entry in entries {
                    // Draining began during the read.
                    if feed.draining() {
                        owed.returned.push(entry.id);
                        continue;
                    }
                    let id = entry.id.clone();
                    match self.whole(entry).await {
                        Ok(Some(entry)) => feed.offer(id, entry.message(&self.topic, 0)),
                        Ok(None) => owed.acknowledged.push(id),
                        Err(error) => {
                            self.failed("a message is not read", &error);
                            owed.returned.push(id);
                        }
                    }
                }
            }
            Err(error) => self.failed("no messages are read", &error),
        }
    }

    async fn settle(&self, owed: &mut Unsettled) -> Result<()> {
        let group = &self.shared.options.group;
        while !owed.acknowledged.is_empty() {
            let batch = owed.acknowledged.len().min(BATCH);
            let mut acknowledge = cmd("XACK");
            acknowledge
                .arg(&*self.topic)
                .arg(group)
                .arg(&owed.acknowledged[..batch]);
            self.run_in_group(&acknowledge).await?;
            owed.acknowledged.drain(..batch);
        }
        while !owed.returned.is_empty() {
            let batch = owed.returned.len().min(BATCH);
            // Marked as idle, so that the next scan of any consumer claims them.
            self.run_in_group(&self.set_idle(&owed.returned[..batch], self.timeout()))
                .await?;
            owed.returned.drain(..batch);
        }
        Ok(())
    }

    /// Sets the idle time of entries.
    fn set_idle(&self, ids: &[String], idle: Duration) -> Cmd {
        let group = &self.shared.options.group;
        let mut claim = cmd("XCLAIM");
        claim.arg(&*self.topic).arg(group).arg(group).arg("0").arg(ids);
        claim.arg("IDLE").arg(idle.as_millis().to_string()).arg("JUSTID");
        claim
    }

    /// Runs a command about entries; if the group is gone, so are they.
    async fn run_in_group(&self, command: &Cmd) -> Result<Value> {
        match self.shared.link.attempt_parts(command, Repeat::Yes).await? {
            Ok(value) => Ok(value),
            Err(error) if has_code(&error, "NOGROUP") => Ok(Value::Nil),
            Err(error) => Err(self.shared.link.failure(error)),
        }
    }

    /// Resets the idle time of this sidecar's messages.
    async fn touch(&self, feed: &Feed<String>) {
        let ids: Vec<String> = feed.unsettled().cloned().collect();
        for batch in ids.chunks(BATCH) {
            if let Err(error) = self.run_in_group(&self.set_idle(batch, Duration::ZERO)).await {
                return self.failed("messages that take long may be delivered again", &error);
            }
        }
    }

    /// Claims idle pending entries, continuing where the last scan ended. Returns whether it reached the end,
    /// after which the next scan starts over.
    async fn claim_idle(&self, feed: &mut Feed<String>, from: &mut String) -> Result<bool> {
        let own: HashSet<String> = feed.unsettled().cloned().collect();
        let (group, depth) = (&self.shared.options.group, self.shared.options.queue_depth);
        let least = u64::try_from(self.timeout().as_millis()).unwrap_or(u64::MAX);
        for _ in 0..MAX_STEPS {
            let mut ask = cmd("XPENDING");
            ask.arg(&*self.topic)
                .arg(group)
                .arg(from.as_str())
                .arg("+")
                .arg(depth);
            let found = entry::pending(self.run_in_group(&ask).await?);
            let ends = found.len() < depth;
            let last = found.last().map(|last| last.id.clone());
            let mut idle: Vec<Pending> = found
                .into_iter()
                .filter(|pending| pending.idle >= least && !own.contains(&pending.id))
                .collect();
            let room = feed.free_capacity();
            let fits = idle.len() <= room;
            idle.truncate(room);
            self.claim_these(feed, &idle, least).await?;
            if fits && ends {
                FIRST.clone_into(from);
                return Ok(true);
            }
            // The others of this step wait for the next scan.
            let seen = match fits {
                true => last,
                false => idle.pop().map(|pending| pending.id),
            };
            if let Some(seen) = seen {
                *from = format!("({seen}");
            }
            if feed.free_capacity() == 0 {
                return Ok(false);
            }
        }
        Ok(false)
    }

    async fn claim_these(&self, feed: &mut Feed<String>, idle: &[Pending], least: u64) -> Result<()> {
        if idle.is_empty() {
            return Ok(());
        }
        let group = &self.shared.options.group;
        let mut claim = cmd("XCLAIM");
        claim.arg(&*self.topic).arg(group).arg(group).arg(least);
        for pending in idle {
            claim.arg(&pending.id);
        }
        let claimed = self.shared.link.attempt_parts(&claim, Repeat::No).await?;
        let claimed = entry::entries(claimed.map_err(|error| self.shared.link.failure(error))?);
        let came: HashSet<String> = claimed.iter().map(|entry| entry.id.clone()).collect();
        for entry in claimed {
            let before = idle.iter().find(|pending| pending.id == entry.id);
            let before = before.map_or(1, |pending| pending.deliveries);
            let id = entry.id.clone();
            match self.whole(entry).await? {
                Some(entry) => feed.offer(id, entry.message(&self.topic, before)),
                None => self.acknowledge(&id).await?,
            }
        }
        for pending in idle.iter().filter(|pending| !came.contains(&pending.id)) {
            self.forget_removed(&pending.id).await?;
        }
        Ok(())
    }

    /// Acknowledges a pending entry that could not be claimed, if it was deleted from the stream. Otherwise
    /// another consumer claimed it.
    async fn forget_removed(&self, id: &str) -> Result<()> {
        let mut find = cmd("XRANGE");
        find.arg(&*self.topic).arg(id).arg(id);
        if !entry::entries(self.run_in_group(&find).await?).is_empty() {
            return Ok(());
        }
        tracing::warn!(
            target: "dapr.contrib",
            "component {}: topic {}: the pending message {id} was removed from its stream, and is not delivered",
            self.shared.component,
            self.topic
        );
        self.acknowledge(id).await
    }

    /// Reads an entry alone that was cut in a larger answer. `None` if it is still too large, or gone.
    async fn whole(&self, entry: Entry) -> Result<Option<Entry>> {
        if !entry.cut {
            return Ok(Some(entry));
        }
        let mut find = cmd("XRANGE");
        find.arg(&*self.topic).arg(&entry.id).arg(&entry.id);
        let found = self.shared.link.attempt_parts(&find, Repeat::Yes).await?;
        let found = entry::entries(found.map_err(|error| self.shared.link.failure(error))?);
        let found = found.into_iter().next().filter(|found| !found.cut);
        if found.is_none() {
            tracing::error!(
                target: "dapr.contrib",
                "component {}: topic {}: the message {} exceeds the limit of {} bytes and is not delivered; \
                 it stays in its stream: raise --max-body-size, or publish less at once",
                self.shared.component,
                self.topic,
                entry.id,
                self.shared.link.settings.max_answer
            );
        }
        Ok(found)
    }

    async fn acknowledge(&self, id: &str) -> Result<()> {
        let mut acknowledge = cmd("XACK");
        acknowledge
            .arg(&*self.topic)
            .arg(&self.shared.options.group)
            .arg(id);
        self.run_in_group(&acknowledge).await.map(drop)
    }

    /// Closes the consumer: unsettled entries can be claimed at once.
    async fn leave(&self, feed: Feed<String>, reading: Option<Reading>, mut owed: Unsettled) -> Result<()> {
        owed.returned.extend(feed.unsettled().cloned());
        // Entries of a read in progress are pending too.
        if let Some(reading) = reading
            && let Ok(entries) = reading.await
        {
            owed.returned.extend(entries.into_iter().map(|entry| entry.id));
        }
        self.settle(&mut owed).await
    }

    fn failed(&self, what: &str, error: &Error) {
        tracing::warn!(
            target: "dapr.contrib",
            "component {}: topic {}: {what}: {error}; retrying", self.shared.component, self.topic
        );
    }
}

async fn next(reading: &mut Option<Reading>) -> Result<Vec<Entry>> {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}
