use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use http::Method;
use outrigger_component::bindings::{Event, EventHandler, Invoke};
use outrigger_component::{Error, Kind, Pairs};
use outrigger_delivery::Limits;
use outrigger_go_json::{Html, canonical};
use outrigger_offload::offload;
use outrigger_policy::resiliency::Outcome;
use outrigger_runtime::app::{AppChannel, AppError};
use outrigger_runtime::call::{AppStatus, Call};
use outrigger_runtime::delivery::Inbox;
use outrigger_runtime::resilience::{Attempt, grpc_outcome};
use outrigger_telemetry::trace::{Parent, TraceContext};
use outrigger_transport::headers;
use outrigger_wire::runtime::v1::binding_event_response::BindingEventConcurrency;
use outrigger_wire::runtime::v1::{BindingEventRequest, BindingEventResponse};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::input::Input;
use super::{Bindings, LOG};

const ON_EVENT: &str = "/dapr.proto.runtime.v1.AppCallback/OnBindingEvent";
/// Events of one binding in flight to the app.
const MAX_IN_FLIGHT: usize = 128;
/// Events of one binding in flight or waiting for a retry.
const MAX_UNSETTLED: usize = 1024;
/// App responses of one binding whose output bindings are being called while further events are read.
pub(super) const MAX_FOLLOWED: usize = 128;
/// How long a response waits for one of these slots.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(10);
/// Output bindings called concurrently for one response.
const MAX_AT_ONCE: usize = 64;
pub(super) const LIMITS: Limits = Limits {
    in_flight: MAX_IN_FLIGHT,
    unsettled: MAX_UNSETTLED,
};

/// An event being delivered to the app.
pub(super) struct Outgoing {
    data: Bytes,
    metadata: Pairs,
    trace: Parent,
}

/// The outcome of an attempt.
pub(super) enum Reply {
    Http {
        status: u16,
        body: Bytes,
    },
    Grpc(BindingEventResponse),
    /// The app was unreachable, or returned an error over gRPC.
    Failed(String),
}

/// Delivers the events of one input binding to the app.
pub(super) struct Delivery {
    pub(super) bindings: Arc<Bindings>,
    pub(super) input: Arc<Input>,
    pub(super) inbox: Inbox<(), Outgoing, Reply>,
    /// Whether the app speaks gRPC.
    pub(super) grpc: bool,
    /// Permits for [`MAX_FOLLOWED`] responses.
    pub(super) followed: Arc<Semaphore>,
}

impl EventHandler for Delivery {
    fn handle(&self, event: Event) -> BoxFuture<'_, Result<Bytes, Error>> {
        Box::pin(async move {
            let started = Instant::now();
            let result = self.deliver(event).await;
            self.input.handled(result.is_ok(), started.elapsed());
            result.map_err(|text| {
                tracing::debug!(
                    target: LOG,
                    "error from app consumer for binding [{}]: {text}",
                    self.input.name
                );
                Error::new(Kind::Unavailable, text)
            })
        })
    }
}

/// The trace that the event's metadata name, if any.
fn parent(metadata: &Pairs) -> Parent {
    if let Some(binary) = metadata.get("grpc-trace-bin") {
        return Parent {
            context: TraceContext::from_grpc_trace_bin(binary.as_bytes()),
            ..Parent::default()
        };
    }
    let text = |name| metadata.get(name).map_or("", String::as_str);
    Parent::from_text(text("traceparent"), text("tracestate"))
}

fn not_invoked(cause: impl std::fmt::Display) -> String {
    format!("error invoking app: {cause}")
}

impl Delivery {
    async fn deliver(&self, event: Event) -> Result<Bytes, String> {
        let parent = parent(&event.metadata);
        let tracer = &self.bindings.dependencies.tracer;
        let name = &self.input.name;
        let mut span = if self.grpc {
            tracer.input_binding(name, ON_EVENT, &parent)
        } else {
            tracer.input_binding(name, &format!("POST /{name}"), &parent)
        };
        let outgoing = Outgoing {
            data: event.data,
            metadata: event.metadata,
            trace: span.as_parent(),
        };
        let pending = self.inbox.offer(None, outgoing).await;
        match pending.settled().await.map_err(not_invoked)? {
            Reply::Http { status, body } => {
                span.http_status(status);
                if (200..300).contains(&status) {
                    return Ok(body);
                }
                Err(format!(
                    "fails to send binding event to http app channel, status code: {status} body: {}",
                    String::from_utf8_lossy(&body)
                ))
            }
            Reply::Grpc(answer) => Ok(self.follow(answer).await),
            Reply::Failed(cause) => {
                if self.grpc {
                    span.grpc_failed(&cause);
                }
                Err(not_invoked(cause))
            }
        }
    }

