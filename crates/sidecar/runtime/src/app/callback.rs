//! Calls of `AppCallback` on a gRPC app.

use std::time::Instant;

use bytes::Bytes;
use http::HeaderMap;
use outrigger_telemetry::trace::Parent;
use outrigger_transport::grpc;
use outrigger_transport::grpc::fields::{self, FLAT, Nested};
use outrigger_transport::headers::{internal_to_grpc, names};
use prost::Message;
use tonic::{Code, Status};

use super::{AppChannel, Transport, Turn};

static SUBSCRIPTIONS: Nested = Nested::of(&[(1, &SUBSCRIPTION)]);
/// A subscription with its rules.
static SUBSCRIPTION: Nested = Nested::of(&[(5, &FLAT)]);

impl AppChannel {
    /// Calls `path`, `/package.Service/Method`, as a child of `trace`.
    ///
    /// # Errors
    /// The app's status, or the reason that there is none.
    pub async fn callback<R: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
        trace: &Parent,
    ) -> Result<R, Status> {
        self.callback_with(path, message, HeaderMap::new(), trace).await
    }

    /// Like `callback`, with metadata, without those that describe the message.
    ///
    /// # Errors
    /// As [`AppChannel::callback`].
    pub async fn callback_with<R: Message + Default>(
        &self,
        path: &'static str,
        message: &impl Message,
        metadata: HeaderMap,
        trace: &Parent,
    ) -> Result<R, Status> {
        let turn = match &self.transport {
            Transport::Grpc(_) => self.turn().await.map_err(|error| error.status())?,
            _ => return Err(no_grpc()),
        };
        self.callback_in(&turn, path, message, metadata, trace).await
    }

    /// Like `callback_with`, with a concurrency permit already taken.
    ///
    /// # Errors
    /// As [`AppChannel::callback`].
    pub async fn callback_in<R: Message + Default>(
        &self,
        _turn: &Turn,
        path: &'static str,
        message: &impl Message,
        metadata: HeaderMap,
        trace: &Parent,
    ) -> Result<R, Status> {
        let Transport::Grpc(pool) = &self.transport else {
            return Err(no_grpc());
        };
        let frame = grpc::frame(message);
        let sent = (frame.len() - grpc::PREFIX) as u64;
        let mut request = grpc::request(path, frame.into());
        let mut metadata = internal_to_grpc(metadata, false);
        trace.inject_grpc(&mut metadata);
        if let Some(token) = self.token() {
            metadata.insert(names::API_TOKEN, token.clone());
        }
        request.headers_mut().extend(metadata);
        let started = Instant::now();
        let result = super::grpc::unary(self, pool, request, self.max_body).await;
        let code = result.as_ref().map_or_else(|e| e.status.code(), |_| Code::Ok);
        let received = result.as_ref().map_or(0, |a| a.message.len() as u64);
        self.metrics
            .grpc_client(path, code, started.elapsed(), sent, received);
        read(path, result.map_err(|failed| failed.status)?.message)
    }
}

/// Decodes the app's response; fails if it has more fields than a request may have.
fn read<R: Message + Default>(path: &str, answer: Bytes) -> Result<R, Status> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Status::internal(format!("failed to parse the app's response to {path}: {error}"))
    };
    fields::check(&answer, nested(path)).map_err(|error| unreadable(&error))?;
    R::decode(answer).map_err(|error| unreadable(&error))
}

/// The nested messages that count in a response.
fn nested(path: &str) -> &'static Nested {
    if path.ends_with("/ListTopicSubscriptions") {
        &SUBSCRIPTIONS
    } else {
        &FLAT
    }
}

fn no_grpc() -> Status {
    Status::unavailable("the app does not speak gRPC (see --app-protocol)")
}

#[cfg(test)]
mod tests {
    use outrigger_transport::grpc::fields::MAX_FIELDS;
    use outrigger_wire::common::v1::StateItem;
    use outrigger_wire::runtime::v1::{
        BindingEventResponse, ListTopicSubscriptionsResponse, TopicRoutes, TopicRule, TopicSubscription,
    };

    use super::*;

    fn is_read<R: Message + Default>(method: &str, answer: &R) -> bool {
        let path = format!("/dapr.proto.runtime.v1.AppCallback/{method}");
        match read::<R>(&path, answer.encode_to_vec().into()) {
            Ok(_) => true,
            Err(status) => {
                assert!(status.message().contains("failed to parse"), "{status:?}");
                false
            }
        }
    }

    #[test]
    fn limits_response_fields() {
        let states = |count| BindingEventResponse {
            states: vec![StateItem::default(); count],
            ..BindingEventResponse::default()
        };
        assert!(is_read("OnBindingEvent", &states(MAX_FIELDS)));
        assert!(!is_read("OnBindingEvent", &states(MAX_FIELDS + 1)));
        let list = |count, rules| ListTopicSubscriptionsResponse {
            subscriptions: vec![
                TopicSubscription {
                    routes: Some(TopicRoutes {
                        rules: vec![TopicRule::default(); rules],
                        ..TopicRoutes::default()
                    }),
                    ..TopicSubscription::default()
                };
                count
            ],
        };
        assert!(is_read("ListTopicSubscriptions", &list(2, MAX_FIELDS / 2 - 2)));
        assert!(!is_read("ListTopicSubscriptions", &list(2, MAX_FIELDS / 2)));
    }
}
