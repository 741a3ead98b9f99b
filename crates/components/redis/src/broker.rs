//! `pubsub.redis`: streams and consumer groups in Dapr's form, so that sidecars of both can share a group.
//!
//! A message is an entry of the stream named after the topic. It stays pending until the group acknowledges
//! it. Pending entries idle for `processingTimeout` are claimed and redelivered; this sidecar resets the idle
//! time of the entries it holds. If the settings disable claiming, it still happens at the start, and for
//! messages returned by the app.

mod consumer;
mod entry;
mod settings;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use ::redis::cmd;
use async_trait::async_trait;
use outrigger_component::{
    Error, PubSub, Result, Setup,
    pubsub::{BulkPublish, Failed, Features, Publish, Subscribe, Subscription, publish_each},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{consumer::Consumer, settings::Options};
use super::{
    link::{Link, Repeat},
    settings::{Role, Topology},
};

/// Concurrent entries of a bulk request.
const PIPELINED: usize = 64;

/// State shared by publishers and consumers of a component.
struct BrokerInner {
    link: Link,
    options: Options,
    closed: CancellationToken,
    consumers: TaskTracker,
    component: Arc<str>,
}

pub(super) struct RedisBroker(Arc<BrokerInner>);

pub(super) async fn open(setup: &Setup) -> Result<RedisBroker> {
    let options = Options::read(setup)?;
    let link = Link::open(&setup.metadata, Role::PubSub).await?;
    Ok(RedisBroker(Arc::new(BrokerInner {
        link,
        options,
        closed: CancellationToken::new(),
        consumers: TaskTracker::new(),
        component: setup.metadata.component().clone(),
    })))
}

/// The first entry id that a stream with this time to live keeps.
fn oldest(ttl: Duration) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let oldest = since.unwrap_or_default().saturating_sub(ttl);
    format!("{}-1", oldest.as_millis())
}

#[async_trait]
impl PubSub for RedisBroker {
    fn features(&self) -> Features {
        Features {
            at_least_once: true,
            ..Features::default()
        }
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        let options = &self.0.options;
        let mut add = cmd("XADD");
        add.arg(&message.topic);
        if let Some(most) = options.max_length {
            add.arg("MAXLEN").arg("~").arg(most);
        } else if let Some(ttl) = options.stream_ttl {
            add.arg("MINID").arg("~").arg(oldest(ttl));
        }
        add.arg("*").arg("data").arg(&message.data[..]);
        if !message.metadata.is_empty() {
            let metadata = serde_json::to_string(&message.metadata)
                .map_err(|error| Error::invalid_request("the metadata cannot be stored").because(error))?;
            add.arg("metadata").arg(metadata);
        }
        self.0.link.call::<String>(&add, Repeat::No).await.map(drop)
    }

    async fn publish_bulk(&self, bulk: &BulkPublish) -> Result<Vec<Failed>> {
        // In a cluster, commands may overtake each other.
        let at_once = match self.0.link.settings.topology {
            Topology::Cluster => 1,
            Topology::Node | Topology::Sentinel(_) => PIPELINED,
        };
        publish_each(self, bulk, at_once).await
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        let shared = Arc::clone(&self.0);
        let concurrency = shared.options.concurrency;
        let under_way = shared.consumers.token();
        let consumer = Consumer::join(shared, &request.topic).await?;
        let subscription = Subscription::start(&request, |feed| async move {
            let _under_way = under_way;
            consumer.run(feed).await
        });
        Ok(subscription.with_concurrency(concurrency))
    }

    async fn ping(&self) -> Result<()> {
        self.0
            .link
            .call::<String>(&cmd("PING"), Repeat::Yes)
            .await
            .map(drop)
    }

    async fn close(&self) {
        self.0.closed.cancel();
        // Consumers return their messages before the connection closes.
        self.0.consumers.close();
        self.0.consumers.wait().await;
        self.0.link.close();
    }
}
