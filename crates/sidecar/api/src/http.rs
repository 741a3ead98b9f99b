//! The HTTP API: the pipeline of a request, in the order of the contract.

mod actors;
mod bindings;
mod configuration;
mod conversation;
mod cors;
mod crypto;
mod invoke;
mod jobs;
mod json;
mod lock;
mod message;
mod meta;
mod publish;
mod route;
mod secrets;
mod state;
mod subtle;
mod unread;
mod verb;
mod workflow;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use futures::future::BoxFuture;
use http::header::{AUTHORIZATION, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use outrigger_blocks::Blocks;
use outrigger_blocks::invoke::Invoker;
use outrigger_blocks_actors::actors::Actors;
use outrigger_blocks_actors::workflow::Workflows;
use outrigger_component::Pairs;
use outrigger_component::middleware::Peer;
use outrigger_policy::escape::path_unescape;
use outrigger_policy::path::clean_escaped_path;
use outrigger_policy::request_path;
use outrigger_runtime::life::{Readiness, Shutdown};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::middleware::Chain;
use outrigger_telemetry::apilog::{ApiLog, HttpCall};
use outrigger_telemetry::trace::{
    Baggage, BaggageError, Parent, Span, SpanKind, Status as SpanStatus, Tracer,
};
use outrigger_transport::body::{self, Body, BoxError};
use outrigger_transport::headers::names;
use outrigger_transport::listen::{Client, Handler};
use outrigger_transport::response::text_response;

pub use cors::Cors;
#[cfg(feature = "fuzzing")]
pub use publish::fuzz_bulk as fuzz_publish_bulk;
pub(crate) use route::groups;
pub use route::{Endpoint, Routes};
#[cfg(feature = "fuzzing")]
pub use state::fuzz_bodies as fuzz_state_bodies;

use self::route::{Match, Parameters};
use super::error::ApiError;
use crate::admit::Token;
use crate::metadata::Metadata;

/// The HTTP API of a sidecar.
pub struct HttpApi {
    /// App id of the caller: `--app-id`.
    pub app_id: Arc<str>,
    /// The routes served.
    pub routes: Routes,
    /// Largest body, bytes; `None` = no limit.
    pub max_body: Option<usize>,
    /// The token that callers must present.
    pub token: Token,
    /// Cross-origin rules.
    pub cors: Cors,
    /// Starts spans.
    pub tracer: Tracer,
    /// Counts requests.
    pub metrics: Arc<SidecarMetrics>,
    /// Logs requests.
    pub log: ApiLog,
    /// Service invocation.
    pub invoker: Arc<Invoker>,
    /// All building blocks except invocation.
    pub blocks: Blocks,
    /// Actor calls, state, reminders and timers.
    pub actors: Arc<Actors>,
    /// Starts, ends and queries workflow instances.
    pub workflows: Arc<Workflows>,
    /// The metadata block.
    pub metadata: Arc<Metadata>,
    /// The conditions of readiness.
    pub readiness: Readiness,
    /// Ends the process.
    pub shutdown: Shutdown,
}

/// Metadata and health only, without token, limit or CORS.
pub struct PublicApi(pub Arc<HttpApi>);

/// A request in the handler of its route.
struct Context<'a> {
    request: Request<Body>,
    /// The cleaned path.
    path: &'a str,
    span: &'a mut Span,
    endpoint: &'static Endpoint,
    parameters: Parameters<'a>,
}

impl Context<'_> {
    /// Records the called store in the span.
    fn describe_database(&mut self, system: &'static str, store: &str) {
        if self.span.is_recording() {
            let statement = format!("{} {}", self.request.method(), self.path);
            self.span.database(system, &statement, store);
        }
    }
}

/// A request before its handler, by reference: a future that owned it would reserve its space twice and copy
/// it.
struct RequestRef<'a> {
    request: &'a mut Request<Body>,
    /// The cleaned path.
    path: &'a str,
    span: &'a mut Span,
}

