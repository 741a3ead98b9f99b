//! The called app: echoes the body of every call, with minimal overhead in hyper.

use std::convert::Infallible;
use std::future::Future;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

use crate::Failure;

mod grpc;

/// Larger bodies are rejected; the largest payload of a sweep is 1 MB.
const MAX_BODY: usize = 64 << 20;

/// Ports of the app; 0 disables a protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ports {
    pub(crate) http: u16,
    pub(crate) grpc: u16,
}

/// Serves until the process ends.
pub(crate) async fn serve(ports: &Ports) -> Result<(), Failure> {
    let http = async {
        match ports.http {
            0 => std::future::pending().await,
            port => accept(port, http1).await,
        }
    };
    let grpc = async {
        match ports.grpc {
            0 => std::future::pending().await,
            port => accept(port, http2).await,
        }
    };
    tokio::select! {
        ended = http => ended,
        ended = grpc => ended,
    }
}

async fn accept<F>(port: u16, serve: fn(TokioIo<TcpStream>) -> F) -> Result<(), Failure>
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", port))
        .await
        .map_err(|error| format!("the app cannot listen on port {port}: {error}"))?;
    loop {
        // Errors such as a lack of file descriptors are temporary.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        stream.set_nodelay(true)?;
        tokio::spawn(serve(TokioIo::new(stream)));
    }
}

async fn http1(io: TokioIo<TcpStream>) {
    // The caller counts a call that fails with its connection.
    let _ended = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(io, service_fn(echo))
        .await;
}

async fn http2(io: TokioIo<TcpStream>) {
    let _ended = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .serve_connection(io, service_fn(grpc::answer))
        .await;
}

/// The body of the call, or as many bytes as requested by the query `bytes=N`.
async fn echo(request: Request<Incoming>) -> Result<Response<BoxBody<Bytes, Infallible>>, hyper::Error> {
    if request.uri().path().starts_with("/dapr/") {
        // A sidecar's requests at startup: no subscriptions, no configuration.
        return Ok(status(StatusCode::NOT_FOUND));
    }
    let wanted = request.uri().query().and_then(bytes_wanted);
    let kind = request.headers().get(header::CONTENT_TYPE).cloned();
    let Some(body) = whole(request.into_body()).await? else {
        return Ok(status(StatusCode::PAYLOAD_TOO_LARGE));
    };
    let body = wanted.map_or(body, |count| Bytes::from(vec![b'.'; count.min(MAX_BODY)]));
    let mut response = Response::new(Full::new(body).boxed());
    if let Some(kind) = kind {
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    Ok(response)
}

/// The complete body, without a copy if it came in one piece; `None` if it is too large.
async fn whole(mut body: Incoming) -> Result<Option<Bytes>, hyper::Error> {
    let mut pieces: Vec<Bytes> = Vec::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            length += data.len();
            if length > MAX_BODY {
                return Ok(None);
            }
            pieces.push(data);
        }
    }
    Ok(Some(match pieces.len() {
        0 => Bytes::new(),
        1 => pieces.swap_remove(0),
        _ => pieces.concat().into(),
    }))
}

fn bytes_wanted(query: &str) -> Option<usize> {
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix("bytes="))
        .and_then(|count| count.parse().ok())
}

fn status(status: StatusCode) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::new(Bytes::new()).boxed());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use super::bytes_wanted;

    #[test]
    fn query_sets_response_length() {
        assert_eq!(bytes_wanted("a=1&bytes=20"), Some(20));
        assert_eq!(bytes_wanted("bytes=many"), None);
        assert_eq!(bytes_wanted("kilobytes=1"), None);
    }
}
