use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use outrigger_backoff::Backoff;
use outrigger_component::{
    Error, Kind, Result,
    pubsub::{Feed, Message, OrderingKey, Settlement},
};
use tokio::time::{self, MissedTickBehavior, interval, interval_at, sleep};

use super::{
    BrokerInner,
    tables::{LeaseBudget, Leased, Member},
};
use crate::pool::failure;

/// Maximum messages leased per transaction.
const MAX_LEASED: usize = 256;
/// Attempts to store a settlement while the component closes.
const CLOSE_ATTEMPTS: u32 = 3;
/// Maximum delay after a database failure.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Readings of two clocks.
struct Moment {
    /// The monotonic clock.
    at: Instant,
    shown: SystemTime,
}

impl Moment {
    fn now() -> Self {
        Self {
            at: Instant::now(),
            shown: SystemTime::now(),
        }
    }

    /// How far the wall clock was set ahead since `before`.
    fn gained_since(&self, before: &Self) -> Duration {
        let passed = self.shown.duration_since(before.shown).unwrap_or_default();
        passed.saturating_sub(self.at.duration_since(before.at))
    }
}

/// A member of a consumer group.
pub(super) struct Consumer {
    shared: Arc<BrokerInner>,
    member: Member,
    topic: Arc<str>,
}

impl Consumer {
    pub(super) async fn join(shared: Arc<BrokerInner>, topic: &str) -> Result<Self> {
        let (tables, name, joined) = (
            shared.tables.clone(),
            shared.options.group.clone(),
            topic.to_owned(),
        );
        let joining = shared
            .pool
            .write(move |connection| tables.join(connection, &joined, &name).map_err(failure));
        let group = joining.await?;
        Ok(Self {
            member: Member {
                group,
                owner: uuid::Uuid::new_v4().to_string(),
            },
            topic: topic.into(),
            shared,
        })
    }

    pub(super) async fn run(self, mut feed: Feed<i64>) -> Result<()> {
        let (drain, options) = (feed.drain_token(), &self.shared.options);
        let pauses = backoff(options.poll);
        let mut renewal = interval(options.visibility / 3);
        // Joining has just refreshed the group.
        let mut sweep = interval_at(time::Instant::now() + options.sweep, options.sweep);
        let mut swept = Moment::now();
        for timer in [&mut renewal, &mut sweep] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        // Settlements not yet stored.
        let mut owed: Vec<(i64, Settlement)> = Vec::new();
        // Whether messages are probably available.
        let mut likely = true;
        // Consecutive failures, which determine the delay.
        let mut failures = 0_u32;
        loop {
            // Registered before the query, so that no publish is missed.
            let published = self.shared.published.notified();
            let budget = LeaseBudget {
                messages: feed.free_capacity().min(MAX_LEASED),
                bytes: feed.free_bytes(),
            };
            if !owed.is_empty() || (budget.messages > 0 && (likely || self.visible().await)) {
                match self.exchange(&owed, budget).await {
                    Ok(leased) => {
                        owed.clear();
                        failures = 0;
                        likely = budget.messages > 0 && leased.len() == budget.messages;
                        for message in leased {
                            feed.offer(message.id, self.message(message));
                        }
                    }
                    Err(error) => {
                        likely = false;
                        self.report(failures, &error);
                        failures += 1;
                    }
                }
            }
            if feed.draining() && feed.is_settled() && owed.is_empty() {
                return Ok(());
            }
            let waits = feed.free_capacity() > 0 || !owed.is_empty();
            tokio::select! {
                () = self.shared.closed.cancelled() => return self.leave(feed, owed).await,
                () = drain.cancelled(), if !feed.draining() => {}
                settled = feed.settled() => owed.extend(settled),
                () = published, if waits => likely = true,
                () = sleep(pauses.after(failures)), if waits && !likely => {}
                () = std::future::ready(()), if waits && likely => {}
                _ = renewal.tick() => self.renew(&feed).await,
                _ = sweep.tick() => self.sweep(&mut swept).await?,
            }
        }
    }

    /// Logs the first of consecutive failures as a warning, the others at debug level.
    fn report(&self, failures: u32, error: &Error) {
        let (component, topic) = (&self.shared.component, &self.topic);
        if failures == 0 {
            tracing::warn!(target: "dapr.contrib", "component {component}: topic {topic}: {error}; trying again");
        } else {
            tracing::debug!(target: "dapr.contrib", "component {component}: topic {topic}: {error}");
        }
    }

    fn message(&self, leased: Leased) -> Message {
        Message {
            topic: Arc::clone(&self.topic),
            data: leased.data,
            content_type: leased.content_type,
            metadata: leased.metadata,
            ordering_key: leased.key.map(|key| OrderingKey {
                partition: None,
                key: Some(key),
            }),
            redelivered: Some(leased.before),
        }
    }

