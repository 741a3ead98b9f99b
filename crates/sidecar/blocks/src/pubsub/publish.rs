//! Publishing: checks the request, wraps the payload in an envelope and passes it to the broker under its
//! policy.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use outrigger_cloudevents::Malformed;
use outrigger_cloudevents::content_type::CLOUD_EVENT;
use outrigger_component::pubsub::{BulkEntry, BulkPublish, Failed, Publish, inherit};
use outrigger_component::{Error, Pairs};
use outrigger_offload::offload;
use outrigger_policy::resiliency::Outcome;
use outrigger_resources::value::go_bool;
use outrigger_telemetry::trace::{Parent, Span, SpanKind};

use super::codes::code;
use super::envelope::Sender;
use super::{Broker, Payload, PubSubs, PublishError};
use crate::outbound::Cause;
use crate::state::check_metadata;

/// Request metadata that disable the envelope.
const RAW_PAYLOAD: &str = "rawPayload";
/// Cost of an event in bytes for its envelope, regardless of its payload.
const ENVELOPE: usize = 512;

/// The protocol of the request, whose status codes policies match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP statuses.
    Http,
    /// gRPC codes.
    Grpc,
}

/// Request context: protocol, trace and baggage.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The protocol of the request.
    pub protocol: Protocol,
    /// Its span.
    pub trace: Parent,
    /// W3C baggage of the request, if any.
    pub baggage: Option<Arc<str>>,
}

/// An entry of a bulk.
#[derive(Debug, Clone, Default)]
pub struct BulkPayload {
    /// Unique in its bulk.
    pub id: String,
    /// The event, its media type and its own metadata.
    pub payload: Payload,
}

/// A valid destination of a request.
pub struct Target<'p> {
    pubsubs: &'p PubSubs,
    broker: Arc<Broker>,
    topic: Arc<str>,
    is_raw: bool,
}

impl PubSubs {
    /// Resolves the destination of a request before its payload is read.
    ///
    /// # Errors
    /// [`PublishError`].
    pub fn target(&self, pubsub: &str, topic: &str, metadata: &Pairs) -> Result<Target<'_>, PublishError> {
        if pubsub.is_empty() {
            return Err(PublishError::NoName);
        }
        let owned = || pubsub.to_owned();
        let broker = self.broker(pubsub);
        let broker = broker.ok_or_else(|| PublishError::NotFound {
            pubsub: owned(),
            metadata: metadata.clone(),
        })?;
        if topic.is_empty() {
            return Err(PublishError::NoTopic { pubsub: owned() });
        }
        let is_raw = match metadata.get(RAW_PAYLOAD) {
            None => false,
            Some(value) => go_bool(value).ok_or_else(|| PublishError::RawPayload {
                pubsub: owned(),
                value: value.clone(),
            })?,
        };
        Ok(Target {
            pubsubs: self,
            broker,
            topic: topic.into(),
            is_raw,
        })
    }
}

impl PubSubs {
    /// Publishes events that already have envelopes, in order and under the rules for the app.
    ///
    /// # Errors
    /// [`PublishError`]; if there are several events, some may have been published.
    pub async fn forward(
        &self,
        pubsub: &str,
        topic: &str,
        mut events: Vec<BulkEntry>,
    ) -> Result<(), PublishError> {
        let target = self.target(pubsub, topic, &Pairs::new())?;
        target.check_allowed()?;
        let stored = target.broker.stored_topic(topic).into_owned();
        let started = Instant::now();
        if events.len() > 1 {
            let bulk = BulkPublish {
                topic: stored,
                entries: events,
                metadata: Pairs::new(),
            };
            let sent = target.broker.send_bulk(bulk, Protocol::Grpc).await;
            target
                .broker
                .published_bulk(topic, sent.is_ok(), started.elapsed());
            return sent.map_err(|(cause, failed)| target.unpublished(cause, failed));
        }
        let Some(event) = events.pop() else {
            return Ok(());
        };
        let message = Publish {
            topic: stored,
            data: event.data,
            declared: event.content_type.clone(),
            content_type: event.content_type,
            metadata: event.metadata,
        };
        let sent = target.broker.send(&message, Protocol::Grpc).await;
        target.broker.published(topic, sent.is_ok(), started.elapsed());
        sent.map_err(|cause| target.unpublished(cause, Vec::new()))
    }
}

