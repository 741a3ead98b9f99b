//! `/v1.0/actors/…`.

mod body;
mod reminders;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use outrigger_blocks_actors::actors::{API_CALL, ActorCall, Caller, TimerRequest};
use outrigger_policy::path::canonical;
use outrigger_policy::path::clean_escaped_path;
use outrigger_runtime::call::{AppStatus, Reply};
use outrigger_transport::body::Body;
use outrigger_transport::headers::{internal_to_http, strip_hop_by_hop, strip_identities};
use outrigger_transport::response::{bytes_response, empty_response};

pub(super) use reminders::ROUTES as REMINDERS;

use super::route::{Endpoint, Handler, HandlerResult};
use super::unread::body_read;
use super::{Context, HttpApi, json};
use crate::error::{ApiError, JSON};

const GROUP: &str = "actors";
const STATES: &[&str] = &["actors", "{actorType}", "{actorId}", "state"];
const STATE: &[&str] = &["actors", "{actorType}", "{actorId}", "state", "{key}"];
const METHOD: &[&str] = &["actors", "{actorType}", "{actorId}", "method", "{method}"];
const TIMER: &[&str] = &["actors", "{actorType}", "{actorId}", "timers", "{name}"];
/// Route name of actor calls.
pub(super) const CALL: &str = "InvokeActor";
const INVOKE: Handler = |api, context| Box::pin(api.invoke_actor(context));
const TRANSACT: Handler = |api, context| Box::pin(api.actor_transaction(context));
const ADD_TIMER: Handler = |api, context| Box::pin(api.register_actor_timer(context));

pub(super) static ROUTES: &[Endpoint] = &[
    method(Method::GET),
    method(Method::POST),
    method(Method::PUT),
    method(Method::DELETE),
    v1(Method::POST, STATES, "ExecuteActorStateTransaction", TRANSACT),
    v1(Method::PUT, STATES, "ExecuteActorStateTransaction", TRANSACT),
    v1(Method::GET, STATE, "GetActorState", |api, context| {
        Box::pin(api.actor_state(context))
    }),
    v1(Method::POST, TIMER, "RegisterActorTimer", ADD_TIMER),
    v1(Method::PUT, TIMER, "RegisterActorTimer", ADD_TIMER),
    v1(Method::DELETE, TIMER, "UnregisterActorTimer", |api, context| {
        Box::pin(api.unregister_actor_timer(context))
    }),
];

const fn method(method: Method) -> Endpoint {
    v1(method, METHOD, CALL, INVOKE)
}

const fn v1(method: Method, path: &'static [&'static str], name: &'static str, handler: Handler) -> Endpoint {
    Endpoint::v1(method, GROUP, path, name, handler)
}

impl HttpApi {
    async fn invoke_actor(&self, context: Context<'_>) -> HandlerResult {
        let (kind, id, method) = three(&context)?;
        let method = canonical(&method)
            .map_err(|error| ApiError::bad_request(format!("invalid request: {error}")))?
            .into_owned();
        let Context { request, span, .. } = context;
        span.actor_method(&kind, &id, &method);
        let (head, body) = request.into_parts();
        let body = body.collect_up_to(usize::MAX).await;
        let body = body.map_err(|error| body_read(&error))?;
        let content_type = head.headers.get(CONTENT_TYPE).cloned();
        let mut metadata = head.headers;
        strip_hop_by_hop(&mut metadata);
        strip_identities(&mut metadata);
        metadata.remove(CONTENT_LENGTH);
        metadata.remove(http::header::HOST);
        metadata.insert(API_CALL, HeaderValue::from_static("true"));
        let call = ActorCall {
            kind,
            id,
            method,
            query: head.uri.query().unwrap_or_default().to_owned(),
            content_type,
            metadata,
            from_grpc: false,
            body,
            trace: span.as_parent(),
            caller: Caller::Own,
        };
        let reply = self.actors.invoke(&call).await?;
        Ok(answered(reply))
    }

    async fn actor_state(&self, mut context: Context<'_>) -> HandlerResult {
        let (kind, id, key) = three(&context)?;
        context.describe_actor(&kind, &id);
        let Some(item) = self.actors.read_state(&kind, &id, &key).await? else {
            return Ok(empty_response(StatusCode::NO_CONTENT));
        };
        if item.data.is_empty() {
            return Ok(empty_response(StatusCode::NO_CONTENT));
        }
        let mut response = bytes_response(StatusCode::OK, JSON, item.data);
        for (name, value) in item.metadata {
            let name = HeaderName::try_from(format!("metadata.{name}"));
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                response.headers_mut().insert(name, value);
            }
        }
        Ok(response)
    }

    async fn actor_transaction(&self, mut context: Context<'_>) -> HandlerResult {
        let (kind, id) = (context.parameter(0)?, context.parameter(1)?);
        context.describe_actor(&kind, &id);
        let body = whole(context).await?;
        let read = json::read(body, body::operations).await;
        let operations = read.map_err(json::undecoded)?;
        self.actors.change_state(&kind, &id, operations).await?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }

    async fn register_actor_timer(&self, mut context: Context<'_>) -> HandlerResult {
        let (kind, id, name) = three(&context)?;
        context.describe_actor(&kind, &id);
        let body = whole(context).await?;
        let read = json::read(body, body::timer).await;
        let read = read.map_err(json::undecoded)?;
        let request = TimerRequest {
            kind,
            id,
            name,
            ..read
        };
        self.actors.register_timer(request).await?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }

    async fn unregister_actor_timer(&self, mut context: Context<'_>) -> HandlerResult {
        let (kind, id, name) = three(&context)?;
        context.describe_actor(&kind, &id);
        self.actors.unregister_timer(&kind, &id, &name).await?;
        Ok(empty_response(StatusCode::NO_CONTENT))
    }
}

impl Context<'_> {
    /// Records the actor in the span.
    fn describe_actor(&mut self, kind: &str, id: &str) {
        if self.span.is_recording() {
            let path = clean_escaped_path(self.request.uri().path());
            let statement = format!("{} {path}", self.request.method());
            self.span.actor_resource(kind, id, &statement);
        }
    }
}

fn three(context: &Context<'_>) -> Result<(String, String, String), ApiError> {
    Ok((
        context.parameter(0)?,
        context.parameter(1)?,
        context.parameter(2)?,
    ))
}

async fn whole(context: Context<'_>) -> Result<Bytes, ApiError> {
    // The API has already limited the body.
    let body = context.request.into_body().collect_up_to(usize::MAX).await;
    body.map_err(|error| body_read(&error))
}

/// The actor's response, unchanged.
fn answered(reply: Reply) -> Response<Body> {
    let mut response = Response::new(reply.body);
    if let AppStatus::Http(code) = reply.status
        && let Ok(status) = StatusCode::from_u16(code)
    {
        *response.status_mut() = status;
    }
    let mut headers = internal_to_http(reply.headers);
    if let Some(content_type) = reply.content_type {
        headers.insert(CONTENT_TYPE, content_type);
    }
    *response.headers_mut() = headers;
    response
}
