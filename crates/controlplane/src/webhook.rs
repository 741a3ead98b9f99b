//! Serving webhooks of the Kubernetes API: HTTPS with the identity of this process. Clients show no certificate; they
//! know this server by the trust anchors and its DNS name.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use outrigger_accept::{Accepted, Admission, Limits, Place, Server, keep_alive};
use outrigger_identity::Identity;
use rustls::ServerConfig;
use tokio_util::sync::CancellationToken;

/// Time for the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// Time for its body.
const BODY: Duration = Duration::from_secs(20);
/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// What every client of HTTPS speaks.
const ALPN: &[u8] = b"http/1.1";

/// What a server allows its clients.
#[derive(Debug, Clone, Copy)]
pub struct Allowed {
    /// Connections.
    pub connections: Limits,
    /// Body of a request, in bytes.
    pub body: usize,
}

/// Serves `handle` until told to stop.
pub async fn serve<H, F>(
    server: Server,
    allowed: Allowed,
    identity: &Identity,
    drain: CancellationToken,
    handle: H,
) where
    H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let mut tls = ServerConfig::clone(&identity.server_config_no_client_auth());
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let tls = Arc::new(tls);
    let connection = move |accepted: Accepted| {
        let (tls, handle) = (Arc::clone(&tls), handle.clone());
        async move {
            let Accepted {
                stream, place, drain, ..
            } = accepted;
            let Some(stream) = outrigger_accept::handshake(stream, tls, &drain).await else {
                return;
            };
            let service = service_fn(move |request| {
                let (handle, place) = (handle.clone(), Arc::clone(&place));
                async move { Ok::<_, Infallible>(answer(request, allowed.body, &place, handle).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                // Who has said everything may close its side, and still wants the answer.
                .half_close(true)
                .max_buf_size(MAX_HEAD)
                .serve_connection(TokioIo::new(stream), service);
            outrigger_accept::finish(connection, drain.cancelled()).await;
        }
    };
    keep_alive(&server.listener);
    let admission = Admission::of_endpoint(allowed.connections);
    outrigger_accept::serve(server.listener, admission, drain, connection).await;
}

async fn answer<H, F>(
    request: Request<Incoming>,
    limit: usize,
    place: &Place,
    handle: H,
) -> Response<Full<Bytes>>
where
    H: Fn(Request<Bytes>) -> F,
    F: Future<Output = Response<Full<Bytes>>>,
{
    let (head, body) = request.into_parts();
    // What stands between may have read the other one.
    if head.headers.get_all(header::HOST).iter().count() > 1 {
        let mut response = text(StatusCode::BAD_REQUEST, "the request has several Host fields");
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
        return response;
    }
    let body = match tokio::time::timeout(BODY, Limited::new(body, limit).collect()).await {
        Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");
        }
        Ok(Err(_)) => return text(StatusCode::BAD_REQUEST, "the body is incomplete"),
        Ok(Ok(body)) => body.to_bytes(),
    };
    place.prove();
    handle(Request::from_parts(head, body)).await
}

/// An answer in plain text.
pub fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response
}