impl Target<'_> {
    /// The topic by the name that apps use.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Publishes one event.
    ///
    /// # Errors
    /// [`PublishError`].
    pub async fn publish(self, mut payload: Payload, request: RequestContext) -> Result<(), PublishError> {
        let (sender, protocol) = (self.sender(request.trace, request.baggage), request.protocol);
        let (data, declared, metadata) = if self.is_raw {
            // As Dapr does.
            sender.raw(&mut payload.metadata, protocol == Protocol::Grpc);
            (payload.data, payload.content_type, payload.metadata)
        } else {
            let size = payload.data.len();
            let wrap = move || (sender.envelope(&payload), payload);
            let (envelope, payload) = offload(size, wrap).await;
            (
                envelope.map_err(|error| self.malformed(&error))?,
                CLOUD_EVENT.to_owned(),
                payload.metadata,
            )
        };
        let message = Publish {
            topic: self.broker.stored_topic(&self.topic).into_owned(),
            data,
            content_type: None,
            declared: Some(declared).filter(|kind| !kind.is_empty()),
            metadata,
        };
        let started = Instant::now();
        let result = match self.check_allowed() {
            Ok(()) => {
                let sent = self.broker.send(&message, protocol).await;
                sent.map_err(|cause| self.unpublished(cause, Vec::new()))
            }
            Err(error) => Err(error),
        };
        self.broker
            .published(&self.topic, result.is_ok(), started.elapsed());
        result
    }

    /// Publishes several events. Each [inherits](inherit) the metadata of the request. `span`: the span name
    /// of each entry.
    ///
    /// # Errors
    /// [`PublishError`]; entries that it does not list were published.
    pub async fn publish_bulk(
        self,
        mut entries: Vec<BulkPayload>,
        metadata: &Pairs,
        request: RequestContext,
        span: &str,
    ) -> Result<(), PublishError> {
        let mut ids = HashSet::with_capacity(entries.len());
        if !entries
            .iter()
            .all(|entry| !entry.id.is_empty() && ids.insert(entry.id.as_str()))
        {
            return Err(PublishError::EntryIds {
                pubsub: self.broker.name().to_string(),
                topic: self.topic.to_string(),
                app_id: self.pubsubs.app_id().to_owned(),
            });
        }
        drop(ids);
        check_metadata(entries.len(), metadata).map_err(|error| PublishError::Metadata {
            pubsub: self.broker.name().to_string(),
            cause: error.to_string(),
        })?;
        for entry in &mut entries {
            inherit(&mut entry.payload.metadata, metadata);
        }
        let protocol = request.protocol;
        let (entries, spans) = self.wrap_all(entries, request, span).await?;
        let bulk = BulkPublish {
            topic: self.broker.stored_topic(&self.topic).into_owned(),
            entries,
            metadata: metadata.clone(),
        };
        let started = Instant::now();
        let result = match self.check_allowed() {
            Ok(()) if bulk.entries.is_empty() => Ok(()),
            Ok(()) => {
                let sent = self.broker.send_bulk(bulk, protocol).await;
                sent.map_err(|(cause, failed)| self.unpublished(cause, failed))
            }
            Err(error) => Err(error),
        };
        drop(spans);
        self.broker
            .published_bulk(&self.topic, result.is_ok(), started.elapsed());
        result
    }

    /// Wraps entries in envelopes, each in a separate span.
    async fn wrap_all(
        &self,
        entries: Vec<BulkPayload>,
        request: RequestContext,
        name: &str,
    ) -> Result<(Vec<BulkEntry>, Vec<Span>), PublishError> {
        if self.is_raw {
            let sender = self.sender(request.trace, None);
            let raw = entries.into_iter().map(|BulkPayload { id, mut payload }| {
                sender.raw(&mut payload.metadata, false);
                BulkEntry {
                    id,
                    data: payload.data,
                    content_type: Some(payload.content_type).filter(|kind| !kind.is_empty()),
                    metadata: payload.metadata,
                }
            });
            return Ok((raw.collect(), Vec::new()));
        }
        let mut spans = Vec::with_capacity(entries.len());
        let senders: Vec<Sender> = entries
            .iter()
            .map(|_| {
                let span = self
                    .pubsubs
                    .tracer
                    .start(SpanKind::Producer, name, &request.trace);
                let sender = self.sender(span.as_parent(), request.baggage.clone());
                spans.push(span);
                sender
            })
            .collect();
        let size = entries
            .iter()
            .map(|entry| ENVELOPE + entry.payload.data.len())
            .sum();
        let wrap = move || {
            let both = senders.into_iter().zip(entries);
            both.map(|(sender, BulkPayload { id, payload })| {
                let data = sender.envelope(&payload)?;
                Ok(BulkEntry {
                    id,
                    data,
                    content_type: Some(CLOUD_EVENT.to_owned()),
                    metadata: payload.metadata,
                })
            })
            .collect::<Result<Vec<_>, Malformed>>()
        };
        let entries = offload(size, wrap).await;
        Ok((entries.map_err(|error| self.malformed(&error))?, spans))
    }

    fn sender(&self, trace: Parent, baggage: Option<Arc<str>>) -> Sender {
        Sender {
            app_id: Arc::clone(&self.pubsubs.app_id),
            pubsub: Arc::clone(self.broker.name()),
            topic: Arc::clone(&self.topic),
            trace: trace.without_made_up(),
            baggage,
            has_ttl: self.broker.features().ttl,
        }
    }

    fn check_allowed(&self) -> Result<(), PublishError> {
        self.broker.check_allowed(&self.topic, self.pubsubs.app_id())
    }

    fn malformed(&self, error: &Malformed) -> PublishError {
        PublishError::Malformed {
            pubsub: self.broker.name().to_string(),
            app_id: self.pubsubs.app_id().to_owned(),
            cause: error.to_string(),
        }
    }

    fn unpublished(&self, cause: Cause, failed: Vec<(String, String)>) -> PublishError {
        PublishError::Publish {
            pubsub: self.broker.name().to_string(),
            topic: self.topic.to_string(),
            cause,
            failed,
        }
    }
}

