//! Service invocation: calls of this app, of other apps through their sidecars, and of external HTTP
//! endpoints.

mod endpoint;
mod forwarded;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt;
use outrigger_policy::resiliency::{AppPolicy, Builtin, Key, Outcome, Policy};
use outrigger_policy::target::Target;
use outrigger_runtime::app::{AppChannel, AppError};
use outrigger_runtime::call::{AppStatus, Call, Reply};
use outrigger_runtime::internal::{OpenRequest, RemoteError, call_remote, open_request};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::resilience::{Attempt, Attempts, BreakerOpen, Deadline, Resilience};
use outrigger_transport::body::{Body, BoxError, Failure, REPLAY_LIMIT, Reason, TooMuchUnfinished};
use outrigger_transport::conn::usually_has_body;
use outrigger_transport::headers::strip_identities;
use outrigger_transport::peer::{Failed, PeerError, Peers};
use outrigger_transport::stall::is_of_events;
use tonic::{Code, Status};

pub use endpoint::{Common as EndpointCommon, EndpointError, EndpointSpec, Endpoints};
pub use forwarded::Forwarded;

const SWITCHING_PROTOCOLS: u16 = StatusCode::SWITCHING_PROTOCOLS.as_u16();
/// Error text for an app that responds with 101.
const SWITCHED: &[u8] = b"the server switched to another protocol without a request to do so (status 101)";

/// Calls apps by id.
pub struct Invoker {
    /// This app's id.
    pub app_id: Arc<str>,
    /// This app's namespace.
    pub namespace: Arc<str>,
    /// Builds the `Forwarded` headers.
    pub forwarded: Forwarded,
    /// The local app; `None` without app port.
    pub app: Option<Arc<AppChannel>>,
    /// The other sidecars.
    pub peers: Arc<Peers>,
    /// External HTTP endpoints.
    pub endpoints: Arc<Endpoints>,
    /// Resiliency: retries, timeouts, circuit breakers.
    pub resilience: Arc<Resilience>,
    /// Counts calls.
    pub metrics: Arc<SidecarMetrics>,
    /// Largest message of a peer, bytes.
    pub max_message: usize,
}

/// Why an invocation got no response from an app.
#[derive(Debug, thiserror::Error)]
pub enum InvokeError {
    /// The target id is invalid.
    #[error("{0}")]
    Target(String),
    /// The call of the local app failed.
    #[error(transparent)]
    App(#[from] AppError),
    /// The call of an external endpoint failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Another sidecar refused the call or was unreachable.
    #[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
    Peer(Status),
    /// The call still failed after the built-in retries.
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
    /// The request body could not be read, or exceeds the limit.
    #[error("the body of the request cannot be sent: {0}")]
    Body(Reason),
    /// The method contains bytes that only HTTP can carry.
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
    /// The HTTP status for the caller.
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

/// Settings of all attempts at a call.
struct CallSettings<'a> {
    policy: Option<&'a Policy>,
    key: Key<'a>,
    /// The built-in policy for connections to another sidecar, unless the user has a policy for this target.
    builtin: Option<&'a Policy>,
    /// Set if the request body fails.
    failure: Failure,
}

impl CallSettings<'_> {
    /// Whether the user's retry rules match this status, so that it is retried although the app responded.
    fn expects(&self, status: u16) -> bool {
        self.policy
            .and_then(Policy::retry)
            .is_some_and(|retry| retry.matching.names_http(status))
    }

    /// Classifies a failed attempt at another sidecar: request body, connection, or remote error.
    fn failed(&self, error: RemoteError) -> Failed<InvokeError> {
        let RemoteError { status, connection } = error;
        if let Some(reason) = self.failure.reason() {
            return Failed {
                error: InvokeError::Body(reason.clone()),
                connection: false,
            };
        }
        Failed {
            connection: connection || status.code() == Code::Unauthenticated,
            error: InvokeError::Peer(status),
        }
    }

    /// Replaces the result by the request body's error, if it failed, instead of a connection error.
    fn judged(&self, result: Result<Reply, InvokeError>) -> Result<Reply, InvokeError> {
        match self.failure.reason() {
            Some(reason) if result.is_err() => Err(InvokeError::Body(reason.clone())),
            _ => result,
        }
    }
}

impl Invoker {
    /// Whether `id` is this app.
    fn is_self(&self, id: &str, namespace: Option<&str>) -> bool {
        *id == *self.app_id && namespace.is_none_or(|ns| *ns == *self.namespace)
    }

    /// The route of calls to `id`.
    ///
    /// # Errors
    /// [`InvokeError::Target`].
    pub fn route<'a>(&'a self, id: &'a str) -> Result<Route<'a>, InvokeError> {
        let target = Target::parse(id).map_err(|error| InvokeError::Target(error.to_string()))?;
        let hop = match target {
            Target::Url(url) => Hop::Url(url),
            Target::App { id: name, .. } if self.endpoints.contains(name) => Hop::Endpoint(name),
            Target::App { id, namespace } if self.is_self(id, namespace) => Hop::Local,
            Target::App { id, namespace } => Hop::Remote(id, namespace.unwrap_or(&self.namespace)),
        };
        Ok(Route { id, hop })
    }

