//! Webhook servers for the Kubernetes API: HTTPS with the identity of this process. Clients present no
//! certificate; they verify this server by the trust anchors and its DNS name.

mod answer;
mod review;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use answer::{Answer, UNCHARGED, Unread, take};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use outrigger_accept::{Accepted, Admission, Limits, Permit, Server, keep_alive};
use outrigger_identity::Identity;
pub use outrigger_offload::offload;
pub use review::{MAX_SHOWN, MAX_VALUES, check_values, cut, shown};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

const LOG: &str = "dapr.webhook";
/// Timeout of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a request's body.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a request's head in bytes.
const MAX_HEAD: usize = 64 << 10;
/// Every HTTPS client supports it.
const ALPN: &[u8] = b"http/1.1";

/// Limits for the clients of a server.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Connection limits, in total and per client.
    pub connections: Limits,
    /// Maximum size of a request's body in bytes.
    pub body: usize,
    /// Maximum bytes of all bodies in flight: requests until they are answered, then responses until they are
    /// sent. The first 64 KiB of each do not count.
    pub bodies: usize,
}

/// Why a request is refused.
type Refusal = (StatusCode, &'static str);

const BUSY: Refusal = (
    StatusCode::SERVICE_UNAVAILABLE,
    "too many bodies are in flight; retry later",
);

/// Serves `handle` until stopped.
pub async fn serve<H, F>(
    server: Server,
    limits: ServerLimits,
    identity: &Identity,
    drain: CancellationToken,
    handle: H,
) where
    H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Bytes>> + Send + 'static,
{
    let mut tls = ServerConfig::clone(&identity.server_config_no_client_auth());
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = Arc::new(tls);
    let webhook = Webhook {
        handle,
        limit: limits.body,
        budget: Arc::new(Semaphore::new(limits.bodies)),
    };
    let connection = move |accepted: Accepted| {
        let (tls, webhook) = (Arc::clone(&tls), webhook.clone());
        async move {
            let Accepted {
                stream,
                permit,
                drain,
                ..
            } = accepted;
            let Some(stream) = outrigger_accept::handshake(stream, tls, &drain).await else {
                return;
            };
            webhook.converse(stream, permit, drain).await;
        }
    };
    keep_alive(&server.listener);
    let admission = Admission::of_endpoint(limits.connections);
    outrigger_accept::serve(server.listener, admission, drain, connection).await;
}

/// The shared state of a server's connections.
#[derive(Clone)]
struct Webhook<H> {
    handle: H,
    /// Maximum size of a body in bytes.
    limit: usize,
    /// Budget for requests and responses.
    budget: Arc<Semaphore>,
}

impl<H, F> Webhook<H>
where
    H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Bytes>> + Send + 'static,
{
    /// Serves a connection to its end.
    async fn converse<I>(self, io: I, permit: Arc<Permit>, drain: CancellationToken)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let unread = Arc::new(Unread::default());
        let (answers, asking) = (Arc::clone(&unread), Arc::clone(&permit));
        let service = service_fn(move |request| {
            let (webhook, permit, answers) = (self.clone(), Arc::clone(&asking), Arc::clone(&answers));
            async move {
                answers.asked();
                let answer = webhook.answer(request, &permit).await;
                answers.answered();
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            // A client may close its side after the request and still expects the response.
            .half_close(true)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(io), service);
        let end = async {
            tokio::select! {
                () = drain.cancelled() => {}
                () = unread.late() => {
                    tracing::debug!(target: LOG, "closed a connection with an unread response");
                }
            }
        };
        outrigger_accept::finish_http1(Box::pin(connection), &permit, end).await;
    }

    async fn answer(&self, request: Request<Incoming>, permit: &Permit) -> Response<Answer> {
        // A proxy in between may have used the other one.
        if request.headers().get_all(header::HOST).iter().count() > 1 {
            let mut response = text(StatusCode::BAD_REQUEST, "the request has several Host fields");
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
            return response.map(Answer::short);
        }
        match self.handled(request, permit).await {
            Ok(response) => response,
            Err((status, why)) => text(status, why).map(Answer::short),
        }
    }

    async fn handled(
        &self,
        request: Request<Incoming>,
        permit: &Permit,
    ) -> Result<Response<Answer>, Refusal> {
        let (head, body) = request.into_parts();
        let received = tokio::time::timeout(BODY_TIMEOUT, receive(body, self.limit, &self.budget)).await;
        let (body, room) = received.unwrap_or(Err((
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive in time",
        )))?;
        permit.prove();
        let response = (self.handle)(Request::from_parts(head, body)).await;
        let (head, bytes) = response.into_parts();
        // The request is dropped, so its share of the budget goes to the response.
        let answer = Answer::new(bytes, room, &self.budget).ok_or(BUSY)?;
        Ok(Response::from_parts(head, answer))
    }
}

/// A body and its share of the budget. Only received bytes are charged, so announced ones cost nothing.
async fn receive<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    limit: usize,
    budget: &Arc<Semaphore>,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Refusal> {
    const LARGE: Refusal = (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");
    if body.size_hint().lower() > limit as u64 {
        return Err(LARGE);
    }
    let (mut received, mut taken) = (BytesMut::new(), None::<OwnedSemaphorePermit>);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| (StatusCode::BAD_REQUEST, "the body is incomplete"))?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > limit - received.len() {
            return Err(LARGE);
        }
        let before = received.len().saturating_sub(UNCHARGED);
        received.extend_from_slice(&data);
        let more = received.len().saturating_sub(UNCHARGED) - before;
        if more == 0 {
            continue;
        }
        let more = take(budget, more).ok_or(BUSY)?;
        match &mut taken {
            None => taken = Some(more),
            Some(taken) => taken.merge(more),
        }
    }
    Ok((received.freeze(), taken))
}

/// A plain text response.
pub fn text(status: StatusCode, text: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(format!("{text}\n")));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests;