impl Broker {
    /// Whether this app may publish to a topic, by the name that apps use.
    ///
    /// # Errors
    /// [`PublishError::Forbidden`].
    pub fn check_allowed(&self, topic: &str, app_id: &str) -> Result<(), PublishError> {
        if self.topics().may_publish(topic) {
            return Ok(());
        }
        Err(PublishError::Forbidden {
            pubsub: self.name().to_string(),
            topic: topic.to_owned(),
            app_id: app_id.to_owned(),
        })
    }

    /// Passes a message unchanged to the broker, under the policy of the component.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub async fn send(&self, message: &Publish, protocol: Protocol) -> Result<(), Cause> {
        let code = |error: &Error| code(error, protocol);
        let component = self.component();
        self.outbound.run_coded(|| component.publish(message), code).await
    }

    /// Passes several messages to the broker and retries only those that failed. Returns the remaining errors
    /// by entry.
    async fn send_bulk(
        &self,
        mut bulk: BulkPublish,
        protocol: Protocol,
    ) -> Result<(), (Cause, Vec<(String, String)>)> {
        let attempts = self
            .outbound
            .attempts()
            .run_with(&mut bulk, |bulk, limit| async move {
                let result = {
                    let attempt = self.component().publish_bulk(bulk);
                    limit.within(pin!(attempt)).await
                };
                let (failure, outcome) = match result {
                    None => (Some(Unsent::All(Cause::Timeout)), Outcome::TimedOut),
                    Some(Ok(failed)) if failed.is_empty() => (None, Outcome::Success),
                    Some(Ok(failed)) => {
                        let code = failed.first().and_then(|failed| code(&failed.error, protocol));
                        let left: HashSet<&str> = failed.iter().map(|failed| failed.id.as_str()).collect();
                        bulk.entries.retain(|entry| left.contains(entry.id.as_str()));
                        (Some(Unsent::Some(failed)), Outcome::Failure { code })
                    }
                    Some(Err(error)) => {
                        let code = code(&error, protocol);
                        (
                            Some(Unsent::All(Cause::Component(self.outbound.cleared(error)))),
                            Outcome::Failure { code },
                        )
                    }
                };
                (bulk, failure, outcome)
            });
        let unsent = match attempts.await {
            Ok(None) => return Ok(()),
            Ok(Some(unsent)) => unsent,
            Err(refused) => Unsent::All(refused.into()),
        };
        Err(match unsent {
            Unsent::All(cause) => {
                let text = cause.to_string();
                let failed = bulk.entries.into_iter().map(|entry| (entry.id, text.clone()));
                (cause, failed.collect())
            }
            Unsent::Some(failed) => {
                let failed: Vec<_> = failed
                    .into_iter()
                    .map(|failed| (failed.id, self.outbound.cleared(failed.error).to_string()))
                    .collect();
                let text = failed.iter().map(|(id, error)| format!("{id}: {error}"));
                (Cause::Own(text.collect::<Vec<_>>().join("; ")), failed)
            }
        })
    }
}

/// The entries that an attempt at a bulk left unsent.
enum Unsent {
    All(Cause),
    Some(Vec<Failed>),
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use outrigger_component::pubsub::{Event, Subscribe};
    use outrigger_component::{Metadata, Setup};
    use outrigger_offload::{INLINE, done_at_once};
    use outrigger_policy::resiliency::Resiliency;
    use outrigger_redact::Secrets;
    use outrigger_runtime::metrics::SidecarMetrics;
    use outrigger_runtime::resilience::Resilience;
    use outrigger_telemetry::metrics::Metrics;
    use outrigger_telemetry::trace::Tracer;

    use super::super::Topics;
    use super::*;

