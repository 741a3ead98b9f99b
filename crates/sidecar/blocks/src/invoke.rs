//! Service invocation: to this app, to another app through its sidecar, or to an HTTP endpoint outside.

mod endpoint;
mod repeat;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use outrigger_policy::resiliency::{AppPolicy, Builtin, Key, Outcome, Policy};
use outrigger_policy::target::{Target, TargetError};
use outrigger_runtime::app::{AppChannel, AppError};
use outrigger_runtime::call::{AppStatus, Call, Reply};
use outrigger_runtime::internal::{OpenRequest, RemoteError, call_remote, open_request};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::resilience::{Attempts, BreakerOpen, Deadline, Resilience};
use outrigger_transport::body::{Body, BoxError, Failure, REPLAY_LIMIT, Reason, TooMuchUnfinished};
use outrigger_transport::conn::mostly_has_body;
use outrigger_transport::headers::{names, strip_identities};
use outrigger_transport::peer::{CallError, Failed, Peers};
use outrigger_transport::stall::is_of_events;
use tonic::{Code, Status};

pub use endpoint::{Common as EndpointCommon, EndpointError, EndpointSpec, Endpoints};
use repeat::Repeatable;

const SWITCHING_PROTOCOLS: u16 = StatusCode::SWITCHING_PROTOCOLS.as_u16();
/// What callers are told of an app that answers 101.
const SWITCHED: &[u8] = b"the server switched to another protocol without a request to do so (status 101)";

/// Calls apps by id.
pub struct Invoker {
    /// This app's id.
    pub app_id: Arc<str>,
    /// This app's namespace.
    pub namespace: Arc<str>,
    /// Where callees see calls come from.
    pub forwarded: Forwarded,
    /// The app beside us; `None` without app port.
    pub app: Option<Arc<AppChannel>>,
    /// The other sidecars.
    pub peers: Arc<Peers>,
    /// HTTP endpoints outside.
    pub endpoints: Arc<Endpoints>,
    /// Retries, timeouts, breakers.
    pub resilience: Arc<Resilience>,
    /// Counts calls.
    pub metrics: Arc<SidecarMetrics>,
    /// Largest message of a peer, bytes.
    pub max_message: usize,
}

/// The `Forwarded` headers added to remote calls.
pub struct Forwarded {
    address: HeaderValue,
    host: Option<HeaderValue>,
    forwarded: HeaderValue,
    caller: HeaderValue,
    caller_namespace: HeaderValue,
}

impl Forwarded {
    /// For a host address and name, and the caller's identity.
    pub fn new(address: &str, host: &str, app_id: &str, namespace: &str) -> Self {
        let text = |text: &str| HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""));
        let quoted = if address.contains(':') {
            format!("\"[{address}]\"")
        } else {
            address.to_owned()
        };
        Self {
            address: text(address),
            host: (!host.is_empty()).then(|| text(host)),
            forwarded: text(&format!("for={quoted};by={quoted};host={host}")),
            caller: text(app_id),
            caller_namespace: text(namespace),
        }
    }

    fn add(&self, call: &mut Call, callee: &str) {
        let metadata = &mut call.metadata;
        metadata.append(names::FORWARDED_FOR, self.address.clone());
        if let Some(host) = &self.host {
            metadata.append(names::FORWARDED_HOST, host.clone());
        }
        metadata.append(http::header::FORWARDED, self.forwarded.clone());
        metadata.insert(names::CALLER_APP_ID, self.caller.clone());
        metadata.insert(names::CALLER_NAMESPACE, self.caller_namespace.clone());
        if let Ok(callee) = HeaderValue::try_from(callee) {
            metadata.insert(names::CALLEE_APP_ID, callee.clone());
            metadata.insert(names::DESTINATION_APP_ID, callee);
        }
    }
}