impl<'a> RequestRef<'a> {
    fn take(self, matched: Match<'a>) -> Context<'a> {
        Context {
            request: std::mem::take(self.request),
            path: self.path,
            span: self.span,
            endpoint: matched.endpoint,
            parameters: matched.parameters,
        }
    }
}

impl Handler for HttpApi {
    async fn handle(self: Arc<Self>, client: Arc<Client>, mut request: Request<Body>) -> Response<Body> {
        if let Err(other) = verb::standardise(&mut request) {
            let answer = self.error(ApiError::method_not_implemented(&other));
            return self.early(request.headers(), answer);
        }
        if is_about_server(&request) {
            return self.early(request.headers(), not_found());
        }
        self.serve(&client, &mut request).await
    }
}

impl Handler for PublicApi {
    async fn handle(self: Arc<Self>, _client: Arc<Client>, mut request: Request<Body>) -> Response<Body> {
        if let Err(other) = verb::standardise(&mut request) {
            return self.0.error(ApiError::method_not_implemented(&other));
        }
        if is_about_server(&request) {
            return not_found();
        }
        let path = clean_escaped_path(request.uri().path()).into_owned();
        match self.0.routes.find(request.method(), &path) {
            Some(matched) if matched.endpoint.public => {
                let mut span = Span::none();
                let request = RequestRef {
                    request: &mut request,
                    path: &path,
                    span: &mut span,
                };
                self.0.dispatch(request.take(matched)).await
            }
            _ => not_found(),
        }
    }
}

impl HttpApi {
    async fn serve(&self, client: &Client, request: &mut Request<Body>) -> Response<Body> {
        let path = clean_escaped_path(request.uri().path()).into_owned();
        if let Some(limit) = self.max_body {
            body::limit(request.body_mut(), limit);
        }
        let method = request.method().clone();
        let started = Instant::now();
        let received = request.body().known_length().unwrap_or(0);
        let matched = self.routes.find(&method, &path);
        let response = self.traced(client, request, &path, matched).await;
        let status = response.status();
        let elapsed = started.elapsed();
        let size = response.body().known_length().unwrap_or(0);
        self.metrics
            .http_server(&method, &path, status.as_u16(), elapsed, received, size);
        response
    }

