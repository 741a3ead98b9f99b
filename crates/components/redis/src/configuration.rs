//! `configuration.redis`: strings of the form `VALUE||VERSION`, with keyspace events for changes, in Dapr's
//! layout.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ::redis::{
    Msg, Value,
    aio::{PubSub, PubSubSink, PubSubStream},
    cmd,
};
use async_trait::async_trait;
use futures::{StreamExt, stream};
use outrigger_component::{
    ConfigurationStore, Error, Kind, Metadata, Pairs, Result,
    configuration::{Follow, Heard, Item, Items, Request, Subscription, Subscriptions, follow},
};

use super::{
    link::{Link, Repeat},
    settings::Role,
};

/// Event classes needed: keyspace channel, generic, string, expired and evicted.
const EVENTS: &str = "Kg$xe";
/// Concurrent reads of values.
const CONCURRENT_READS: usize = 64;
/// Ping interval on a silent connection, unless `readTimeout` is set.
const HEARTBEAT: Duration = Duration::from_secs(3);

pub(super) struct RedisConfiguration {
    values: Arc<Values>,
    subscriptions: Subscriptions,
}

struct Values {
    link: Link,
}

pub(super) async fn open(metadata: &Metadata) -> Result<RedisConfiguration> {
    let link = Link::open(metadata, Role::Configuration).await?;
    Ok(RedisConfiguration {
        values: Arc::new(Values { link }),
        subscriptions: Subscriptions::default(),
    })
}

fn item(text: &str) -> Item {
    let mut parts = text.split("||");
    Item {
        value: parts.next().unwrap_or_default().to_owned(),
        version: parts.next().unwrap_or_default().to_owned(),
        metadata: Pairs::new(),
    }
}

impl Values {
    async fn all_keys(&self) -> Result<Vec<String>> {
        let mut keys = BTreeSet::new();
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("COUNT").arg(1000);
            let (next, found): (String, Vec<Vec<u8>>) = self.link.call(&scan, Repeat::Yes).await?;
            // Keys that are not text cannot be requested by any API.
            keys.extend(found.into_iter().filter_map(|key| String::from_utf8(key).ok()));
            cursor = next;
            if cursor == "0" {
                return Ok(keys.into_iter().collect());
            }
        }
    }

    /// The value of a key; `None` if absent, empty or not a string.
    async fn one(&self, key: &str) -> Result<Option<Item>> {
        let mut get = cmd("GET");
        get.arg(key);
        let value = match self.link.attempt(&get, Repeat::Yes).await? {
            Ok(value) => value,
            Err(error) if error.code() == Some("WRONGTYPE") => return Ok(None),
            Err(error) => return Err(self.link.failure(error)),
        };
        let bytes: Option<Vec<u8>> =
            ::redis::from_redis_value(value).map_err(|error| self.link.failure(error.into()))?;
        let item = bytes.map(|bytes| item(&String::from_utf8_lossy(&bytes)));
        Ok(item.filter(|item| !item.value.is_empty()))
    }

    async fn read(&self, keys: &[String]) -> Result<Items> {
        let all;
        let keys = if keys.is_empty() {
            all = self.all_keys().await?;
            &all
        } else {
            keys
        };
        let calls: Vec<_> = keys
            .iter()
            .map(|key| async move { (key, self.one(key).await) })
            .collect();
        let answers: Vec<_> = stream::iter(calls).buffered(CONCURRENT_READS).collect().await;
        let mut items = Items::new();
        for (key, answer) in answers {
            if let Some(item) = answer? {
                items.insert(key.clone(), item);
            }
        }
        Ok(items)
    }

    /// Enables change notifications on the server. Managed servers forbid it; their operators must enable
    /// them. An unreachable server is an error, because a watcher without events would wait forever.
    async fn enable_events(&self) -> Result<()> {
        match self.add_events().await {
            Err(error) if !error.retryable() && error.kind() != Kind::Closed => {
                tracing::warn!(
                    target: "dapr.contrib",
                    "cannot enable the keyspace notifications of Redis: {error}; set notify-keyspace-events to \
                     {EVENTS} on the server"
                );
                Ok(())
            }
            other => other,
        }
    }

    /// Adds the event classes to those already enabled.
    async fn add_events(&self) -> Result<()> {
        let mut ask = cmd("CONFIG");
        ask.arg("GET").arg("notify-keyspace-events");
        let current: Vec<String> = self.link.call(&ask, Repeat::Yes).await?;
        let mut flags = current.into_iter().nth(1).unwrap_or_default();
        // `A` means all event classes, `K` the keyspace channel.
        let missing = |flag: &char| !flags.contains(*flag) && (*flag == 'K' || !flags.contains('A'));
        let missing: String = EVENTS.chars().filter(missing).collect();
        if missing.is_empty() {
            return Ok(());
        }
        flags.push_str(&missing);
        let mut set = cmd("CONFIG");
        set.arg("SET").arg("notify-keyspace-events").arg(&flags);
        self.link.call::<String>(&set, Repeat::Yes).await.map(drop)
    }

    fn channel_prefix(&self) -> String {
        format!("__keyspace@{}__:", self.link.settings.database)
    }

    async fn listen(&self, keys: &[String]) -> Result<PubSub> {
        let mut pubsub = self.link.pubsub().await?;
        let prefix = self.channel_prefix();
        let subscribed = if keys.is_empty() {
            pubsub.psubscribe(format!("{prefix}*")).await
        } else {
            let channels: Vec<_> = keys.iter().map(|key| format!("{prefix}{key}")).collect();
            pubsub.subscribe(channels).await
        };
        subscribed.map_err(|error| self.link.failure(error))?;
        Ok(pubsub)
    }

    fn heartbeat(&self) -> Duration {
        self.link.settings.read_timeout.unwrap_or(HEARTBEAT)
    }
}