    /// Calls the output bindings that the app's response names; their errors are logged.
    async fn follow(&self, answer: BindingEventResponse) -> Bytes {
        let parallel = answer.concurrency() == BindingEventConcurrency::Parallel;
        let BindingEventResponse {
            states,
            to,
            data: answered,
            ..
        } = answer;
        if !states.is_empty() {
            tracing::warn!(
                target: LOG,
                "states in the app's response to an event of binding {} ignored: save them with the state API",
                self.input.name
            );
        }
        drop(states);
        if to.is_empty() {
            return answered;
        }
        let call = Arc::new(Invoke {
            operation: "create".to_owned(),
            data: passed_on(answered.clone()).await,
            metadata: Pairs::new(),
        });
        if parallel {
            self.call_all(to, call).await;
            return answered;
        }
        for name in to {
            if let Err(error) = self.bindings.invoke(&name, &call).await {
                tracing::error!(target: LOG, "error executing app response: {error}");
                break;
            }
        }
        answered
    }

    /// Calls output bindings in the background, some concurrently.
    async fn call_all(&self, names: Vec<String>, call: Arc<Invoke>) {
        // The event is handled. Waiting longer would delay later events and the end of the input.
        let permit = timeout(FOLLOW_TIMEOUT, Arc::clone(&self.followed).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            tracing::error!(
                target: LOG,
                "{} output bindings in the app's response to an event of {} not called, because those of {MAX_FOLLOWED} earlier \
                 responses are still pending; give them a timeout",
                names.len(),
                self.input.name
            );
            return;
        };
        let bindings = Arc::clone(&self.bindings);
        let calling = stream::iter(names).for_each_concurrent(MAX_AT_ONCE, move |name| {
            let (bindings, call) = (Arc::clone(&bindings), Arc::clone(&call));
            async move {
                if let Err(error) = bindings.invoke(&name, &call).await {
                    tracing::error!(target: LOG, "error invoking output binding {name}: {error}");
                }
            }
        });
        self.bindings.tasks.spawn(async move {
            calling.await;
            drop(permit);
        });
    }
}

/// The data of an app's response for output bindings; large data is converted off the serving thread. As in
/// Dapr, data that is not JSON is dropped.
async fn passed_on(given: Bytes) -> Bytes {
    let data = offload(given.len(), move || canonical(&given, Html::Escape)).await;
    data.unwrap_or_else(|_| Bytes::from_static(b"null"))
}

/// One attempt; `max_answer` is the longest response of the app, bytes.
pub(super) async fn attempt(
    input: &Input,
    app: &AppChannel,
    max_answer: usize,
    event: Arc<Outgoing>,
    limit: Attempt,
) -> (Reply, Outcome) {
    let attempted = if app.is_grpc() {
        limit.within(pin!(over_grpc(input, app, &event))).await
    } else {
        limit
            .within(pin!(over_http(input, app, max_answer, &event)))
            .await
    };
    attempted.unwrap_or_else(|| {
        let cause = "context deadline exceeded".to_owned();
        (Reply::Failed(cause), Outcome::TimedOut)
    })
}

async fn over_http(input: &Input, app: &AppChannel, max_answer: usize, event: &Outgoing) -> (Reply, Outcome) {
    let (route, data) = (input.route.clone(), event.data.clone().into());
    let call = Call::own(
        Method::POST,
        route,
        headers::from_pairs(&event.metadata),
        data,
        event.trace.clone(),
    );
    match post(app, call, max_answer).await {
        Ok((status, body)) => {
            let outcome = match status {
                200 => Outcome::Success,
                other => Outcome::Failure {
                    code: Some(i32::from(other)),
                },
            };
            (Reply::Http { status, body }, outcome)
        }
        Err(error) => {
            let failure = Outcome::Failure { code: None };
            (Reply::Failed(error.to_string()), failure)
        }
    }
}

async fn post(app: &AppChannel, call: Call, max_answer: usize) -> Result<(u16, Bytes), AppError> {
    let reply = app.invoke(call).await?;
    let AppStatus::Http(status) = reply.status else {
        return Err(AppError::NoChannel);
    };
    let body = reply.body.collect_up_to(max_answer).await;
    Ok((status, body.map_err(|error| AppError::Body(error.to_string()))?))
}

async fn over_grpc(input: &Input, app: &AppChannel, event: &Outgoing) -> (Reply, Outcome) {
    let request = BindingEventRequest {
        name: input.name.clone(),
        data: event.data.clone(),
        metadata: event.metadata.clone(),
    };
    match app.callback(ON_EVENT, &request, &event.trace).await {
        Ok(answer) => (Reply::Grpc(answer), Outcome::Success),
        Err(status) => {
            let outcome = grpc_outcome(status.code() as i32);
            (Reply::Failed(status.message().to_owned()), outcome)
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_offload::{INLINE, done_at_once};

    use super::*;

    #[tokio::test]
    async fn converts_large_responses_off_thread() {
        for (length, at_once) in [(INLINE, true), (INLINE + 1, false)] {
            let given = format!("\"{}\"", "x".repeat(length - 2));
            let (was_at_once, data) = done_at_once(passed_on(given.clone().into())).await;
            assert_eq!(was_at_once, at_once, "{length}");
            assert!(data == given);
        }
        assert_eq!(passed_on("no JSON".into()).await, "null");
    }
}