    async fn traced(
        &self,
        client: &Client,
        request: &mut Request<Body>,
        path: &str,
        matched: Option<Match<'_>>,
    ) -> Response<Body> {
        if !self.tracer.enabled() || path.contains("/healthz") {
            let parent = Parent::from_http(request.headers());
            let span = &mut match self.tracer.enabled() {
                true => Span::none(),
                false => Span::of(parent),
            };
            let context = RequestRef { request, path, span };
            return self.guarded(client, matched, context).await;
        }
        let baggage = match baggage(request.headers()) {
            Ok(baggage) => baggage,
            Err(error) => return text_response(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let parent = Parent::from_http(request.headers());
        let mut span = self.tracer.start(SpanKind::Client, path, &parent);
        if span.is_recording() {
            let shown = in_spans(path);
            if shown != path {
                span.set_name(shown.to_string());
            }
            describe(&mut span, client, request, &shown);
        }
        let context = RequestRef {
            request,
            path,
            span: &mut span,
        };
        let mut response = self.guarded(client, matched, context).await;
        let status = response.status();
        span.set("dapr.status_code", status.as_u16().to_string());
        if status.as_u16() >= 400 {
            let reason = status.canonical_reason().unwrap_or("");
            span.set_status(SpanStatus::Error(format!("Code({}): {reason}", status.as_u16())));
        }
        if !response.headers().contains_key(names::TRACEPARENT) {
            span.inject_http(response.headers_mut());
        }
        if let Some(baggage) = baggage {
            response.headers_mut().insert(names::BAGGAGE, baggage);
        }
        response
    }

    /// Adds CORS headers to a response sent before [`HttpApi::guarded`].
    fn early(&self, request: &HeaderMap, mut answer: Response<Body>) -> Response<Body> {
        self.cors.headers_for(request).put(answer.headers_mut());
        answer
    }

    async fn guarded(
        &self,
        client: &Client,
        matched: Option<Match<'_>>,
        context: RequestRef<'_>,
    ) -> Response<Body> {
        let request = &mut *context.request;
        let cors_headers = match self.cors.admit(request) {
            cors::Admission::Answer(response) => return response,
            cors::Admission::Continue(cors_headers) => cors_headers,
        };
        let open = matched.as_ref().is_some_and(|m| m.endpoint.is_health());
        let mut response = if !open && !self.token.admits_http(request.headers()) {
            text_response(StatusCode::UNAUTHORIZED, "invalid api token")
        } else {
            request.headers_mut().remove(names::API_TOKEN);
            match self.blocks.middlewares.server.current() {
                None => self.route(matched, context).await,
                Some(chain) => Box::pin(self.through(&chain, client, matched, context)).await,
            }
        };
        cors_headers.put(response.headers_mut());
        response
    }

    /// Passes a request through the middleware, which sees its canonical path, then routes the request that
    /// they return.
    async fn through(
        &self,
        chain: &Chain,
        client: &Client,
        matched: Option<Match<'_>>,
        context: RequestRef<'_>,
    ) -> Response<Body> {
        let RequestRef { request, path, span } = context;
        let mut request = std::mem::take(request);
        if let Some(address) = client.address {
            request.extensions_mut().insert(Peer(address));
        }
        let shown = canonical_path(&request, matched.as_ref());
        let Some(uri) = with_path(request.uri(), &shown) else {
            return text_response(StatusCode::BAD_REQUEST, "the path of the request cannot be read");
        };
        let given = request.uri().path().to_owned();
        *request.uri_mut() = uri;
        let end = |mut request: Request<Body>| -> BoxFuture<'_, Result<Response<Body>, BoxError>> {
            Box::pin(async move {
                let other;
                let (path, matched) = if request.uri().path() == shown {
                    // The path as given: gRPC apps receive the leading slash of their method.
                    if let Some(uri) = with_path(request.uri(), &given) {
                        *request.uri_mut() = uri;
                    }
                    (path, matched)
                } else {
                    other = clean_escaped_path(request.uri().path()).into_owned();
                    (&*other, self.routes.find(request.method(), &other))
                };
                let request = &mut request;
                Ok(self.route(matched, RequestRef { request, path, span }).await)
            })
        };
        match chain.run(request, end).await {
            Ok(response) => response,
            Err(error) => text_response(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    async fn route(&self, matched: Option<Match<'_>>, context: RequestRef<'_>) -> Response<Body> {
        if self.log.enabled {
            return Box::pin(self.logged(matched, context)).await;
        }
        self.answer(matched, context).await
    }

    /// Logs a call that passed the pipeline; refused calls are not logged.
    async fn logged(&self, matched: Option<Match<'_>>, context: RequestRef<'_>) -> Response<Body> {
        let started = Instant::now();
        let request = &*context.request;
        let method = request.method().clone();
        let path = context.path;
        let user_agent = request.headers().get(USER_AGENT).cloned();
        let endpoint = matched.as_ref().map(|m| m.endpoint);
        let route: Cow<'_, str> = match endpoint.unwrap_or(&invoke::ROUTE) {
            endpoint if std::ptr::eq(endpoint, &invoke::ROUTE) => invoke::logged_name(request).into(),
            endpoint => Cow::Borrowed(endpoint.name),
        };
        let response = self.answer(matched, context).await;
        self.log.http(&HttpCall {
            method: method.as_str(),
            path,
            route: &route,
            user_agent: user_agent.as_ref().and_then(|v| v.to_str().ok()),
            duration: started.elapsed(),
            code: response.status().as_u16(),
            size: response.body().known_length().unwrap_or(0),
            health: endpoint.is_some_and(Endpoint::is_health),
        });
        response
    }

    async fn answer(&self, matched: Option<Match<'_>>, context: RequestRef<'_>) -> Response<Body> {
        let matched = match matched {
            Some(matched) => matched,
            None if self.routes.offers_invoke() => Match {
                endpoint: &invoke::ROUTE,
                parameters: Parameters::default(),
            },
            None => return not_found(),
        };
        self.dispatch(context.take(matched)).await
    }

    async fn dispatch(&self, context: Context<'_>) -> Response<Body> {
        match (context.endpoint.handler)(self, context).await {
            Ok(response) => response,
            Err(error) => self.error(error),
        }
    }

    /// Counts an error response by its code.
    fn error(&self, error: ApiError) -> Response<Body> {
        if !error.is_plain() {
            self.metrics.error_code(error.counted_as(), error.category);
        }
        error.into_response()
    }
}

fn not_found() -> Response<Body> {
    text_response(StatusCode::NOT_FOUND, "404 page not found")
}

/// Whether a client asks about the server itself (`OPTIONS *`, RFC 9110 section 9.3.7). No app is called.
fn is_about_server(request: &Request<Body>) -> bool {
    request.method() == Method::OPTIONS && request.uri().path() == "*"
}

/// The canonical path of a request, as middleware sees it.
fn canonical_path(request: &Request<Body>, matched: Option<&Match<'_>>) -> String {
    let path = request.uri().path();
    match matched {
        Some(matched) if matched.endpoint.is_actor_call() => request_path::of_actor_call(path),
        Some(matched) if !matched.endpoint.is_invocation() => request_path::of_route(path),
        _ => {
            let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok());
            request_path::of_invocation(path, text(names::APP_ID), text(AUTHORIZATION))
        }
    }
}

/// The same URI with another path; `None` if the path is invalid.
fn with_path(uri: &Uri, path: &str) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(joined(path, uri)?);
    Uri::from_parts(parts).ok()
}

/// A path with the query of a URI.
fn joined(path: &str, uri: &Uri) -> Option<PathAndQuery> {
    match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")).ok(),
        None => PathAndQuery::try_from(path).ok(),
    }
}

/// The `metadata.NAME` parameters of a query string; the first of each name counts.
fn query_metadata(query: Option<&str>) -> Pairs {
    let mut metadata = Pairs::new();
    for (name, value) in url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        if let Some(name) = name.strip_prefix("metadata.") {
            metadata
                .entry(name.to_owned())
                .or_insert_with(|| value.into_owned());
        }
    }
    metadata
}