    /// Whether a message can be leased. Readers do not block writers.
    async fn visible(&self) -> bool {
        let (tables, member) = (self.shared.tables.clone(), self.member.clone());
        let reading = self
            .shared
            .pool
            .read(move |connection| tables.visible(connection, &member).map_err(failure));
        // If reading fails, the write reports why.
        reading.await.unwrap_or(true)
    }

    /// Settles and leases in one transaction.
    async fn exchange(&self, settled: &[(i64, Settlement)], budget: LeaseBudget) -> Result<Vec<Leased>> {
        let (tables, member, settled) = (self.shared.tables.clone(), self.member.clone(), settled.to_vec());
        let (redelivery, visibility) = (self.shared.options.redelivery, self.shared.options.visibility);
        let exchanging = self.shared.pool.write(move |connection| {
            tables
                .settle(connection, &member, &settled, redelivery)
                .map_err(failure)?;
            if budget.messages == 0 {
                return Ok(Vec::new());
            }
            tables
                .lease(connection, &member, budget, visibility)
                .map_err(failure)
        });
        exchanging.await
    }

    async fn renew(&self, feed: &Feed<i64>) {
        let ids: Vec<i64> = feed.unsettled().copied().collect();
        if ids.is_empty() {
            return;
        }
        let (tables, member) = (self.shared.tables.clone(), self.member.clone());
        let visibility = self.shared.options.visibility;
        let renewing = self.shared.pool.write(move |connection| {
            tables
                .renew(connection, &member, &ids, visibility)
                .map_err(failure)
        });
        if let Err(error) = renewing.await {
            tracing::warn!(
                target: "dapr.contrib",
                "component {}: topic {}: leases were not renewed: {error}", self.shared.component, self.topic
            );
        }
    }

    /// An error means that the group was deleted.
    async fn sweep(&self, last: &mut Moment) -> Result<()> {
        let (tables, group) = (self.shared.tables.clone(), self.member.group);
        let (component, options, now) = (&self.shared.component, &self.shared.options, Moment::now());
        // After a clock jump, every group looks abandoned; the live ones refresh themselves before the next
        // sweep.
        let has_jumped = now.gained_since(last) > options.sweep * 2;
        if has_jumped {
            tracing::warn!(
                target: "dapr.contrib",
                "component {component}: the clock was set ahead; skipping one removal of old messages and \
                 groups"
            );
        }
        let retention = (!has_jumped).then_some(options.retention);
        let sweeping = self
            .shared
            .pool
            .write(move |connection| tables.sweep(connection, group, retention).map_err(failure));
        match sweeping.await {
            Ok(true) => *last = now,
            Ok(false) => {
                let name = &options.group;
                let text = format!(
                    "the consumer group {name} of topic {} was removed as abandoned; it has lost the \
                     messages published since then",
                    self.topic
                );
                return Err(Error::new(Kind::Unavailable, text).of(component));
            }
            Err(error) => {
                tracing::warn!(
                    target: "dapr.contrib",
                    "component {component}: old messages were not removed: {error}"
                );
            }
        }
        Ok(())
    }

    /// Closes the consumer: unsettled messages become visible to others at once.
    async fn leave(&self, feed: Feed<i64>, mut owed: Vec<(i64, Settlement)>) -> Result<()> {
        owed.extend(feed.unsettled().map(|id| (*id, Settlement::Reject)));
        let none = LeaseBudget {
            messages: 0,
            bytes: 0,
        };
        let mut outcome = Ok(());
        for _ in 0..CLOSE_ATTEMPTS {
            outcome = self.exchange(&owed, none).await.map(drop);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }
}

/// Poll interval, with backoff after consecutive failures.
fn backoff(poll: Duration) -> Backoff {
    Backoff::new(poll, MAX_PAUSE.max(poll))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_clock_set_ahead() {
        let minute = Duration::from_secs(60);
        let before = Moment::now();
        let after = |passed, shown| Moment {
            at: before.at + passed,
            shown,
        };
        assert_eq!(
            after(minute, before.shown + minute).gained_since(&before),
            Duration::ZERO
        );
        assert_eq!(
            after(minute, before.shown + minute * 60).gained_since(&before),
            minute * 59
        );
        assert_eq!(
            after(minute, before.shown - minute).gained_since(&before),
            Duration::ZERO
        );
    }

    #[test]
    fn backs_off_while_database_fails() {
        let poll = Duration::from_millis(50);
        let pauses: Vec<u128> = [0, 1, 2, 6, 7, 40]
            .map(|failures| backoff(poll).after(failures).as_millis())
            .into();
        assert_eq!(pauses, [50, 100, 200, 3200, 5000, 5000]);
        let rare = Duration::from_secs(30);
        assert_eq!(backoff(rare).after(3), rare);
    }
}
