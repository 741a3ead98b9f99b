//! Bulk delivery to gRPC apps.

use outrigger_cloudevents::BULK_TYPE;
use outrigger_cloudevents::content_type::{CLOUD_EVENT, OCTET_STREAM};
use outrigger_component::Pairs;
use outrigger_delivery::Verdict;
use outrigger_runtime::app::{AppChannel, Turn};
use outrigger_runtime::resilience::grpc_outcome;
use outrigger_telemetry::trace::Parent;
use outrigger_transport::headers;
use outrigger_wire::runtime::v1::topic_event_bulk_request_entry::Event as EntryEvent;
use outrigger_wire::runtime::v1::{
    TopicEventBulkRequest, TopicEventBulkRequestEntry, TopicEventBulkResponse,
};
use tonic::{Code, Status};

use super::{BulkResponse, Entry, IdentifiedEvent, dropped, written};
use crate::subscriptions::attempt::{failed, success};
use crate::subscriptions::incoming::PUBSUB_NAME;
use crate::subscriptions::spec::AppSubscription;
use crate::subscriptions::target::Target;
use crate::subscriptions::{LOG, message};

const ON_BULK: &str = "/dapr.proto.runtime.v1.AppCallback/OnBulkTopicEvent";
const ON_BULK_ALPHA: &str = "/dapr.proto.runtime.v1.AppCallbackAlpha/OnBulkTopicEventAlpha1";

pub(super) async fn call(
    target: &Target,
    app: &AppChannel,
    entries: &[Entry],
    trace: &Parent,
    turn: &Turn,
) -> BulkResponse {
    let request = match written(&target.wanted, entries, request).await {
        Ok(request) => request,
        Err(text) => return BulkResponse::all(failed(text, None)),
    };
    let metadata = Pairs::from([(PUBSUB_NAME.to_owned(), target.wanted.pubsub.clone())]);
    let ask = |path| {
        let metadata = headers::from_pairs(&metadata);
        app.callback_in::<TopicEventBulkResponse>(turn, path, &request, metadata, trace)
    };
    let is_unknown = |status: &Status| status.code() == Code::Unimplemented;
    let answer = match ask(ON_BULK).await {
        Err(status) if is_unknown(&status) => ask(ON_BULK_ALPHA).await,
        answer => answer,
    };
    match answer {
        Ok(answer) => {
            let statuses = answer.statuses.into_iter().map(|entry| {
                let said = match entry.status {
                    0 => success(Verdict::Acknowledge),
                    2 => dropped(&entry.entry_id),
                    other => failed(
                        format!("status {other} returned from app for entry {}", entry.entry_id),
                        None,
                    ),
                };
                (entry.entry_id, said)
            });
            BulkResponse::each(statuses)
        }
        Err(status) if is_unknown(&status) => {
            tracing::warn!(
                target: LOG,
                "non-retriable error returned from app while processing bulk pub/sub event: {status}"
            );
            BulkResponse::all(success(Verdict::Acknowledge))
        }
        Err(status) => {
            let text = format!("error returned from app while processing bulk pub/sub event: {status}");
            BulkResponse::all((Verdict::Reject(text), grpc_outcome(status.code() as i32)))
        }
    }
}

fn request(wanted: &AppSubscription, entries: &[IdentifiedEvent]) -> Result<TopicEventBulkRequest, String> {
    let first = entries.first().map(|(_, event)| event);
    let shown = entries.iter().map(|(id, event)| {
        let (body, default) = if wanted.raw {
            (EntryEvent::Bytes(event.payload.clone()), OCTET_STREAM)
        } else {
            (EntryEvent::CloudEvent(message::envelope(event)?), CLOUD_EVENT)
        };
        Ok(TopicEventBulkRequestEntry {
            entry_id: id.clone(),
            event: Some(body),
            content_type: event.content_type.as_deref().unwrap_or(default).to_owned(),
            metadata: event.metadata.clone(),
        })
    });
    Ok(TopicEventBulkRequest {
        id: uuid::Uuid::new_v4().to_string(),
        entries: shown.collect::<Result<_, String>>()?,
        metadata: Pairs::from([(PUBSUB_NAME.to_owned(), wanted.pubsub.clone())]),
        topic: first.map(|event| event.topic.to_string()).unwrap_or_default(),
        pubsub_name: wanted.pubsub.clone(),
        r#type: BULK_TYPE.to_owned(),
        path: first.map(|event| event.path.clone()).unwrap_or_default(),
    })
}
