//! Calls to the app for its actors.

use std::pin::pin;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use outrigger_go_json::{Html, canonical};
use outrigger_offload::{INLINE, offload};
use outrigger_policy::resiliency::{Key, Outcome};
use outrigger_resources::value::truthy;
use outrigger_runtime::app::AppError;
use outrigger_runtime::call::{AppStatus, Call, Reply};
use outrigger_runtime::resilience::Attempts;
use outrigger_telemetry::trace::Parent;
use outrigger_transport::body::Body;
use outrigger_wire::internals::v1::Reminder;
use serde::Serialize;
use serde_json::value::RawValue;

use super::call::Message;
use super::{ActorError, Actors, CANCEL, REENTRANCY_ID};

/// `google.protobuf.BytesValue`: JSON of timers and reminders.
pub(super) const BYTES_VALUE: &str = "type.googleapis.com/google.protobuf.BytesValue";

/// Body of a timer call.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TimerBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    callback: &'a str,
    due_time: &'a str,
    period: &'a str,
}

/// Body of a reminder call.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReminderBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a RawValue>,
    due_time: &'a str,
    period: &'a str,
}

impl Actors {
    /// Calls the app in an actor's turn, within the policy's timeout. `reentry`: the reentrancy id generated
    /// for the turn.
    pub(super) async fn call_app(
        &self,
        message: &Message<'_>,
        reentry: Option<&str>,
    ) -> Result<Reply, ActorError> {
        let resilience = &self.with.resilience;
        let rules = resilience.policies.load().actor(message.kind());
        let key = Key::actor(message.id());
        let attempts = Attempts::new(rules.after_lock.as_deref(), key, &resilience.metrics);
        let called = attempts.run(async |limit| {
            let attempt = async {
                if self.has_streams() {
                    return Box::pin(self.call_stream(message, reentry)).await;
                }
                let call = request(message, reentry).await?;
                message.begins();
                self.app_reply(call).await
            };
            let result = limit
                .within(pin!(attempt))
                .await
                .unwrap_or(Err(ActorError::Timeout));
            let outcome = match &result {
                Ok(_) => Outcome::Success,
                Err(ActorError::Timeout) => Outcome::TimedOut,
                Err(_) => Outcome::Final,
            };
            (result, outcome)
        });
        called
            .await
            .unwrap_or_else(|refused| Err(ActorError::Invoke(refused.to_string())))
    }

    /// The app's response with its whole body; anything but success is an error.
    async fn app_reply(&self, call: Call) -> Result<Reply, ActorError> {
        let method = call.method.clone();
        let reply = self.app_head(call).await?;
        self.success(reply, method).await
    }

    /// The app's response, once its head has arrived.
    async fn app_head(&self, call: Call) -> Result<Reply, ActorError> {
        let app = self.with.app.as_ref();
        let app = app.ok_or_else(|| ActorError::Invoke(AppError::NoChannel.to_string()))?;
        let reply = app.invoke(call).await;
        reply.map_err(|error| ActorError::Invoke(error.to_string()))
    }

    /// Reads the body of a successful response.
    async fn success(&self, mut reply: Reply, method: String) -> Result<Reply, ActorError> {
        let body = std::mem::take(&mut reply.body);
        let body = body.collect_up_to(self.with.max_message).await;
        let body =
            body.map_err(|error| ActorError::Invoke(format!("failed to read response data: {error}")))?;
        check(&reply.status, method, &body)?;
        reply.body = body.into();
        Ok(reply)
    }

    /// Deactivates an actor in the app.
    pub(super) async fn deactivate_in_app(&self, kind: &str, id: &str) -> Result<(), ActorError> {
        if self.has_streams() {
            return self.deactivate_over_stream(kind, id).await;
        }
        let mut call = Call::own(
            Method::DELETE,
            format!("actors/{kind}/{id}"),
            HeaderMap::new(),
            Body::Empty,
            Parent::default(),
        );
        call.content_type = Some(HeaderValue::from_static("application/x-protobuf"));
        let method = call.method.clone();
        let reply = self.app_head(call).await?;
        // The body is not read, so an app that never finishes it does not delay the deactivation.
        check(&reply.status, method, b"")
    }
}

/// The error for a response status; `body` is its text.
fn check(status: &AppStatus, method: String, body: &[u8]) -> Result<(), ActorError> {
    let (code, text) = match status {
        AppStatus::Http(200) | AppStatus::Grpc { code: 0, .. } => return Ok(()),
        AppStatus::Http(404) => {
            let text = format!("{method}: the app answered 404; see that its actor type has the method");
            return Err(ActorError::NoMethod(text));
        }
        AppStatus::Http(code) => (i32::from(*code), body),
        AppStatus::Grpc { code, message, .. } => (*code, message.as_bytes()),
    };
    let text = String::from_utf8_lossy(text);
    let error = format!("error from actor service: ({code}) {text}");
    Err(ActorError::Invoke(error))
}

