//! Streaming subscriptions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use outrigger_blocks::subscriptions::{AppSubscription, Opened, Stream, StreamError, Subscriptions};
use outrigger_wire::runtime::v1::subscribe_topic_events_request_alpha1::SubscribeTopicEventsRequestType as RequestType;
use outrigger_wire::runtime::v1::subscribe_topic_events_response_alpha1::SubscribeTopicEventsResponseType as ResponseType;
use outrigger_wire::runtime::v1::{
    SubscribeTopicEventsRequestAlpha1, SubscribeTopicEventsRequestInitialAlpha1,
    SubscribeTopicEventsResponseAlpha1, SubscribeTopicEventsResponseInitialAlpha1, TopicEventRequest,
};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::codegen::BoxStream;
use tonic::{Code, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt};

use super::DaprService;
use crate::grpc::groups::Group;

/// Method groups, as API lists name them.
pub(super) const GROUPS: &[Group] = &[Group::of(
    "subscribe",
    "v1alpha1",
    &["SubscribeTopicEventsAlpha1"],
)];

/// Timeout of the first message of a stream.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);

impl DaprService {
    /// Serves a streaming subscription: the first client message names the topic; later ones acknowledge
    /// events by id.
    pub(super) async fn topic_events(
        &self,
        mut said: Streaming<SubscribeTopicEventsRequestAlpha1>,
    ) -> Result<Response<BoxStream<SubscribeTopicEventsResponseAlpha1>>, Status> {
        let subscriptions = Arc::clone(&self.blocks.subscriptions);
        let first = tokio::select! {
            first = in_time(said.message()) => first?,
            () = subscriptions.until_ended() => return Err(closed()),
        };
        let Some(first) = first else {
            return Ok(Response::new(Box::pin(stream::empty())));
        };
        let wanted = initial(first)?;
        let Opened { stream, events } = subscriptions.open_stream(wanted).await.map_err(refused)?;
        let session = Session {
            said,
            events,
            open: Open {
                subscriptions,
                stream,
            },
            ended: false,
        };
        let began = ResponseType::InitialResponse(SubscribeTopicEventsResponseInitialAlpha1 {});
        let events = stream::unfold(session, Session::next);
        let all = stream::iter([Ok(response(began))]).chain(events);
        Ok(Response::new(Box::pin(all)))
    }
}

/// Waits for the first message with a timeout. The stream does not count against a limit before it, so
/// without a timeout clients could open any number.
pub(super) async fn in_time<T>(
    message: impl Future<Output = Result<Option<T>, Status>>,
) -> Result<Option<T>, Status> {
    match timeout(FIRST_MESSAGE, message).await {
        Ok(first) => first,
        Err(_) => Err(Status::deadline_exceeded(format!(
            "the first message of the stream, the initial request, did not arrive within {FIRST_MESSAGE:?}"
        ))),
    }
}

fn initial(first: SubscribeTopicEventsRequestAlpha1) -> Result<AppSubscription, Status> {
    let Some(RequestType::InitialRequest(request)) = first.subscribe_topic_events_request_type else {
        return Err(Status::unknown("initial request is required"));
    };
    let SubscribeTopicEventsRequestInitialAlpha1 {
        pubsub_name,
        topic,
        metadata,
        dead_letter_topic,
    } = request;
    if pubsub_name.is_empty() {
        return Err(Status::unknown("pubsubName is required"));
    }
    if topic.is_empty() {
        return Err(Status::unknown("topic is required"));
    }
    let dead_letter = dead_letter_topic.unwrap_or_default();
    Ok(AppSubscription::streaming(
        &pubsub_name,
        &topic,
        &dead_letter,
        metadata,
    ))
}

fn refused(error: StreamError) -> Status {
    match &error {
        StreamError::NotFound(_) => {
            let details = ErrorDetails::with_error_info("DAPR_PUBSUB_NOT_FOUND", "dapr.io", HashMap::new());
            Status::with_error_details(Code::InvalidArgument, error.to_string(), details)
        }
        StreamError::TooMany => Status::resource_exhausted(error.to_string()),
        StreamError::Refused { .. } => Status::unknown(error.to_string()),
        StreamError::Stopped => closed(),
    }
}

fn closed() -> Status {
    Status::unknown("stream closed")
}

fn response(kind: ResponseType) -> SubscribeTopicEventsResponseAlpha1 {
    SubscribeTopicEventsResponseAlpha1 {
        subscribe_topic_events_response_type: Some(kind),
    }
}

/// A stream and its client.
struct Session {
    said: Streaming<SubscribeTopicEventsRequestAlpha1>,
    events: mpsc::Receiver<TopicEventRequest>,
    open: Open,
    ended: bool,
}

/// An open stream. Dropping it closes the stream and returns unacknowledged events to the broker.
struct Open {
    subscriptions: Arc<Subscriptions>,
    stream: Arc<Stream>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.subscriptions.close_stream(&self.stream);
    }
}

type Item = Result<SubscribeTopicEventsResponseAlpha1, Status>;

impl Session {
    /// The next message to the client; reads its acknowledgements while waiting.
    async fn next(mut self) -> Option<(Item, Self)> {
        if self.ended {
            return None;
        }
        loop {
            tokio::select! {
                biased;
                said = self.said.message() => match said {
                    Ok(Some(request)) => if let Some(status) = self.on_request(request) {
                        return self.end(status);
                    },
                    Ok(None) | Err(_) => return None,
                },
                Some(event) = self.events.recv() => {
                    return Some((Ok(response(ResponseType::EventMessage(event))), self));
                }
                () = self.open.subscriptions.stream_ended(&self.open.stream) => return self.end(closed()),
            }
        }
    }

    fn end(mut self, status: Status) -> Option<(Item, Self)> {
        self.ended = true;
        Some((Err(status), self))
    }

    fn on_request(&self, request: SubscribeTopicEventsRequestAlpha1) -> Option<Status> {
        let Some(RequestType::EventProcessed(processed)) = request.subscribe_topic_events_request_type else {
            return Some(Status::unknown("duplicate initial request received"));
        };
        let status = processed.status.unwrap_or_default().status;
        self.open.stream.answered(&processed.id, status);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_stream_times_out() {
        let begin = Instant::now();
        let refused = in_time::<()>(pending()).await.unwrap_err();
        assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused:?}");
        assert!(begin.elapsed() >= FIRST_MESSAGE);
        for said in [Some(1), None] {
            assert_eq!(in_time(ready(Ok(said))).await.unwrap(), said);
        }
    }
}