    async fn pubsubs() -> PubSubs {
        let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
        let resilience = Arc::new(Resilience::new(Resiliency::none(), metrics));
        let pubsubs = PubSubs::new("app".into(), resilience, Tracer::off());
        let setup = Setup {
            metadata: Metadata::new("broker", []).unwrap(),
            app_id: "app".to_owned(),
        };
        let catalog = outrigger_components::builtin();
        let entry = catalog.pubsub.find("pubsub.in-memory", "v1").unwrap();
        let broker = entry.build(setup).await.unwrap();
        let _placed = pubsubs.insert(
            "broker",
            broker,
            Topics::default(),
            String::new(),
            Secrets::default(),
        );
        pubsubs
    }

    fn request() -> RequestContext {
        RequestContext {
            protocol: Protocol::Http,
            trace: Parent::default(),
            baggage: None,
        }
    }

    fn entry(id: usize, payload: Payload) -> BulkPayload {
        BulkPayload {
            id: id.to_string(),
            payload,
        }
    }

    #[tokio::test]
    async fn wraps_large_events_off_thread() {
        let pubsubs = pubsubs().await;
        for (size, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let payload = Payload {
                data: vec![b'x'; size].into(),
                ..Payload::default()
            };
            let target = || pubsubs.target("broker", "orders", &Pairs::new()).unwrap();
            let publishing = target().publish(payload, request());
            let (was_at_once, published) = done_at_once(publishing).await;
            assert_eq!(was_at_once, at_once, "{size}");
            published.unwrap();

            let payload = Payload {
                data: vec![b'x'; size - ENVELOPE].into(),
                ..Payload::default()
            };
            let bulk = vec![entry(1, payload)];
            let metadata = Pairs::new();
            let publishing = target().publish_bulk(bulk, &metadata, request(), "bulk");
            let (was_at_once, published) = done_at_once(publishing).await;
            assert_eq!(was_at_once, at_once, "a bulk of {size}");
            published.unwrap();
        }
    }

    #[tokio::test]
    async fn wraps_many_small_events_off_thread() {
        let pubsubs = pubsubs().await;
        let most = INLINE / ENVELOPE;
        for (count, at_once) in [(most, true), (most + 1, false)] {
            let target = pubsubs.target("broker", "orders", &Pairs::new()).unwrap();
            let bulk = (0..count).map(|id| entry(id, Payload::default())).collect();
            let metadata = Pairs::new();
            let publishing = target.publish_bulk(bulk, &metadata, request(), "bulk");
            let (was_at_once, published) = done_at_once(publishing).await;
            assert_eq!(was_at_once, at_once, "{count} entries");
            published.unwrap();
        }
    }

    #[tokio::test]
    async fn bulk_metadata_counts_for_each_entry() {
        let pubsubs = pubsubs().await;
        let metadata = Pairs::from([("a".to_owned(), "x".repeat((8 << 20) - 1))]);
        for (count, is_refused) in [(8, false), (9, true)] {
            let target = pubsubs.target("broker", "orders", &Pairs::new()).unwrap();
            let bulk = (0..count).map(|id| entry(id, Payload::default())).collect();
            let published = target.publish_bulk(bulk, &metadata, request(), "bulk").await;
            let refused = matches!(published, Err(PublishError::Metadata { .. }));
            assert_eq!(refused, is_refused, "{count}: {published:?}");
        }
    }

    #[tokio::test]
    async fn entry_metadata_overrides_bulk_metadata() {
        let pubsubs = pubsubs().await;
        let subscribe = Subscribe {
            topic: "orders".to_owned(),
            metadata: Pairs::new(),
            in_flight: NonZeroUsize::MIN.saturating_add(1),
        };
        let component = pubsubs.broker("broker").unwrap().component().clone();
        let mut subscription = component.subscribe(subscribe).await.unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let metadata = Pairs::from([pair("cloudevent.type", "all"), pair("ttlInSeconds", "60")]);
        let bare = entry(1, Payload::default());
        let own = Payload {
            metadata: Pairs::from([pair("CloudEvent.Type", "own")]),
            ..Payload::default()
        };
        let target = pubsubs.target("broker", "orders", &Pairs::new()).unwrap();
        let bulk = vec![bare, entry(2, own)];
        target
            .publish_bulk(bulk, &metadata, request(), "bulk")
            .await
            .unwrap();
        for kind in ["all", "own"] {
            let Some(Event::Message(delivery)) = subscription.next().await else {
                panic!("no message")
            };
            let event: serde_json::Value = serde_json::from_slice(&delivery.message.data).unwrap();
            assert_eq!(event["type"], kind);
            assert!(event["expiration"].is_string(), "{event}");
            delivery.receipt.acknowledge();
        }
    }
}
