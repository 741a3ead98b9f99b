//! A broker on SQLite, whose messages survive the process.

use std::{collections::HashMap, num::NonZeroUsize, sync::Arc};

use outrigger_component::{
    Catalog, Metadata, PubSub as Broker, Setup,
    pubsub::{BulkEntry, BulkPublish, Event, Publish, Receipt, Subscribe, Subscription},
};
use outrigger_wire::components::v1::{
    BulkMessageEntry, BulkPublishRequest, BulkPublishResponse, BulkPublishResponseFailedEntry,
    FeaturesRequest, FeaturesResponse, PauseRequest, PauseResponse, PingRequest, PingResponse,
    PubSubInitRequest, PubSubInitResponse, PublishRequest, PublishResponse, PullMessagesRequest,
    PullMessagesResponse, ResumeRequest, ResumeResponse, pub_sub_server::PubSub,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait, codegen::BoxStream};

use super::{Answer, Desk, Services, instance};

/// In-flight limit of a stream: low, so that two streams share messages.
const IN_FLIGHT: usize = 8;

fn internal(error: outrigger_component::Error) -> Status {
    Status::internal(error.to_string())
}

impl Services {
    fn broker<T>(&self, request: &Request<T>) -> Result<Arc<dyn Broker>, Status> {
        let brokers = self.brokers.lock().unwrap();
        let broker = brokers.get(&instance(request)).cloned();
        broker.ok_or_else(|| Status::failed_precondition("it was not initialised"))
    }

    fn publishing(&self, what: Vec<String>) {
        self.desk.published.lock().unwrap().push(what);
    }

    /// Removes the entries that the desk refuses.
    fn refuse(&self, bulk: &mut BulkPublishRequest) -> Vec<BulkPublishResponseFailedEntry> {
        let mut wanted = self.desk.refused.lock().unwrap();
        let mut is_refused = |id: &str| {
            let left = wanted.get_mut(id).filter(|left| **left > 0);
            left.map(|left| *left -= 1).is_some()
        };
        let (refused, taken): (Vec<_>, Vec<_>) = std::mem::take(&mut bulk.entries)
            .into_iter()
            .partition(|entry| is_refused(&entry.entry_id));
        bulk.entries = taken;
        let failed = |entry: BulkMessageEntry| BulkPublishResponseFailedEntry {
            entry_id: entry.entry_id,
            error: "not now".to_owned(),
        };
        refused.into_iter().map(failed).collect()
    }
}

#[async_trait]
impl PubSub for Services {
    async fn init(&self, request: Request<PubSubInitRequest>) -> Answer<PubSubInitResponse> {
        self.initialised(&request, &request.get_ref().metadata).await?;
        let instance = instance(&request);
        let properties = request.into_inner().metadata.unwrap().properties;
        let file = self.folder.join("broker.db");
        let given = [
            ("connectionString".to_owned(), file.to_str().unwrap().to_owned()),
            ("visibilityTimeout".to_owned(), "1s".to_owned()),
            ("redeliverInterval".to_owned(), "50ms".to_owned()),
            ("consumerID".to_owned(), properties["consumerID"].clone()),
        ];
        let mut catalog = Catalog::empty();
        outrigger_components_sqlite::add(&mut catalog);
        let entry = catalog.pubsub.find("pubsub.sqlite", "v1").unwrap();
        let setup = Setup {
            metadata: Metadata::new("broker", given).unwrap(),
            app_id: "app".to_owned(),
        };
        let broker = entry.build(setup).await.map_err(internal)?;
        self.brokers.lock().unwrap().insert(instance, broker);
        Ok(Response::new(Default::default()))
    }

    async fn features(&self, _request: Request<FeaturesRequest>) -> Answer<FeaturesResponse> {
        let features = vec!["BULK_PUBSUB".to_owned()];
        Ok(Response::new(FeaturesResponse { features }))
    }

    async fn publish(&self, request: Request<PublishRequest>) -> Answer<PublishResponse> {
        self.publishing(vec![request.get_ref().topic.clone()]);
        self.desk.fault().await?;
        let broker = self.broker(&request)?;
        let request = request.into_inner();
        let message = Publish {
            topic: request.topic,
            data: request.data,
            content_type: None,
            declared: None,
            metadata: request.metadata,
        };
        broker.publish(&message).await.map_err(internal)?;
        Ok(Response::new(Default::default()))
    }