/// The baggage to return: several headers joined; an error if one is not W3C baggage.
fn baggage(headers: &HeaderMap) -> Result<Option<HeaderValue>, BaggageError> {
    let found = Baggage::from_headers(headers)?;
    // The parsed text came from header values and is a valid one.
    Ok(found.and_then(|(text, _)| HeaderValue::try_from(text).ok()))
}

/// An invocation target, or a path with one, as spans show it. A URL loses its query and user info; in a
/// cleaned path its scheme has one slash.
fn in_spans(target: &str) -> Cow<'_, str> {
    let target = target.split_once('?').map_or(target, |(target, _)| target);
    if !target.contains('@') && !target.contains("%40") {
        return Cow::Borrowed(target);
    }
    let decoded = path_unescape(target).unwrap_or(Cow::Borrowed(target));
    let schemes = ["http:/", "https:/"].into_iter();
    let starts = schemes.filter_map(|scheme| Some(decoded.find(scheme)? + scheme.len()));
    let shown = starts.min().and_then(|start| {
        let (before, url) = decoded.split_at(start);
        let authority = url.trim_start_matches('/').split('/').next()?;
        let (user, _) = authority.rsplit_once('@')?;
        Some(format!("{before}{}", url.replacen(user, "***", 1)))
    });
    shown.map_or(Cow::Borrowed(target), Cow::Owned)
}

fn describe(span: &mut Span, client: &Client, request: &Request<Body>, path: &str) {
    let method = request.method().as_str();
    span.set("dapr.protocol", "http");
    span.set("dapr.api", format!("{method} {path}"));
    span.set("http.request.method", method.to_owned());
    // Queries and user info may hold keys and tokens, which must not appear in traces.
    span.set("url.full", in_spans(request.uri().path()).into_owned());
    if let Some(address) = client.address {
        span.set("server.address", address.ip().to_string());
        span.set("server.port", address.port().to_string());
    }
    for (name, value) in request.headers() {
        if name.as_str().starts_with("dapr-")
            && *name != names::API_TOKEN
            && let Ok(value) = value.to_str()
        {
            let value = match *name == names::APP_ID {
                true => in_spans(value),
                false => Cow::Borrowed(value),
            };
            span.set_default(name.as_str().to_owned(), value.into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_hide_query_and_user_info() {
        for (target, expected) in [
            ("app", "app"),
            ("http://h:1/x?key=1", "http://h:1/x"),
            ("http://me:pw@h:1/x?key=1", "http://***@h:1/x"),
            ("https://me:p@w@h", "https://***@h"),
            (
                "/v1.0/invoke/http:/me:pw@h/method/m",
                "/v1.0/invoke/http:/***@h/method/m",
            ),
            (
                "/v1.0/invoke/http%3A%2F%2Fme%3Apw%40h/method/m",
                "/v1.0/invoke/http://***@h/method/m",
            ),
            ("/v1.0/state/s/me@h", "/v1.0/state/s/me@h"),
            ("/v1.0/state/s/http:/h/me%40h", "/v1.0/state/s/http:/h/me%40h"),
        ] {
            assert_eq!(in_spans(target), expected);
        }
    }
}
