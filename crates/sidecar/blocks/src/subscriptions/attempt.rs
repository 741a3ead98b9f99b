//! One attempt to deliver an event to the app.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use outrigger_cloudevents::content_type::CLOUD_EVENT;
use outrigger_delivery::Verdict;
use outrigger_go_json::first_from_slice;
use outrigger_policy::resiliency::Outcome;
use outrigger_resources::json::{JsonObject, Object, value};
use outrigger_runtime::app::{AppChannel, AppError, Turn};
use outrigger_runtime::call::{AppStatus, Call};
use outrigger_runtime::resilience::grpc_outcome;
use outrigger_telemetry::trace::{Parent, Span};
use outrigger_wire::runtime::v1::TopicEventResponse;
use outrigger_wire::runtime::v1::topic_event_response::TopicEventResponseStatus;
use serde::de::MapAccess;
use tonic::Code;

use super::incoming::Incoming;
use super::metrics::{DROP, Labels, RETRY, labels};
use super::target::Target;
use super::{LOG, message};

const ON_EVENT: &str = "/dapr.proto.runtime.v1.AppCallback/OnTopicEvent";

/// The app asked to drop the event.
pub(super) const DROPPED: Verdict = Verdict::Drop {
    why: "the app dropped it",
    by_app: true,
};
/// The app has no handler for the event.
pub(super) const NOT_FOUND: Verdict = Verdict::Drop {
    why: "the app answered 404",
    by_app: false,
};

/// A failed attempt; the policy counts it by the app's status, if there is one.
pub(super) fn failed(why: impl Into<String>, code: Option<i32>) -> (Verdict, Outcome) {
    (Verdict::Reject(why.into()), Outcome::Failure { code })
}

/// A verdict that the policy counts as success.
pub(super) fn success(verdict: Verdict) -> (Verdict, Outcome) {
    (verdict, Outcome::Success)
}

/// An HTTP app's response.
#[derive(Default)]
struct AppResponse {
    status: String,
}

impl<'de> Object<'de> for AppResponse {
    const NAME: &'static str = "an object with status";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let known = name.eq_ignore_ascii_case("status");
        if known {
            self.status = value(map)?;
        }
        Ok(known)
    }
}

impl Target {
    pub(super) async fn over_http(&self, app: &AppChannel, event: &Incoming) -> (Verdict, Outcome) {
        let mut span = self.span(event);
        let call = call(
            event,
            event.headers(&self.wanted.pubsub),
            event.data.clone(),
            CLOUD_EVENT,
            event.app_trace(span.as_parent()),
        );
        let started = Instant::now();
        let answer = post(app, call, self.dependencies().max_answer).await;
        let (status, body) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.count(event, RETRY, started);
                let text =
                    format!("error returned from app channel while sending pub/sub event to app: {error}");
                span.grpc_failed(&text);
                return failed(text, None);
            }
        };
        span.http_status(status);
        let (verdict, outcome) = read_http(event, status, &body);
        if status < 400 {
            note(&mut span, &verdict);
        }
        self.count(event, labels(&verdict), started);
        (verdict, outcome)
    }

    pub(super) async fn over_grpc(&self, app: &AppChannel, event: &Arc<Incoming>) -> (Verdict, Outcome) {
        let mut span = self.span(event);
        let request = match message::written(event, &self.wanted.pubsub).await {
            Ok(request) => request,
            Err(text) => {
                self.count(event, RETRY, Instant::now());
                return failed(format!("event {}: {text}", event.id), None);
            }
        };
        let metadata = event.headers(&self.wanted.pubsub);
        let trace = event.app_trace(span.as_parent());
        let started = Instant::now();
        let answer = app
            .callback_with::<TopicEventResponse>(ON_EVENT, &request, metadata, &trace)
            .await;
        match answer {
            Ok(answer) => {
                let (verdict, outcome) = self.read_status(event, answer.status, started);
                note(&mut span, &verdict);
                (verdict, outcome)
            }
            Err(status) if status.code() == Code::Unimplemented => {
                span.grpc_failed(status.message());
                self.count(event, DROP, started);
                tracing::warn!(
                    target: LOG,
                    "non-retriable error returned from app while processing pub/sub event {}: {status}",
                    event.id
                );
                success(Verdict::Acknowledge)
            }
            Err(status) => {
                span.grpc_failed(status.message());
                self.count(event, RETRY, started);
                let text = format!(
                    "error returned from app while processing pub/sub event {}: {status}",
                    event.id
                );
                (Verdict::Reject(text), grpc_outcome(status.code() as i32))
            }
        }
    }

    /// Reads the status of a gRPC or stream response.
    pub(super) fn read_status(&self, event: &Incoming, status: i32, started: Instant) -> (Verdict, Outcome) {
        let (verdict, outcome) = match TopicEventResponseStatus::try_from(status) {
            Ok(TopicEventResponseStatus::Success) => success(Verdict::Acknowledge),
            Ok(TopicEventResponseStatus::Drop) => {
                warn_dropped(event);
                success(DROPPED)
            }
            Ok(TopicEventResponseStatus::Retry) => {
                let text = format!(
                    "RETRY status returned from app while processing pub/sub event {}",
                    event.id
                );
                failed(text, None)
            }
            Err(_) => {
                let text = format!(
                    "unknown status returned from app while processing pub/sub event {}: {status}",
                    event.id
                );
                failed(text, None)
            }
        };
        self.count(event, labels(&verdict), started);
        (verdict, outcome)
    }

    pub(super) fn span(&self, event: &Incoming) -> Span {
        self.dependencies()
            .tracer
            .pubsub_delivery(&event.topic, &event.trace)
    }

    pub(super) fn count(&self, event: &Incoming, labels: Labels, started: Instant) {
        let elapsed = started.elapsed();
        self.metrics()
            .event(&self.wanted.pubsub, &event.topic, labels, elapsed);
    }
}

