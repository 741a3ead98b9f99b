use std::{collections::HashSet, pin::Pin, sync::Arc, time::Duration};

use ::redis::{Cmd, RedisError, Value, cmd};
use futures::FutureExt;
use outrigger_component::{
    Error, Result,
    pubsub::{Feed, Settlement},
};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use super::{
    BrokerInner,
    entry::{self, Entry, Pending},
};
use crate::link::{Link, Repeat};

/// How long a read waits for entries at most: as long as draining may take longer.
const BLOCK: Duration = Duration::from_secs(1);
/// Between two reads from a cluster, whose one connection nobody may keep waiting.
const POLL: Duration = Duration::from_millis(100);
/// After a command that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Of what is done again and again.
const LEAST_PERIOD: Duration = Duration::from_millis(1);
/// Steps of one look at pending entries.
const MOST_STEPS: usize = 16;
/// Entries named in one command.
const BATCH: usize = 100;

type Reading = Pin<Box<dyn Future<Output = Result<Vec<Entry>>> + Send>>;

/// A member of a consumer group.
pub(super) struct Consumer {
    shared: Arc<BrokerInner>,
    /// For reads that wait. `None`: a cluster.
    apart: Option<Arc<Link>>,
    topic: Arc<str>,
}

/// Entries that the server does not know to be settled, by how they are.
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
                Settlement::Return | Settlement::Unattempted => self.returned.push(id),
            }
        }
    }
}

fn timer(every: Option<Duration>) -> Option<Interval> {
    let mut timer = interval(every?);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Some(timer)
}

async fn tick(timer: &mut Option<Interval>) {
    match timer {
        Some(timer) => drop(timer.tick().await),
        None => std::future::pending().await,
    }
}

fn has_code(error: &RedisError, code: &str) -> bool {
    error.code() == Some(code)
}