/// Whether an actor's response cancels its timer or reminder.
pub(super) fn is_cancelled(reply: &Reply) -> bool {
    let cancel = reply.headers.get(CANCEL).and_then(|value| value.to_str().ok());
    cancel.is_some_and(truthy)
}

async fn request(message: &Message<'_>, reentry: Option<&str>) -> Result<Call, ActorError> {
    let mut call = match message {
        Message::Call(call) => {
            let mut metadata = call.metadata.clone();
            metadata.remove(CONTENT_TYPE);
            Call {
                method: format!("actors/{}/{}/method/{}", call.kind, call.id, call.method),
                octets: None,
                verb: Some(Method::PUT),
                query: call.query.clone(),
                content_type: call.content_type.clone(),
                type_url: String::new(),
                metadata,
                from_grpc: call.from_grpc,
                body: call.body.clone().into(),
                trace: call.trace.clone(),
            }
        }
        Message::Due(reminder, trace, _) => {
            let mut call = Box::pin(due_call(reminder)).await?;
            call.trace = (*trace).clone();
            call
        }
    };
    if let Some(id) = reentry.and_then(|id| HeaderValue::try_from(id).ok()) {
        call.metadata.insert(REENTRANCY_ID, id);
    }
    Ok(call)
}

/// Builds the app call for a due timer or reminder. Large data are decoded on the offload threads.
async fn due_call(reminder: &Reminder) -> Result<Call, ActorError> {
    let size = reminder.data.as_ref().map_or(0, |data| data.value.len());
    if size <= INLINE {
        return due(reminder);
    }
    let reminder = reminder.clone();
    offload(size, move || due(&reminder)).await
}

fn due(reminder: &Reminder) -> Result<Call, ActorError> {
    let Reminder {
        actor_type,
        actor_id,
        name,
        period,
        due_time,
        callback,
        ..
    } = reminder;
    let unreadable = |error: &dyn std::fmt::Display| {
        ActorError::Invoke(format!(
            "cannot decode the data of {name} of actor {actor_type}||{actor_id}: {error}"
        ))
    };
    let data = match &reminder.data {
        None => None,
        Some(any) => Some(json(any).map_err(|error| unreadable(&error))?),
    };
    let data = data.filter(|json| !json.is_empty());
    let data = data.map(|json| canonical(&json, Html::Escape)).transpose();
    let data = data.map_err(|error| unreadable(&error))?;
    let data: Option<&RawValue> = data
        .as_deref()
        .map(serde_json::from_slice)
        .transpose()
        .map_err(|error| unreadable(&error))?;
    let (place, body) = if reminder.is_timer {
        let body = TimerBody {
            data,
            callback,
            due_time,
            period,
        };
        ("timer", serde_json::to_vec(&body))
    } else {
        let body = ReminderBody {
            data,
            due_time,
            period,
        };
        ("remind", serde_json::to_vec(&body))
    };
    // Serialization of strings and JSON cannot fail.
    let body = Bytes::from(body.unwrap_or_default());
    let method = format!("actors/{actor_type}/{actor_id}/method/{place}/{name}");
    let (metadata, trace) = (HeaderMap::new(), Parent::default());
    Ok(Call::own(Method::PUT, method, metadata, body.into(), trace))
}

/// Data as JSON; a `BytesValue` contains JSON already.
pub(super) fn json(any: &prost_types::Any) -> Result<Vec<u8>, prost::DecodeError> {
    // prost has its own message type for bytes.
    if any.type_url.ends_with("google.protobuf.BytesValue") {
        return <Vec<u8> as prost::Message>::decode(any.value.as_slice());
    }
    Ok(any.value.clone())
}

#[cfg(test)]
mod tests {
    use outrigger_offload::done_at_once;

    use super::*;

    #[tokio::test]
    async fn offloads_large_data() {
        for (size, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let json = format!("\"{}\"", "x".repeat(size - 2));
            let reminder = Reminder {
                name: "r".to_owned(),
                data: Some(prost_types::Any {
                    type_url: String::new(),
                    value: json.clone().into_bytes(),
                }),
                ..Reminder::default()
            };
            let (was_at_once, call) = done_at_once(due_call(&reminder)).await;
            assert_eq!(was_at_once, at_once, "{size}");
            let body = call.unwrap().body.collect_up_to(usize::MAX).await.unwrap();
            assert!(String::from_utf8_lossy(&body).contains(&json));
        }
    }
}