/// Why an invocation has no reply of an app.
#[derive(Debug, thiserror::Error)]
pub enum InvokeError {
    /// The target id cannot be one.
    #[error("{0}")]
    Target(String),
    /// The app beside us could not be asked.
    #[error(transparent)]
    App(#[from] AppError),
    /// An endpoint outside could not be asked.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Another sidecar refused, or could not be reached.
    #[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
    Peer(Status),
    /// Still failing after the built-in retries.
    #[error("failed to invoke target {target} after {retries} retries. Error: rpc error: code = {:?} desc = {}", .status.code(), .status.message())]
    Exhausted {
        /// The app id.
        target: String,
        /// Retries made.
        retries: u32,
        /// The last failure.
        status: Status,
    },
    /// Name resolution failed.
    #[error("{0}")]
    Resolve(String),
    /// A policy's time limit passed.
    #[error("context deadline exceeded")]
    Timeout,
    /// A circuit breaker is open.
    #[error("{0}")]
    Refused(String),
    /// The body of the request could not be read, or is over the limit.
    #[error("the body of the request cannot be sent: {0}")]
    Body(Reason),
    /// The method has bytes that only HTTP can carry.
    #[error(
        "the method is not UTF-8: it can be sent only to this sidecar's own app over HTTP, and to HTTP endpoints"
    )]
    NotText,
}

impl From<BreakerOpen> for InvokeError {
    fn from(refused: BreakerOpen) -> Self {
        Self::Refused(refused.to_string())
    }
}