/// The values that a subscription follows.
struct Watch {
    values: Arc<Values>,
    /// Empty for all.
    keys: Vec<String>,
}

#[async_trait]
impl Follow for Watch {
    type Listener = (PubSubSink, PubSubStream);

    async fn resume(&self) -> Result<(Self::Listener, Items)> {
        self.values.enable_events().await?;
        let pubsub = self.values.listen(&self.keys).await?;
        let items = self.values.read(&self.keys).await?;
        Ok((pubsub.split(), items))
    }

    async fn next(&self, listener: &mut Self::Listener) -> Option<Heard> {
        let (asking, messages) = listener;
        let message = next(asking, messages, self.values.heartbeat()).await?;
        let Some(key) = message
            .get_channel_name()
            .strip_prefix(&self.values.channel_prefix())
        else {
            return Some(Heard::Nothing);
        };
        Some(match self.values.one(key).await {
            Ok(item) => Heard::Change(key.to_owned(), item),
            // There may be no further event, so all values are read again once the server responds.
            Err(error) if error.retryable() => {
                tracing::warn!(
                    target: "dapr.contrib",
                    "cannot read the changed key {key}: {error}; trying again"
                );
                Heard::Missed
            }
            // E.g. a key of another type; it must not block the others.
            Err(error) => {
                tracing::warn!(target: "dapr.contrib", "cannot read the changed key {key}: {error}");
                Heard::Nothing
            }
        })
    }

    fn failed(&self, error: &Error) {
        tracing::warn!(target: "dapr.contrib", "cannot watch the configuration: {error}");
    }
}

/// The next message; `None` if the connection ended. Pings a silent server periodically, to detect lost
/// connections.
async fn next(asking: &mut PubSubSink, messages: &mut PubSubStream, every: Duration) -> Option<Msg> {
    loop {
        if let Ok(message) = tokio::time::timeout(every, messages.next()).await {
            return message;
        }
        match tokio::time::timeout(every, asking.ping::<Value>()).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return None,
        }
    }
}

#[async_trait]
impl ConfigurationStore for RedisConfiguration {
    async fn get(&self, request: &Request) -> Result<Items> {
        self.values.read(&request.keys).await
    }

    async fn subscribe(&self, request: &Request) -> Result<Subscription> {
        self.subscriptions.check_open()?;
        let watch = Watch {
            values: self.values.clone(),
            keys: request.keys.clone(),
        };
        let (listener, known) = watch.resume().await?;
        self.subscriptions
            .open(|updates| async move { follow(&watch, listener, known, updates).await })
    }

    async fn unsubscribe(&self, id: &str) -> Result<()> {
        self.subscriptions.end(id).await
    }

    async fn ping(&self) -> Result<()> {
        let pong: Result<String> = self.values.link.call(&cmd("PING"), Repeat::Yes).await;
        pong.map(drop)
            .map_err(|error| Error::new(error.kind(), error.to_string()))
    }

    async fn close(&self) {
        self.subscriptions.close().await;
        self.values.link.close();
    }
}