impl Consumer {
    /// Makes the group where there is none: it begins with the oldest entry.
    pub(super) async fn join(shared: Arc<BrokerInner>, topic: &str) -> Result<Self> {
        let apart = shared.link.apart()?.map(Arc::new);
        let consumer = Self {
            shared,
            apart,
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
        let mut look = timer(
            options
                .redeliver_interval
                .filter(|_| options.processing_timeout.is_some()),
        );
        let mut touch = timer(
            options
                .processing_timeout
                .map(|timeout| (timeout / 3).max(LEAST_PERIOD)),
        );
        let mut reading: Option<Reading> = None;
        let mut owed = Unsettled::default();
        // Whether it is time to look at pending entries.
        let mut due = false;
        loop {
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
            // Between two reads: together they would bring more than there is room for.
            if reading.is_none() && due && feed.free_capacity() > 0 {
                due = false;
                self.claim(&mut feed).await;
            }
            if reading.is_none() && feed.free_capacity() > 0 {
                reading = Some(self.read(feed.free_capacity().min(options.queue_depth)));
            }
            tokio::select! {
                () = self.shared.closed.cancelled() => return self.leave(feed, reading, owed).await,
                () = drain.cancelled(), if !feed.draining() => {}
                settled = feed.settled() => owed.extend(settled),
                read = next(&mut reading) => {
                    reading = None;
                    self.take(read, &mut feed, &mut owed).await;
                }
                () = tick(&mut look), if !due => due = true,
                () = tick(&mut touch) => self.touch(&feed).await,
            }
        }
    }

    /// Begins a read that must not be abandoned: what it brings is pending with nobody else.
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
        if self.apart.is_some() {
            read.arg("BLOCK")
                .arg(wait.min(BLOCK).as_millis().max(1).to_string());
        }
        read.arg("STREAMS").arg(&*self.topic).arg(">");
        let (apart, shared, topic) = (
            self.apart.clone(),
            Arc::clone(&self.shared),
            Arc::clone(&self.topic),
        );
        let closed = shared.closed.clone();
        async move {
            let link = apart.as_deref().unwrap_or(&shared.link);
            match link.attempt(&read, Repeat::No).await? {
                Ok(value) => {
                    let entries = entry::read(value);
                    if entries.is_empty() && apart.is_none() {
                        sleep(POLL).await;
                    }
                    Ok(entries)
                }
                Err(error) if has_code(&error, "NOGROUP") => {
                    let consumer = Consumer { shared, apart, topic };
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
                    // Draining began while the read was under way.
                    if feed.draining() {
                        owed.returned.push(entry.id);
                    } else {
                        feed.offer(entry.id.clone(), entry.message(&self.topic, 0));
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
            // As if nobody had touched them for long: whoever looks next claims them.
            if let Some(timeout) = self.shared.options.processing_timeout {
                self.run_in_group(&self.mark(&owed.returned[..batch], timeout))
                    .await?;
            }
            owed.returned.drain(..batch);
        }
        Ok(())
    }

    /// Sets how long entries were untouched.
    fn mark(&self, ids: &[String], idle: Duration) -> Cmd {
        let group = &self.shared.options.group;
        let mut claim = cmd("XCLAIM");
        claim.arg(&*self.topic).arg(group).arg(group).arg("0").arg(ids);
        claim.arg("IDLE").arg(idle.as_millis().to_string()).arg("JUSTID");
        claim
    }

    /// Runs a command about entries; where their group is gone, so are they.
    async fn run_in_group(&self, command: &Cmd) -> Result<Value> {
        match self.shared.link.attempt(command, Repeat::Yes).await? {
            Ok(value) => Ok(value),
            Err(error) if has_code(&error, "NOGROUP") => Ok(Value::Nil),
            Err(error) => Err(self.shared.link.failure(error)),
        }
    }

    /// Says that this sidecar still has its messages.
    async fn touch(&self, feed: &Feed<String>) {
        let ids: Vec<String> = feed.unsettled().cloned().collect();
        for batch in ids.chunks(BATCH) {
            if let Err(error) = self.run_in_group(&self.mark(batch, Duration::ZERO)).await {
                return self.failed("messages that take long may be delivered again", &error);
            }
        }
    }

    /// Takes pending entries that nobody has touched for long.
    async fn claim(&self, feed: &mut Feed<String>) {
        let Some(timeout) = self.shared.options.processing_timeout else {
            return;
        };
        if let Err(error) = self.claim_idle(feed, timeout).await {
            self.failed("pending messages are not checked", &error);
        }
    }

    async fn claim_idle(&self, feed: &mut Feed<String>, timeout: Duration) -> Result<()> {
        let own: HashSet<String> = feed.unsettled().cloned().collect();
        let (group, depth) = (&self.shared.options.group, self.shared.options.queue_depth);
        let least = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let mut from = "-".to_owned();
        for _ in 0..MOST_STEPS {
            let mut ask = cmd("XPENDING");
            ask.arg(&*self.topic).arg(group).arg(&from).arg("+").arg(depth);
            let found = entry::pending(self.run_in_group(&ask).await?);
            let Some(last) = found.last() else {
                return Ok(());
            };
            from = format!("({}", last.id);
            let full = found.len() == depth;
            let idle: Vec<Pending> = found
                .into_iter()
                .filter(|pending| pending.idle >= least && !own.contains(&pending.id))
                .take(feed.free_capacity())
                .collect();
            self.claim_these(feed, &idle, least).await?;
            if !full || feed.free_capacity() == 0 {
                return Ok(());
            }
        }
        Ok(())
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
        let claimed = self.shared.link.attempt(&claim, Repeat::No).await?;
        for entry in entry::entries(claimed.map_err(|error| self.shared.link.failure(error))?) {
            let before = idle.iter().find(|pending| pending.id == entry.id);
            let before = before.map_or(1, |pending| pending.deliveries);
            feed.offer(entry.id.clone(), entry.message(&self.topic, before));
        }
        Ok(())
    }

    /// The component is being closed: what it has not settled can be claimed at once.
    async fn leave(&self, feed: Feed<String>, reading: Option<Reading>, mut owed: Unsettled) -> Result<()> {
        owed.returned.extend(feed.unsettled().cloned());
        // What a read brings that is under way is pending too.
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
            "component {}: topic {}: {what}: {error}; it is tried again", self.shared.component, self.topic
        );
    }
}

async fn next(reading: &mut Option<Reading>) -> Result<Vec<Entry>> {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}