impl InvokeError {
    /// What an HTTP caller is answered.
    pub fn http_status(&self) -> StatusCode {
        match self {
            Self::Peer(status) if status.code() == Code::PermissionDenied => StatusCode::FORBIDDEN,
            Self::NotText | Self::Endpoint(EndpointError::Outside(_)) => StatusCode::BAD_REQUEST,
            Self::Body(reason) if reason.is_malformed() => StatusCode::BAD_REQUEST,
            Self::App(AppError::Unfinished(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Self::App(AppError::Send { source, .. }) if source.is_too_large() => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// What holds for every attempt at a call.
struct CallSettings<'a> {
    policy: Option<&'a Policy>,
    key: Key<'a>,
    /// For connections to another sidecar, unless the user has rules for this target.
    builtin: Option<&'a Policy>,
    /// Set when the body of the request failed.
    failure: Failure,
}

impl CallSettings<'_> {
    /// Whether the user's retries name this status, as one that the app does answer.
    fn expects(&self, status: u16) -> bool {
        self.policy
            .and_then(Policy::retry)
            .is_some_and(|retry| retry.matching.names_http(status))
    }

    /// How an attempt at another sidecar failed: by the body of the request, by the connection, or there.
    fn failed(&self, error: RemoteError) -> Failed<InvokeError> {
        let RemoteError { status, connection } = error;
        if let Some(reason) = self.failure.reason() {
            return Failed {
                error: InvokeError::Body(reason.clone()),
                connection: false,
                repeatable: false,
            };
        }
        Failed {
            connection: connection || status.code() == Code::Unauthenticated,
            error: InvokeError::Peer(status),
            repeatable: false,
        }
    }

    /// A call that failed by its own body says so, and not what became of the connection.
    fn judged(&self, result: Result<Reply, InvokeError>) -> Result<Reply, InvokeError> {
        match self.failure.reason() {
            Some(reason) if result.is_err() => Err(InvokeError::Body(reason.clone())),
            _ => result,
        }
    }
}

impl Invoker {
    /// Whether `id` is this very app.
    fn is_self(&self, id: &str, namespace: Option<&str>) -> bool {
        *id == *self.app_id && namespace.is_none_or(|ns| *ns == *self.namespace)
    }

    /// Whether a call to `id` goes through another sidecar.
    #[inline]
    pub fn is_remote(&self, id: &str) -> bool {
        matches!(self.route(id), Ok(Route::Remote { .. }))
    }

    fn route<'a>(&'a self, id: &'a str) -> Result<Route<'a>, TargetError> {
        Ok(match Target::parse(id)? {
            Target::Url(url) => Route::Url(url),
            Target::App { id: name, .. } if self.endpoints.contains(name) => Route::Endpoint(name),
            Target::App { id, namespace } if self.is_self(id, namespace) => Route::Local,
            Target::App { id, namespace } => Route::Remote {
                id,
                namespace: namespace.unwrap_or(&self.namespace),
            },
        })
    }

    /// Sends a call to what `id` names and waits for the reply's head. Whatever an app answers is `Ok`.
    ///
    /// # Errors
    /// [`InvokeError`] when no app answered.
    pub async fn invoke(&self, id: &str, mut call: Call) -> Result<Reply, InvokeError> {
        let route = self
            .route(id)
            .map_err(|error| InvokeError::Target(error.to_string()))?;
        let (rules, builtin) = self.rules(id, &route);
        let base_url = match route {
            Route::Endpoint(name) => self.endpoints.base_url(name).unwrap_or_default(),
            _ => String::new(),
        };
        let in_http = match route {
            Route::Remote { .. } => false,
            Route::Local => self.app.as_ref().is_none_or(|app| !app.is_grpc()),
            Route::Endpoint(_) | Route::Url(_) => true,
        };
        if call.octets.is_some() && !in_http {
            return Err(InvokeError::NotText);
        }
        let method = call.method.clone();
        let key = match route {
            Route::Url(url) => Key::url(url, &method),
            Route::Endpoint(name) => Key::http_endpoint(name, &base_url),
            _ => Key::app(id, &method),
        };
        buffer_small(&mut call.body).await?;
        if call.body.known_length().is_none() && !call.verb.as_ref().is_some_and(mostly_has_body) {
            Box::pin(look_for_body(&mut call.body)).await;
        }
        let terms = CallSettings {
            policy: rules.policy.as_deref(),
            key,
            builtin: builtin.as_deref(),
            failure: Failure::watch(&mut call.body),
        };
        let mut reply = match route {
            Route::Remote { id, namespace } => Box::pin(self.remote(id, namespace, call, &terms)).await,
            other => {
                // Whoever calls through this sidecar alone cannot speak for another.
                strip_identities(&mut call.metadata);
                Box::pin(self.direct(&other, call, &terms)).await
            }
        }?;
        if let AppStatus::Http(SWITCHING_PROTOCOLS) = reply.status
            && !terms.expects(SWITCHING_PROTOCOLS)
        {
            let status = AppStatus::Http(StatusCode::BAD_GATEWAY.as_u16());
            reply = Reply::new(status, Bytes::from_static(SWITCHED).into());
            reply.content_type = Some(HeaderValue::from_static("text/plain; charset=utf-8"));
        }
        Ok(reply)
    }

    /// The user's policy for a target, and the built-in one for connections to another sidecar, unless the user has rules
    /// for it.
    fn rules(&self, id: &str, route: &Route<'_>) -> (AppPolicy, Option<Arc<Policy>>) {
        let policies = self.resilience.policies.load();
        let rules = policies.app(id);
        let is_covered = matches!(route, Route::Remote { .. }) && !rules.has_target;
        let builtin = is_covered.then(|| Arc::clone(policies.builtin(Builtin::ServiceRetries)));
        (rules, builtin)
    }

    async fn remote(
        &self,
        id: &str,
        namespace: &str,
        mut call: Call,
        terms: &CallSettings<'_>,
    ) -> Result<Reply, InvokeError> {
        self.forwarded.add(&mut call, id);
        let mut request = open_request(call, true).map_err(InvokeError::Peer)?;
        let attempts = Attempts::new(terms.policy, terms.key, &self.metrics);
        let called = attempts.run_with(&mut request, |request, limit| async move {
            let deadline = limit.deadline();
            let attempt = async {
                let mut reply = self.remote_attempts(id, namespace, &mut *request, terms).await?;
                begin(&mut reply, deadline).await;
                Ok(reply)
            };
            let result = deadline
                .within(pin!(attempt))
                .await
                .unwrap_or(Err(InvokeError::Timeout));
            let outcome = outcome(&result, request.can_repeat());
            (request, result, outcome)
        });
        called.await?
    }

    /// An attempt as the user's policy counts it: with the built-in retries on a lost connection inside, unless
    /// the user has rules for this app.
    async fn remote_attempts(
        &self,
        id: &str,
        namespace: &str,
        request: &mut OpenRequest,
        terms: &CallSettings<'_>,
    ) -> Result<Reply, InvokeError> {
        if terms.builtin.is_none() {
            let once = self.remote_once(id, namespace, request, terms);
            return once.await.map_err(|e| e.0);
        }
        let attempts = Attempts::new(terms.builtin, Key::NONE, &self.metrics);
        let called = attempts.run_with(request, |request, attempt| async move {
            let result = self.remote_once(id, namespace, &mut *request, terms).await;
            let outcome = match &result {
                Ok(_) => Outcome::Success,
                Err((_, true)) if request.can_repeat() => Outcome::Failure { code: None },
                Err(_) => Outcome::Final,
            };
            (request, (result, attempt.number - 1), outcome)
        });
        let (result, retries) = called.await?;
        result.map_err(|(error, connection)| match error {
            InvokeError::Peer(status) if connection => InvokeError::Exhausted {
                target: id.to_owned(),
                retries,
                status,
            },
            other => other,
        })
    }

    /// One attempt at one instance; the flag says that a new connection may help.
    async fn remote_once(
        &self,
        id: &str,
        namespace: &str,
        request: &mut OpenRequest,
        terms: &CallSettings<'_>,
    ) -> Result<Reply, (InvokeError, bool)> {
        let target = (id, namespace);
        let called = self
            .peers
            .call(target, 0, request, |request, instance| async move {
                self.metrics.invoke_sent(id);
                let started = Instant::now();
                let result = match call_remote(&instance, request, self.max_message).await {
                    Ok(reply) => {
                        self.metrics
                            .invoke_received(id, reply.status.code(), started.elapsed());
                        Ok(reply)
                    }
                    Err(error) => Err(terms.failed(error)),
                };
                (request, result)
            });
        called.await.map_err(|error| match error {
            CallError::Unresolved(error) => (InvokeError::Resolve(error.to_string()), false),
            CallError::Failed(failed) => (failed.error, failed.connection),
        })
    }

    /// The app beside us, or an endpoint outside.
    async fn direct(
        &self,
        route: &Route<'_>,
        call: Call,
        terms: &CallSettings<'_>,
    ) -> Result<Reply, InvokeError> {
        let mut call = Repeatable::new(call, terms.policy.is_some_and(Policy::may_retry));
        let attempts = Attempts::new(terms.policy, terms.key, &self.metrics);
        let called = attempts.run_with(&mut call, |call, limit| async move {
            let deadline = limit.deadline();
            let attempt = match call.attempt() {
                Some(call) => {
                    let attempt = async {
                        let mut reply = self.direct_once(route, call).await?;
                        begin(&mut reply, deadline).await;
                        Ok(reply)
                    };
                    deadline.within(pin!(attempt)).await
                }
                None => Some(Err(InvokeError::Peer(Status::internal(
                    "the body of the request was sent already and cannot be sent again",
                )))),
            };
            let result = terms.judged(attempt.unwrap_or(Err(InvokeError::Timeout)));
            let outcome = outcome(&result, call.can_repeat());
            (call, result, outcome)
        });
        called.await?
    }

    async fn direct_once(&self, route: &Route<'_>, call: Call) -> Result<Reply, InvokeError> {
        match route {
            Route::Url(url) => Ok(self.endpoints.call_url(url, call).await?),
            Route::Endpoint(name) => Ok(self.endpoints.call_named(name, call).await?),
            _ => match &self.app {
                Some(app) => Ok(app.invoke(call).await?),
                None => Err(AppError::NoChannel.into()),
            },
        }
    }
}

enum Route<'a> {
    Local,
    Remote { id: &'a str, namespace: &'a str },
    Endpoint(&'a str),
    Url(&'a str),
}

/// Waits for as much of a reply as an attempt waits for: its head, and under a deadline the first bytes of its body too, of which
/// the rest has to come in time as well. A stream of events has no deadline once it has begun.
async fn begin(reply: &mut Reply, deadline: Deadline) {
    if deadline.is_none() || reply.body.is_whole() || reply.content_type.as_ref().is_some_and(is_of_events) {
        return;
    }
    let first = reply.body.frame().await;
    let rest = std::mem::take(&mut reply.body);
    if first.is_some() {
        reply.body = deadline.bound(rest.after(first), || Err(Box::new(late())));
    }
}

fn late() -> Status {
    Status::deadline_exceeded(InvokeError::Timeout.to_string())
}

/// What a policy sees: app failures by their HTTP status, everything else without a code.
fn outcome(result: &Result<Reply, InvokeError>, can_repeat: bool) -> Outcome {
    match result {
        Ok(reply) => match reply.status {
            AppStatus::Http(code) if !(200..400).contains(&code) => {
                if can_repeat {
                    Outcome::Failure {
                        code: Some(code.into()),
                    }
                } else {
                    Outcome::Final
                }
            }
            _ => Outcome::Success,
        },
        Err(
            InvokeError::Body(_)
            | InvokeError::App(AppError::Unfinished(_))
            | InvokeError::Endpoint(EndpointError::Outside(_)),
        ) => Outcome::Unsendable,
        Err(InvokeError::Timeout) if can_repeat => Outcome::TimedOut,
        Err(_) if can_repeat => Outcome::Failure { code: None },
        Err(_) => Outcome::Final,
    }
}

/// A body that is announced as small is taken whole: one frame, one write, repeatable without bookkeeping.
async fn buffer_small(body: &mut Body) -> Result<(), InvokeError> {
    match body.known_length() {
        Some(length) if length > 0 && length <= REPLAY_LIMIT as u64 => {
            let whole = std::mem::take(body).collect_up_to(REPLAY_LIMIT).await;
            *body = whole.map_err(|error| unread(&error))?.into();
        }
        Some(0) => *body = Body::Empty,
        _ => {}
    }
    Ok(())
}

/// A body that was not read whole, because it broke off or too much of others waits for the rest, too.
fn unread(error: &BoxError) -> InvokeError {
    match error.downcast_ref::<TooMuchUnfinished>() {
        Some(too_much) => InvokeError::App(AppError::Unfinished(*too_much)),
        None => InvokeError::Body(Reason::of(error)),
    }
}

/// Time in which a client sends the beginning of a body, mostly.
const BODY_START_WAIT: Duration = Duration::from_millis(200);

/// A body that was only announced, as some clients do with every request, is none: the app is told so if that shows
/// within a moment.
async fn look_for_body(body: &mut Body) {
    let mut source = std::mem::take(body);
    *body = match tokio::time::timeout(BODY_START_WAIT, source.frame()).await {
        Ok(None) => Body::Empty,
        Ok(first) => source.after(first),
        Err(_) => source,
    };
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;

    /// The bytes of the future that a method returns.
    fn size<A, B, C, F: Future>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// Futures are copied as often as they are handed on.
    #[test]
    fn futures_of_a_call_stay_small() {
        assert!(size(Invoker::invoke) <= 2048);
        assert!(size(call_remote) <= 3072);
        assert!(
            size(Invoker::direct_once) <= 3584,
            "{}",
            size(Invoker::direct_once)
        );
    }
}
