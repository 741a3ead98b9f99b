//! HTTP/1.1 for endpoints that answer from memory: metrics, health, profiling, key sets.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HOST};
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{Accepted, Admission, LOG, Limits, Permit, keep_alive, serve};

/// Time limit for the head of a request, after which the connection is closed.
const HEAD: Duration = Duration::from_secs(10);
/// Maximum size of a request head in bytes.
const MAX_HEAD: usize = 16 << 10;
/// Grace period of open connections at shutdown.
const GRACE: Duration = Duration::from_secs(5);

/// Serves HTTP/1.1 with `respond`, which must answer quickly, until `drain`.
pub async fn serve_http1<R, A, B>(listener: TcpListener, limits: Limits, drain: CancellationToken, respond: R)
where
    R: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<B>> + Send,
    B: http_body::Body + Default + Send + 'static,
    B::Data: Send,
    B::Error: std::error::Error + Send + Sync,
{
    let handle = |accepted: Accepted| {
        let respond = respond.clone();
        async move { http1(accepted.stream, respond, accepted.permit, accepted.drain).await }
    };
    keep_alive(&listener);
    serve(listener, Admission::of_endpoint(limits), drain, handle).await;
}

/// Serves one connection. A completed request marks it as proven, ahead of silent ones.
pub async fn http1<I, R, A, B>(io: I, respond: R, permit: Arc<Permit>, drain: CancellationToken)
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
    R: Fn(Request<Incoming>) -> A,
    A: Future<Output = Response<B>>,
    B: http_body::Body + Default + 'static,
    B::Error: std::error::Error + Send + Sync,
{
    let asking = Arc::clone(&permit);
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = if request.headers().get_all(HOST).iter().nth(1).is_some() {
            None
        } else {
            asking.prove();
            Some(respond(request))
        };
        async move {
            Ok::<_, Infallible>(match answer {
                Some(answer) => answer.await,
                None => bad_request(),
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(MAX_HEAD)
        // Answers a client that has closed its sending side.
        .half_close(true)
        .serve_connection(TokioIo::new(io), service);
    finish_http1(Box::pin(connection), &permit, drain.cancelled()).await;
}

/// Like [`finish`], but ends at once without a complete request: hyper would wait for the rest of the head.
pub async fn finish_http1<C: GracefulConnection>(
    connection: Pin<Box<C>>,
    permit: &Permit,
    end: impl Future<Output = ()>,
) where
    C::Error: std::fmt::Display,
{
    let ending = CancellationToken::new();
    let end_without_request = async {
        ending.cancelled().await;
        if permit.is_proven() {
            std::future::pending().await
        }
    };
    let end = async {
        end.await;
        ending.cancel();
    };
    tokio::select! {
        () = finish(connection, end) => {}
        () = end_without_request => {}
    }
}

/// The response to a request with two hosts (RFC 9112 section 3.2), which intermediaries may interpret
/// differently.
fn bad_request<B: Default>() -> Response<B> {
    let mut response = Response::new(B::default());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Drives a connection to its end. Once `end` completes, shuts it down gracefully, and aborts it after a
/// grace period. Boxed, because a future that passes it on would reserve space for it several times.
pub async fn finish<C: GracefulConnection>(mut connection: Pin<Box<C>>, end: impl Future<Output = ()>)
where
    C::Error: std::fmt::Display,
{
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = end => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(GRACE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(target: LOG, "a connection ended early: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::net::SocketAddr;

    use bytes::Bytes;
    use http_body_util::Full;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    const LIMITS: Limits = Limits {
        connections: 8,
        per_source: 8,
    };

    async fn start() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let respond = |_| ready(Response::new(Full::new(Bytes::from_static(b"well"))));
        tokio::spawn(serve_http1(listener, LIMITS, CancellationToken::new(), respond));
        address
    }

    async fn get(stream: &mut TcpStream) -> String {
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut text = vec![0; 4096];
        let mut length = 0;
        while !text[..length].ends_with(b"well") {
            match stream.read(&mut text[length..]).await.unwrap() {
                0 => break,
                read => length += read,
            }
        }
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    #[tokio::test]
    async fn silent_connections_do_not_block_others() {
        let address = start().await;
        let mut asked = TcpStream::connect(address).await.unwrap();
        assert!(get(&mut asked).await.contains("200 OK"));
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        for _ in 0..9 {
            let mut late = TcpStream::connect(address).await.unwrap();
            assert!(get(&mut late).await.contains("200 OK"));
        }
        assert_eq!(
            silent[0].read(&mut [0]).await.unwrap_or(0),
            0,
            "the oldest was closed"
        );
    }

    /// Regression: half a request on the metrics port took the whole grace period of the process.
    #[tokio::test(start_paused = true)]
    async fn drain_ends_incomplete_first_request() {
        let halves: [(&[u8], usize); 3] = [
            (b"GET / HTTP/1.1\r\nhost: ", 0),
            (b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET / HT", 1),
            (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nh", 1),
        ];
        for (sent, answers) in halves {
            let (mut client, server) = tokio::io::duplex(1024);
            let permit = Arc::new(Admission::new(LIMITS).admit(None).unwrap());
            let respond = |_| ready(Response::new(Full::new(Bytes::from_static(b"well"))));
            let drain = CancellationToken::new();
            let served = http1(server, respond, permit, drain.clone());
            let client = async {
                client.write_all(sent).await.unwrap();
                let mut text = vec![0; 4096];
                for _ in 0..answers {
                    assert_ne!(client.read(&mut text).await.unwrap(), 0);
                }
                // The client half of the test has read all output by then.
                tokio::time::sleep(Duration::from_millis(1)).await;
                drain.cancel();
                let begun = tokio::time::Instant::now();
                client.read_to_end(&mut text).await.unwrap();
                begun.elapsed()
            };
            let ((), took) = tokio::join!(served, client);
            assert_eq!(took, Duration::ZERO, "{answers}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn closes_idle_connection() {
        let (client, server) = tokio::io::duplex(1024);
        let permit = Arc::new(Admission::new(LIMITS).admit(None).unwrap());
        let respond = |_| ready(Response::new(Full::new(Bytes::from_static(b"well"))));
        let task =
            tokio::spawn(async move { http1(server, respond, permit, CancellationToken::new()).await });
        let (mut answers, mut requests) = tokio::io::split(client);
        requests
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut text = Vec::new();
        answers.read_to_end(&mut text).await.unwrap();
        assert!(text.ends_with(b"well"), "{}", String::from_utf8_lossy(&text));
        task.await.unwrap();
    }
}