    /// Sends a call and waits for the response head. Any response of an app is `Ok`.
    ///
    /// # Errors
    /// [`InvokeError`] if no app responded.
    pub async fn invoke(&self, route: Route<'_>, mut call: Call) -> Result<Reply, InvokeError> {
        let (rules, builtin) = self.rules(route);
        let base_url = match route.hop {
            Hop::Endpoint(name) => self.endpoints.base_url(name).unwrap_or_default(),
            _ => String::new(),
        };
        let in_http = match route.hop {
            Hop::Remote(..) => false,
            Hop::Local => self.app.as_ref().is_none_or(|app| !app.is_grpc()),
            Hop::Endpoint(_) | Hop::Url(_) => true,
        };
        if call.octets.is_some() && !in_http {
            return Err(InvokeError::NotText);
        }
        let method = call.method.clone();
        let key = match route.hop {
            Hop::Url(url) => Key::url(url, &method),
            Hop::Endpoint(name) => Key::http_endpoint(name, &base_url),
            _ => Key::app(route.id, &method),
        };
        buffer_small(&mut call.body).await?;
        if call.body.known_length().is_none() && !call.verb.as_ref().is_some_and(usually_has_body) {
            Box::pin(detect_empty_body(&mut call.body)).await;
        }
        let terms = CallSettings {
            policy: rules.policy.as_deref(),
            key,
            builtin: builtin.as_deref(),
            failure: Failure::watch(&mut call.body),
        };
        let mut reply = match route.hop {
            Hop::Remote(id, namespace) => Box::pin(self.remote((id, namespace), call, &terms)).await,
            hop => {
                // A caller of this sidecar must not claim another identity.
                strip_identities(&mut call.metadata);
                Box::pin(self.direct(hop, call, &terms)).await
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

    /// The user's policy for a target, and the built-in policy for connections to another sidecar unless the
    /// user has one for this target.
    fn rules(&self, route: Route<'_>) -> (AppPolicy, Option<Arc<Policy>>) {
        let policies = self.resilience.policies.load();
        let rules = policies.app(route.id);
        let is_covered = route.is_remote() && !rules.has_target;
        let builtin = is_covered.then(|| Arc::clone(policies.builtin(Builtin::ServiceRetries)));
        (rules, builtin)
    }

    /// Calls another sidecar under the user's policy.
    async fn remote(
        &self,
        target: (&str, &str),
        mut call: Call,
        terms: &CallSettings<'_>,
    ) -> Result<Reply, InvokeError> {
        self.forwarded.add(&mut call, target.0);
        let request = &open_request(call).map_err(InvokeError::Peer)?;
        let attempts = Attempts::new(terms.policy, terms.key, &self.metrics);
        let called = attempts.run_with(request, |request, limit| async move {
            let result = in_time(limit, pin!(self.remote_attempts(target, request, terms))).await;
            let outcome = outcome(&result).if_repeatable(request.can_repeat());
            (request, result, outcome)
        });
        called.await?
    }

    /// One attempt as the user's policy counts it, including the built-in retries after a lost connection,
    /// unless the user has a policy for this app.
    async fn remote_attempts(
        &self,
        target: (&str, &str),
        request: &OpenRequest,
        terms: &CallSettings<'_>,
    ) -> Result<Reply, InvokeError> {
        let attempts = Attempts::new(terms.builtin, Key::NONE, &self.metrics);
        let called = attempts.run_with(request, |request, attempt| async move {
            let result = self.remote_once(target, request, terms).await;
            let outcome = match &result {
                Ok(_) => Outcome::Success,
                Err(failed) => Outcome::Failure { code: None }
                    // A new connection helps only after connection failures.
                    .if_repeatable(failed.connection && request.can_repeat()),
            };
            (request, (result, attempt.number - 1), outcome)
        });
        let (result, retries) = called.await?;
        result.map_err(|failed| match failed.error {
            InvokeError::Peer(status) if failed.connection && terms.builtin.is_some() => {
                InvokeError::Exhausted {
                    target: target.0.to_owned(),
                    retries,
                    status,
                }
            }
            other => other,
        })
    }

    /// One attempt at one instance.
    async fn remote_once(
        &self,
        target: (&str, &str),
        request: &OpenRequest,
        terms: &CallSettings<'_>,
    ) -> Result<Reply, Failed<InvokeError>> {
        let unresolved = |error: PeerError| Failed {
            error: InvokeError::Resolve(error.to_string()),
            connection: false,
        };
        let called = self.peers.call(target, unresolved, |instance| async move {
            self.metrics.invoke_sent(target.0);
            let started = Instant::now();
            let called = call_remote(&instance, request, self.max_message).await;
            let reply = called.map_err(|error| terms.failed(error))?;
            let code = reply.status.code();
            self.metrics.invoke_received(target.0, code, started.elapsed());
            Ok(reply)
        });
        called.await
    }

    /// Calls the local app or an external endpoint under the user's policy.
    async fn direct(&self, hop: Hop<'_>, call: Call, terms: &CallSettings<'_>) -> Result<Reply, InvokeError> {
        // Only a call that may be retried is copied.
        let (kept, mut only) = match terms.policy.is_some_and(Policy::may_retry) {
            true => (Some(call.replayable()), None),
            false => (None, Some(call)),
        };
        let kept = kept.as_ref();
        let attempts = Attempts::new(terms.policy, terms.key, &self.metrics);
        let called = attempts.run_with(&mut only, |only, limit| async move {
            let attempt = async {
                let call = match kept {
                    Some(call) => call.attempt(),
                    None => only.take(),
                };
                self.direct_once(hop, call.ok_or_else(spent)?).await
            };
            let result = terms.judged(in_time(limit, pin!(attempt)).await);
            let repeatable = kept.is_some_and(|call| call.body.can_repeat());
            let outcome = outcome(&result).if_repeatable(repeatable);
            (only, result, outcome)
        });
        called.await?
    }

    async fn direct_once(&self, hop: Hop<'_>, call: Call) -> Result<Reply, InvokeError> {
        match hop {
            Hop::Url(url) => Ok(self.endpoints.call_url(url, call).await?),
            Hop::Endpoint(name) => Ok(self.endpoints.call_named(name, call).await?),
            _ => match &self.app {
                Some(app) => Ok(app.invoke(call).await?),
                None => Err(AppError::NoChannel.into()),
            },
        }
    }
}

/// A target id and its route, determined once for each call.
#[derive(Clone, Copy)]
pub struct Route<'a> {
    id: &'a str,
    hop: Hop<'a>,
}

#[derive(Clone, Copy)]
enum Hop<'a> {
    Local,
    /// App id and namespace.
    Remote(&'a str, &'a str),
    Endpoint(&'a str),
    Url(&'a str),
}

impl Route<'_> {
    /// Whether calls go through another sidecar.
    #[inline]
    pub fn is_remote(self) -> bool {
        matches!(self.hop, Hop::Remote(..))
    }
}

fn spent() -> InvokeError {
    InvokeError::Peer(Status::internal(
        "the request body was already sent and cannot be replayed",
    ))
}

/// The response of an attempt within the timeout of its policy.
async fn in_time(
    limit: Attempt,
    attempt: Pin<&mut impl Future<Output = Result<Reply, InvokeError>>>,
) -> Result<Reply, InvokeError> {
    let deadline = limit.deadline();
    let attempt = async {
        let mut reply = attempt.await?;
        begin(&mut reply, deadline).await;
        Ok(reply)
    };
    let reply = deadline.within(pin!(attempt)).await;
    reply.unwrap_or(Err(InvokeError::Timeout))
}

/// Waits for the first bytes of the body if the attempt has a deadline; the rest has the same deadline. An
/// event stream has none after its head.
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

/// The outcome for the policy: an app's error by its HTTP status, everything else without a code.
fn outcome(result: &Result<Reply, InvokeError>) -> Outcome {
    match result {
        Ok(reply) => match reply.status {
            AppStatus::Http(code) if !(200..400).contains(&code) => Outcome::Failure {
                code: Some(code.into()),
            },
            _ => Outcome::Success,
        },
        Err(
            InvokeError::Body(_)
            | InvokeError::App(AppError::Unfinished(_))
            | InvokeError::Endpoint(EndpointError::Outside(_)),
        ) => Outcome::Unsendable,
        Err(InvokeError::Timeout) => Outcome::TimedOut,
        Err(_) => Outcome::Failure { code: None },
    }
}

/// Reads a body with a small declared length whole: one frame, one write, retried without bookkeeping.
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

/// The error for a body that could not be read, or that exceeds the memory for incomplete requests.
fn unread(error: &BoxError) -> InvokeError {
    match error.downcast_ref::<TooMuchUnfinished>() {
        Some(too_much) => InvokeError::App(AppError::Unfinished(*too_much)),
        None => InvokeError::Body(Reason::of(error)),
    }
}

/// How long to wait for the first bytes of an announced body.
const BODY_START_WAIT: Duration = Duration::from_millis(200);

/// Some clients announce a body with every request and send none. If the body ends within a moment, the app
/// gets a request without one.
async fn detect_empty_body(body: &mut Body) {
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

    /// The size in bytes of the future that a method returns.
    fn size<A, B, C, F: Future>(_: impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    /// Futures are copied each time they are passed on.
    #[test]
    fn call_futures_stay_small() {
        assert!(size(Invoker::invoke) <= 2048);
        assert!(size(call_remote) <= 3072);
        assert!(
            size(Invoker::direct_once) <= 3648,
            "{}",
            size(Invoker::direct_once)
        );
    }
}