/// Marks the span of a delivery as failed if the response status does not show it.
pub(super) fn note(span: &mut Span, verdict: &Verdict) {
    if let Verdict::Reject(why) = verdict {
        span.grpc_failed(why);
    }
}

/// Reads an HTTP response.
fn read_http(event: &Incoming, status: u16, body: &Bytes) -> (Verdict, Outcome) {
    match status {
        200..300 => read_answer(event, body),
        404 => {
            tracing::error!(
                target: LOG,
                "non-retriable error returned from app while processing pub/sub event {}: {}. status code returned: 404",
                event.id,
                String::from_utf8_lossy(body)
            );
            success(NOT_FOUND)
        }
        _ => {
            let text = format!(
                "retriable error returned from app while processing pub/sub event {}, topic: {}, body: {}. status code \
                 returned: {status}",
                event.id,
                event.topic,
                String::from_utf8_lossy(body)
            );
            tracing::warn!(target: LOG, "{text}");
            failed(text, Some(status.into()))
        }
    }
}

/// A body that cannot be parsed counts as success.
fn read_answer(event: &Incoming, body: &[u8]) -> (Verdict, Outcome) {
    let JsonObject(answer) = first_from_slice::<JsonObject<AppResponse>>(body).unwrap_or_default();
    match answer.status.as_str() {
        "" | "SUCCESS" => success(Verdict::Acknowledge),
        "DROP" => {
            warn_dropped(event);
            success(DROPPED)
        }
        "RETRY" => {
            let text = format!(
                "RETRY status returned from app while processing pub/sub event {}",
                event.id
            );
            failed(text, None)
        }
        other => {
            let text = format!(
                "unknown status returned from app while processing pub/sub event {}, status: {other}",
                event.id
            );
            failed(text, None)
        }
    }
}

fn warn_dropped(event: &Incoming) {
    tracing::warn!(
        target: LOG,
        "DROP status returned from app while processing pub/sub event {}",
        event.id
    );
}

/// The request that posts `body` to the event's path.
pub(super) fn call(
    event: &Incoming,
    headers: HeaderMap,
    body: Bytes,
    content_type: &'static str,
    trace: Parent,
) -> Call {
    let (path, query) = event.path.split_once('?').unwrap_or((&event.path, ""));
    let path = path.trim_start_matches('/').to_owned();
    Call {
        content_type: Some(HeaderValue::from_static(content_type)),
        query: query.to_owned(),
        ..Call::own(Method::POST, path, headers, body.into(), trace)
    }
}

/// Posts a call; returns the app's status and body.
pub(super) async fn post(app: &AppChannel, call: Call, max_answer: usize) -> Result<(u16, Bytes), AppError> {
    let turn = app.turn().await?;
    post_in(turn, app, call, max_answer).await
}

/// Like `post`, with a concurrency permit already taken.
pub(super) async fn post_in(
    turn: Turn,
    app: &AppChannel,
    call: Call,
    max_answer: usize,
) -> Result<(u16, Bytes), AppError> {
    let reply = Box::pin(app.invoke_in(turn, call)).await?;
    let AppStatus::Http(status) = reply.status else {
        return Err(AppError::NoChannel);
    };
    let body = reply.body.collect_up_to(max_answer).await;
    Ok((status, body.map_err(|error| AppError::Body(error.to_string()))?))
}

#[cfg(test)]
mod tests {

    use super::*;

    fn event() -> Incoming {
        Incoming {
            path: "/a?b=c".to_owned(),
            ..Incoming::of(Bytes::new())
        }
    }

    #[test]
    fn reads_http_responses_as_contract() {
        let read =
            |status, body: &'static str| read_http(&event(), status, &Bytes::from_static(body.as_bytes())).0;
        for (status, body) in [
            (200, ""),
            (204, ""),
            (200, "no json"),
            (200, "[]"),
            (200, r#"{"status":""}"#),
            (200, r#"{"status":null}"#),
            (200, r#"{"status":5}"#),
            (200, r#"{"Status":"SUCCESS","Reason":"\ud800"}"#),
            (299, r#"{"status":"SUCCESS"} x"#),
        ] {
            assert_eq!(read(status, body), Verdict::Acknowledge, "{status} {body}");
        }
        for body in [r#"{"status":"DROP"}"#, r#"{"Status":"DROP"}"#] {
            assert!(matches!(read(200, body), Verdict::Drop { .. }), "{body}");
        }
        assert!(matches!(read(404, ""), Verdict::Drop { .. }));
        for (status, body) in [
            (200, r#"{"status":"RETRY"}"#),
            (200, r#"{"Status":"RETRY"}"#),
            (200, r#"{"STATUS":"RETRY","Message":null} {"#),
            (200, r#"{"status":"Success"}"#),
            (301, ""),
            (500, ""),
            (503, r#"{"status":"SUCCESS"}"#),
        ] {
            assert!(
                matches!(read(status, body), Verdict::Reject(_)),
                "{status} {body}"
            );
        }
        let (_, outcome) = read_http(&event(), 503, &Bytes::new());
        assert_eq!(outcome, Outcome::Failure { code: Some(503) });
    }

    #[test]
    fn route_may_have_query() {
        let call = call(
            &event(),
            HeaderMap::new(),
            Bytes::new(),
            CLOUD_EVENT,
            Parent::default(),
        );
        assert_eq!(call.target(), "/a?b=c");
    }
}
