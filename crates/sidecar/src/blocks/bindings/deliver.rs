use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use outrigger_component::bindings::{Event, EventHandler, Invoke};
use outrigger_component::go_json::{Html, canonical};
use outrigger_component::offload::offload;
use outrigger_component::{Error, Kind, Pairs};
use outrigger_policy::resiliency::{Key, Outcome};
use outrigger_telemetry::trace::{Parent, Span, TraceContext};
use outrigger_wire::runtime::v1::binding_event_response::BindingEventConcurrency;
use outrigger_wire::runtime::v1::{BindingEventRequest, BindingEventResponse};
use tonic::Status;

use super::input::Input;
use super::{Bindings, LOG};
use crate::app::{AppChannel, AppError};
use crate::call::{AppStatus, Call};
use crate::resilience::{Attempts, grpc_outcome};

const ON_EVENT: &str = "/dapr.proto.runtime.v1.AppCallback/OnBindingEvent";

/// Takes the events of one input binding to the app.
pub(super) struct Delivery {
    pub(super) bindings: Arc<Bindings>,
    pub(super) app: Arc<AppChannel>,
    pub(super) input: Arc<Input>,
}

#[async_trait]
impl EventHandler for Delivery {
    async fn handle(&self, event: Event) -> Result<Bytes, Error> {
        let started = Instant::now();
        let parent = parent(&event.metadata);
        let tracer = &self.bindings.dependencies.tracer;
        let result = if self.app.is_grpc() {
            let span = tracer.input_binding(&self.input.name, ON_EVENT, &parent);
            self.over_grpc(event, span).await
        } else {
            let statement = format!("POST /{}", self.input.name);
            let span = tracer.input_binding(&self.input.name, &statement, &parent);
            self.over_http(event, span).await
        };
        self.input.handled(result.is_ok(), started.elapsed());
        result.map_err(|text| {
            tracing::debug!(
                target: LOG,
                "error from app consumer for binding [{}]: {text}",
                self.input.name
            );
            Error::new(Kind::Unavailable, text)
        })
    }
}

/// The trace an event belongs to, where its metadata say so.
fn parent(metadata: &Pairs) -> Parent {
    if let Some(binary) = metadata.get("grpc-trace-bin") {
        return Parent {
            context: TraceContext::from_grpc_trace_bin(binary.as_bytes()),
            state: None,
        };
    }
    let text = |name| metadata.get(name).map_or("", String::as_str);
    Parent::from_text(text("traceparent"), text("tracestate"))
}

fn not_invoked(cause: impl std::fmt::Display) -> String {
    format!("error invoking app: {cause}")
}

impl Delivery {
    fn attempts(&self) -> Attempts<'_> {
        let metrics = &self.bindings.dependencies.resilience.metrics;
        Attempts::new(self.input.policy.as_deref(), Key::NONE, metrics)
    }

    async fn over_http(&self, event: Event, mut span: Span) -> Result<Bytes, String> {
        let headers = headers(&event.metadata);
        let (event, headers, trace) = (&event, &headers, &span.as_parent());
        let answer = self.attempts().run(|limit| async move {
            let (route, data) = (self.input.route.clone(), event.data.clone().into());
            let call = Call::own(Method::POST, route, headers.clone(), data, trace.clone());
            match limit.within(pin!(self.post(call))).await {
                None => (Err(not_invoked("context deadline exceeded")), Outcome::TimedOut),
                Some(Err(error)) => (Err(not_invoked(error)), Outcome::Failure { code: None }),
                Some(Ok((200, body))) => (Ok((200, body)), Outcome::Success),
                Some(Ok((status, body))) => {
                    let code = Some(i32::from(status));
                    (Ok((status, body)), Outcome::Failure { code })
                }
            }
        });
        let (status, body) = answer.await.map_err(not_invoked)??;
        span.http_status(status);
        if (200..300).contains(&status) {
            return Ok(body);
        }
        Err(format!(
            "fails to send binding event to http app channel, status code: {status} body: {}",
            String::from_utf8_lossy(&body)
        ))
    }

    async fn post(&self, call: Call) -> Result<(u16, Bytes), AppError> {
        let reply = self.app.invoke(call).await?;
        let AppStatus::Http(status) = reply.status else {
            return Err(AppError::NoChannel);
        };
        let limit = self.bindings.dependencies.max_answer;
        let body = reply.body.collect_up_to(limit).await;
        Ok((status, body.map_err(|error| AppError::Body(error.to_string()))?))
    }

    async fn over_grpc(&self, event: Event, mut span: Span) -> Result<Bytes, String> {
        let request = BindingEventRequest {
            name: self.input.name.clone(),
            data: event.data,
            metadata: event.metadata,
        };
        let trace = span.as_parent();
        let (request, trace) = (&request, &trace);
        let answer = self.attempts().run(|limit| async move {
            let attempt = self.app.callback(ON_EVENT, request, trace);
            match limit.within(pin!(attempt)).await {
                None => (
                    Err(Status::deadline_exceeded("context deadline exceeded")),
                    Outcome::TimedOut,
                ),
                Some(Err(status)) => {
                    let outcome = grpc_outcome(status.code() as i32);
                    (Err(status), outcome)
                }
                Some(Ok(answer)) => (Ok(answer), Outcome::Success),
            }
        });
        match answer.await.map_err(not_invoked)? {
            Ok(answer) => Ok(self.follow(answer).await),
            Err(status) => {
                span.grpc_failed(status.message());
                Err(not_invoked(status.message()))
            }
        }
    }

    /// Calls the output bindings that the answer names; what goes wrong with them is logged.
    async fn follow(&self, answer: BindingEventResponse) -> Bytes {
        if !answer.states.is_empty() {
            tracing::warn!(
                target: LOG,
                "the app's answer to an event of the binding {} has states, which are not saved: save them with the \
                 state API",
                self.input.name
            );
        }
        if answer.to.is_empty() {
            return answer.data;
        }
        // What is not JSON is left out, as Dapr does.
        let given = answer.data.clone();
        let data = offload(given.len(), move || canonical(&given, Html::Escape)).await;
        let data = data.unwrap_or_else(|_| Bytes::from_static(b"null"));
        let call = |data: &Bytes| Invoke {
            operation: "create".to_owned(),
            data: data.clone(),
            metadata: Pairs::new(),
        };
        let parallel = answer.concurrency() == BindingEventConcurrency::Parallel;
        for name in answer.to {
            let (bindings, call) = (Arc::clone(&self.bindings), call(&data));
            if parallel {
                self.bindings.following.spawn(async move {
                    if let Err(error) = bindings.invoke(&name, &call).await {
                        tracing::error!(target: LOG, "error invoking output binding {name}: {error}");
                    }
                });
            } else if let Err(error) = bindings.invoke(&name, &call).await {
                tracing::error!(target: LOG, "error executing app response: {error}");
                break;
            }
        }
        answer.data
    }
}

/// Event metadata as headers; what cannot be one is left out.
fn headers(metadata: &Pairs) -> HeaderMap {
    let items = metadata.iter().filter_map(|(name, value)| {
        let name = HeaderName::try_from(name.as_str()).ok()?;
        Some((name, HeaderValue::try_from(value.as_str()).ok()?))
    });
    items.collect()
}
