//! Serving webhooks of the Kubernetes API: HTTPS with the identity of this process. Clients show no certificate; they
//! know this server by the trust anchors and its DNS name.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use outrigger_accept::{Accepted, Admission, Limits, Permit, Server, keep_alive};
use outrigger_identity::Identity;
use rustls::ServerConfig;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Time for the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// Time for its body.
const BODY: Duration = Duration::from_secs(20);
/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 64 << 10;
/// What every client of HTTPS speaks.
const ALPN: &[u8] = b"http/1.1";

/// What the clients of a server may have.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// How many connections there may be, of all clients and of one.
    pub connections: Limits,
    /// Body of a request, in bytes.
    pub body: usize,
    /// All bodies in flight, in bytes: what has arrived of them, until they are answered.
    pub bodies: usize,
}

/// Serves `handle` until told to stop.
pub async fn serve<H, F>(
    server: Server,
    limits: ServerLimits,
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
    let budget = Arc::new(Semaphore::new(limits.bodies));
    let connection = move |accepted: Accepted| {
        let (tls, handle, budget) = (Arc::clone(&tls), handle.clone(), Arc::clone(&budget));
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
            let service = service_fn(move |request| {
                let (handle, permit, budget) = (handle.clone(), Arc::clone(&permit), Arc::clone(&budget));
                async move { Ok::<_, Infallible>(answer(request, limits.body, &budget, &permit, handle).await) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                // Who has said everything may close its side, and still wants the answer.
                .half_close(true)
                .max_buf_size(MAX_HEAD)
                .serve_connection(TokioIo::new(stream), service);
            outrigger_accept::finish(Box::pin(connection), drain.cancelled()).await;
        }
    };
    keep_alive(&server.listener);
    let admission = Admission::of_endpoint(limits.connections);
    outrigger_accept::serve(server.listener, admission, drain, connection).await;
}

async fn answer<H, F>(
    request: Request<Incoming>,
    limit: usize,
    budget: &Arc<Semaphore>,
    permit: &Permit,
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
    // It is given back once the request is answered.
    let (body, _taken) = match tokio::time::timeout(BODY, receive(body, limit, budget)).await {
        Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"),
        Ok(Err((status, why))) => return text(status, why),
        Ok(Ok(received)) => received,
    };
    permit.prove();
    handle(Request::from_parts(head, body)).await
}

/// A body, and the room it takes. Room is taken for what has arrived: what is only announced costs nothing.
async fn receive<B: Body<Data = Bytes> + Unpin>(
    mut body: B,
    limit: usize,
    budget: &Arc<Semaphore>,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), (StatusCode, &'static str)> {
    const LARGE: (StatusCode, &str) = (StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");
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
        let more = u32::try_from(data.len()).map_err(|_| LARGE)?;
        let more = Arc::clone(budget).try_acquire_many_owned(more).map_err(|_| {
            let why = "too many bodies are in flight; try again";
            (StatusCode::SERVICE_UNAVAILABLE, why)
        })?;
        match &mut taken {
            None => taken = Some(more),
            Some(taken) => taken.merge(more),
        }
        received.extend_from_slice(&data);
    }
    Ok((received.freeze(), taken))
}

/// An answer in plain text.
pub fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bodies_in_flight_have_so_much_room_together() {
        let budget = Arc::new(Semaphore::new(10));
        let body = |length| Full::new(Bytes::from(vec![b'x'; length]));
        let (first, taken) = receive(body(6), 8, &budget).await.unwrap();
        assert_eq!(first.len(), 6);
        let refused = receive(body(6), 8, &budget).await.unwrap_err();
        assert_eq!(refused.0, StatusCode::SERVICE_UNAVAILABLE);
        assert!(
            receive(body(4), 8, &budget).await.is_ok(),
            "what was refused keeps no room"
        );
        drop(taken);
        assert!(receive(body(6), 8, &budget).await.is_ok());
        let large = receive(body(9), 8, &budget).await.unwrap_err();
        assert_eq!(large.0, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(budget.available_permits(), 10);
    }
}