    async fn bulk_publish(&self, request: Request<BulkPublishRequest>) -> Answer<BulkPublishResponse> {
        let entries = request.get_ref().entries.iter();
        self.publishing(entries.map(|entry| entry.entry_id.clone()).collect());
        self.desk.fault().await?;
        let broker = self.broker(&request)?;
        let mut request = request.into_inner();
        let mut refused = self.refuse(&mut request);
        let entries = request.entries.into_iter().map(|entry| BulkEntry {
            id: entry.entry_id,
            data: entry.event,
            content_type: Some(entry.content_type),
            metadata: entry.metadata,
        });
        let bulk = BulkPublish {
            topic: request.topic,
            entries: entries.collect(),
            metadata: request.metadata,
        };
        let failed = broker.publish_bulk(&bulk).await.map_err(internal)?;
        refused.extend(failed.into_iter().map(|failed| BulkPublishResponseFailedEntry {
            entry_id: failed.id,
            error: failed.error.to_string(),
        }));
        Ok(Response::new(BulkPublishResponse {
            failed_entries: refused,
        }))
    }

    async fn pull_messages(
        &self,
        request: Request<Streaming<PullMessagesRequest>>,
    ) -> Answer<BoxStream<PullMessagesResponse>> {
        self.desk.fault().await?;
        let broker = self.broker(&request)?;
        let mut acks = request.into_inner();
        let first = acks.message().await?.and_then(|first| first.topic);
        let topic = first.ok_or_else(|| Status::invalid_argument("the first message has no topic"))?;
        let subscription = broker.subscribe(Subscribe {
            topic: topic.name,
            metadata: topic.metadata,
            in_flight: NonZeroUsize::new(IN_FLIGHT).unwrap(),
        });
        let subscription = subscription.await.map_err(internal)?;
        let (messages, stream) = mpsc::channel(IN_FLIGHT);
        tokio::spawn(pull(Arc::clone(&self.desk), subscription, acks, messages));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn pause(&self, _request: Request<PauseRequest>) -> Answer<PauseResponse> {
        *self.desk.pauses.lock().unwrap() += 1;
        self.desk.fault().await?;
        Err(Status::unimplemented("it does not pause"))
    }

    async fn resume(&self, _request: Request<ResumeRequest>) -> Answer<ResumeResponse> {
        Err(Status::unimplemented("it does not pause"))
    }

    async fn ping(&self, _request: Request<PingRequest>) -> Answer<PingResponse> {
        self.pong().await
    }
}

/// Sends messages and reads acks until the sidecar stops; unacknowledged messages are returned.
async fn pull(
    desk: Arc<Desk>,
    mut subscription: Subscription,
    mut acks: Streaming<PullMessagesRequest>,
    messages: mpsc::Sender<Result<PullMessagesResponse, Status>>,
) {
    let (mut held, mut next): (HashMap<String, Receipt>, u64) = (HashMap::new(), 0);
    loop {
        tokio::select! {
            ack = acks.message() => match ack {
                Ok(Some(ack)) => {
                    let answer = (ack.ack_message_id.clone(), ack.ack_error.is_some());
                    desk.answers.lock().unwrap().push(answer);
                    let Some(receipt) = held.remove(&ack.ack_message_id) else { continue };
                    match ack.ack_error {
                        None => receipt.acknowledge(),
                        Some(_) => receipt.reject(),
                    }
                }
                _ => break,
            },
            event = subscription.next() => match event {
                Some(Event::Message(delivery)) => {
                    let id = next.to_string();
                    next += 1;
                    held.insert(id.clone(), delivery.receipt);
                    let message = PullMessagesResponse {
                        data: delivery.message.data,
                        topic_name: delivery.message.topic.to_string(),
                        metadata: delivery.message.metadata,
                        content_type: delivery.message.content_type.unwrap_or_default(),
                        id,
                    };
                    if messages.send(Ok(message)).await.is_err() {
                        break;
                    }
                }
                Some(Event::Revoked(_) | Event::Reopened(_)) => {}
                None => break,
            },
        }
    }
    drop(held);
    subscription.ended().await.unwrap();
}
