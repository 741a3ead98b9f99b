//! Pub/sub in other processes.

mod consumer;

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use outrigger_component::{
    Catalog, Error, Kind, PubSub, Result, Setup,
    pubsub::{BulkEntry, BulkPublish, Failed, Features, Publish, Subscribe, Subscription},
};
use outrigger_wire::components::v1::{
    BulkMessageEntry, BulkPublishRequest, FeaturesRequest, PauseRequest, PingRequest, PubSubInitRequest,
    PublishRequest, pub_sub_client::PubSubClient,
};
use tokio::{sync::oneshot, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Code;

use self::consumer::Consumer;
use super::{
    Opened, Options, Process,
    link::{Caller, Link, origin},
    status,
};

/// How long a subscription waits for the component's first answer. Many servers send nothing before their
/// first message.
const SUBSCRIBE_WAIT: Duration = Duration::from_millis(250);

pub(super) fn add(catalog: &mut Catalog, name: &str, socket: &Path, options: &Options) {
    let entry = super::entry(name, socket, options, |process, setup| async move {
        let opened = Broker::open(&process, &setup).await?;
        Ok(Arc::new(opened) as Arc<dyn PubSub>)
    });
    catalog.pubsub.add(entry);
}

/// State shared by publishers and consumers of a component.
struct BrokerInner {
    name: Arc<str>,
    link: Arc<Link>,
    limit: usize,
    closed: CancellationToken,
    consumers: TaskTracker,
}

impl BrokerInner {
    fn client(&self) -> PubSubClient<Caller> {
        PubSubClient::with_origin(Caller(Arc::clone(&self.link)), origin())
            .max_decoding_message_size(self.limit)
    }
}

struct Broker {
    shared: Arc<BrokerInner>,
    features: Features,
    is_bulk_immediate: bool,
}

impl Broker {
    async fn open(process: &Process, setup: &Setup) -> Result<Self> {
        let init = |conn, metadata| async move {
            let mut client = PubSubClient::with_origin(conn, origin());
            client.init(PubSubInitRequest { metadata }).await.map(drop)
        };
        let Opened { name, link, limit } = process.open(setup, init).await?;
        let shared = Arc::new(BrokerInner {
            name,
            link,
            limit,
            closed: CancellationToken::new(),
            consumers: TaskTracker::new(),
        });
        let answer = shared.client().features(FeaturesRequest {}).await;
        let names = answer
            .map_err(|status| status::error(&status))?
            .into_inner()
            .features;
        let has = |feature: &str| names.iter().any(|name| name == feature);
        let features = Features {
            ttl: has("MESSAGE_TTL"),
            bulk_publish: has("BULK_PUBSUB"),
            wildcards: has("SUBSCRIBE_WILDCARDS"),
            at_least_once: true,
        };
        let is_bulk_immediate = has("BULK_SUBSCRIBE_IMMEDIATE");
        Ok(Self {
            shared,
            features,
            is_bulk_immediate,
        })
    }

    fn check_open(&self) -> Result<()> {
        if self.shared.closed.is_cancelled() {
            return Err(Error::closed().of(&self.shared.name));
        }
        Ok(())
    }
}

fn outgoing(entry: &BulkEntry) -> BulkMessageEntry {
    BulkMessageEntry {
        entry_id: entry.id.clone(),
        event: entry.data.clone(),
        content_type: entry.content_type.clone().unwrap_or_default(),
        metadata: entry.metadata.clone(),
    }
}

#[async_trait]
impl PubSub for Broker {
    fn features(&self) -> Features {
        self.features
    }

    fn is_bulk_immediate(&self) -> bool {
        self.is_bulk_immediate
    }

    async fn publish(&self, message: &Publish) -> Result<()> {
        self.check_open()?;
        // The content type stays empty, as from Dapr's sidecars: the envelope contains it.
        let request = PublishRequest {
            data: message.data.clone(),
            pubsub_name: self.shared.name.to_string(),
            topic: message.topic.clone(),
            metadata: message.metadata.clone(),
            content_type: String::new(),
        };
        let answer = self.shared.client().publish(request).await;
        answer.map(drop).map_err(|status| status::error(&status))
    }

    async fn publish_bulk(&self, bulk: &BulkPublish) -> Result<Vec<Failed>> {
        self.check_open()?;
        let request = BulkPublishRequest {
            entries: bulk.entries.iter().map(outgoing).collect(),
            pubsub_name: self.shared.name.to_string(),
            topic: bulk.topic.clone(),
            metadata: bulk.metadata.clone(),
        };
        match self.shared.client().bulk_publish(request).await {
            Ok(answer) => {
                let failed = answer.into_inner().failed_entries.into_iter();
                let failed = failed.map(|entry| Failed {
                    id: entry.entry_id,
                    error: Error::new(Kind::Internal, entry.error),
                });
                Ok(failed.collect())
            }
            Err(status) if status.code() == Code::Unimplemented => {
                outrigger_component::pubsub::publish_each(self, bulk, 1).await
            }
            Err(status) => Err(status::error(&status)),
        }
    }

    async fn subscribe(&self, request: Subscribe) -> Result<Subscription> {
        self.check_open()?;
        let (begun, beginning) = oneshot::channel();
        let consumer = Consumer::new(&self.shared, &request, begun);
        let under_way = self.shared.consumers.token();
        let subscription = Subscription::start(&request, |feed| async move {
            let _under_way = under_way;
            consumer.run(feed).await
        });
        match timeout(SUBSCRIBE_WAIT, beginning).await {
            Ok(Ok(Err(status))) => Err(status::error(&status)),
            _ => Ok(subscription),
        }
    }

    async fn pause(&self) -> Result<()> {
        match self.shared.client().pause(PauseRequest {}).await {
            Err(status) if status.code() != Code::Unimplemented => Err(status::error(&status)),
            _ => Ok(()),
        }
    }

    async fn ping(&self) -> Result<()> {
        let answer = self.shared.client().ping(PingRequest {}).await;
        answer.map(drop).map_err(|status| status::error(&status))
    }

    async fn close(&self) {
        self.shared.closed.cancel();
        // Acknowledgements reach the component before the connection closes.
        self.shared.consumers.close();
        self.shared.consumers.wait().await;
        self.shared.link.close();
    }
}
