//! Publishing.

use std::sync::Arc;

use outrigger_blocks::pubsub::{BulkPayload, Payload, Protocol, PublishError, RequestContext};
use outrigger_telemetry::trace::Baggage;
use outrigger_wire::runtime::v1::{BulkPublishRequest, BulkPublishResponse, PublishEventRequest};
use tonic::{Request, Response, Status};

use super::DaprService;
use crate::error::ApiError;
use crate::grpc::groups::Group;
use crate::grpc::{CurrentSpan, describe_publish};

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[
    Group::of("publish", "v1", &["PublishEvent", "BulkPublishEvent"]),
    Group::of("publish", "v1alpha1", &["BulkPublishEventAlpha1"]),
];

impl DaprService {
    pub(super) async fn event_publish(
        &self,
        request: Request<PublishEventRequest>,
    ) -> Result<Response<()>, Status> {
        describe_publish(&request, &request.get_ref().topic);
        let caller = request_context(&request);
        let message = request.into_inner();
        let target = self
            .blocks
            .pubsub
            .target(&message.pubsub_name, &message.topic, &message.metadata);
        let payload = Payload {
            data: message.data,
            content_type: message.data_content_type,
            metadata: message.metadata,
        };
        let published = match target {
            Ok(target) => target.publish(payload, caller).await,
            Err(error) => Err(error),
        };
        published.map_err(|error| self.unpublished(error))?;
        Ok(Response::new(()))
    }

    /// `span`: the span name of each entry.
    pub(super) async fn event_publish_bulk(
        &self,
        request: Request<BulkPublishRequest>,
        span: &str,
    ) -> Result<Response<BulkPublishResponse>, Status> {
        describe_publish(&request, &request.get_ref().topic);
        let caller = request_context(&request);
        let message = request.into_inner();
        let entries = message.entries.into_iter().map(|entry| BulkPayload {
            id: entry.entry_id,
            payload: Payload {
                data: entry.event,
                content_type: entry.content_type,
                metadata: entry.metadata,
            },
        });
        let target = self
            .blocks
            .pubsub
            .target(&message.pubsub_name, &message.topic, &message.metadata);
        let published = match target {
            Ok(target) => {
                let entries = entries.collect();
                target
                    .publish_bulk(entries, &message.metadata, caller, span)
                    .await
            }
            Err(error) => Err(error),
        };
        published.map_err(|error| self.unpublished(error))?;
        Ok(Response::new(BulkPublishResponse::default()))
    }

    fn unpublished(&self, error: PublishError) -> Status {
        self.fail(&ApiError::from(error))
    }
}

fn request_context<T>(request: &Request<T>) -> RequestContext {
    let span = request.extensions().get::<CurrentSpan>();
    // Invalid baggage was refused earlier, or tracing is off.
    let baggage = Baggage::from_headers(request.metadata().as_ref()).ok().flatten();
    RequestContext {
        protocol: Protocol::Grpc,
        trace: span.map(|span| span.0.clone()).unwrap_or_default(),
        baggage: baggage.map(|(text, _)| Arc::from(text)),
    }
}
