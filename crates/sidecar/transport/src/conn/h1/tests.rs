//! Servers that keep connections open or close them.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{H1Pool, IDLE_TIMEOUT};
use crate::body::{Body, BoxError};
use crate::conn::{Dialer, SendError};
use crate::stall::UNREAD_TIMEOUT;

/// Longer than any step takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

async fn server() -> (TcpListener, H1Pool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, H1Pool::new(Dialer::plain(address, LONG)))
}

/// Reads the head of a request and answers it.
async fn answer(stream: &mut TcpStream) {
    hear(stream).await;
    stream.write_all(OK.as_bytes()).await.unwrap();
}

async fn hear(stream: &mut TcpStream) {
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\n") {
        heard.push(stream.read_u8().await.unwrap());
    }
}

async fn call(pool: &H1Pool, request: Request<Body>) -> Result<Response<Body>, SendError> {
    timeout(LONG, pool.send(request)).await.unwrap()
}

fn get() -> Request<Body> {
    Request::get("/").header("host", "h").body(Body::Empty).unwrap()
}

#[tokio::test]
async fn reuses_then_closes_idle_connection() {
    let (listener, pool) = server().await;
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        answer(&mut stream).await;
        answer(&mut stream).await;
        // The pool closes it, although more calls follow.
        timeout(IDLE_TIMEOUT + LONG, stream.read_u8())
            .await
            .unwrap()
            .unwrap_err();
        let (mut stream, _) = listener.accept().await.unwrap();
        answer(&mut stream).await;
        listener
    });
    for _ in 0..2 {
        let response = call(&pool, get()).await.unwrap();
        assert_eq!(response.into_body().collect_up_to(10).await.unwrap(), "ok");
    }
    while !pool.0.idle().kept.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(call(&pool, get()).await.unwrap());
    timeout(LONG, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn retries_safe_request_after_server_close() {
    let (listener, pool) = server().await;
    let serving = tokio::spawn(async move {
        for _ in 0..4 {
            let (mut stream, _) = listener.accept().await.unwrap();
            answer(&mut stream).await;
            // The server reads the next request, then closes.
            hear(&mut stream).await;
        }
        let (mut stream, _) = listener.accept().await.unwrap();
        answer(&mut stream).await;
    });
    drop(call(&pool, get()).await.unwrap());
    // A GET may be processed twice, so it is retried.
    drop(call(&pool, get()).await.unwrap());
    for method in [Method::POST, Method::PUT, Method::DELETE] {
        let request = Request::builder().method(method).uri("/").header("host", "h");
        let sent = call(&pool, request.body(Body::Empty).unwrap()).await;
        let error = sent.map(drop).unwrap_err();
        assert!(error.is_unavailable() && !error.is_repeatable(), "{error}");
        drop(call(&pool, get()).await.unwrap());
    }
    timeout(LONG, serving).await.unwrap().unwrap();
}

/// A server that answers the first request on each connection with `first`, and later ones properly.
async fn first_answered(first: String) -> H1Pool {
    let (listener, pool) = server().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let first = first.clone();
            tokio::spawn(async move {
                hear(&mut stream).await;
                stream.write_all(first.as_bytes()).await.unwrap();
                loop {
                    answer(&mut stream).await;
                }
            });
        }
    });
    pool
}

async fn text(response: Response<Body>) -> String {
    let bytes = timeout(LONG, response.into_body().collect_up_to(1 << 20))
        .await
        .unwrap()
        .unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn post() -> Request<Body> {
    Request::post("/").header("host", "h").body(Body::Empty).unwrap()
}

#[tokio::test]
async fn drops_connection_with_surplus_bytes() {
    let surplus = OK.replace("ok", "no");
    for first in [
        format!("{OK}{surplus}"),
        format!("{OK}\r\n"),
        format!("HTTP/1.1 204 No Content\r\n\r\n{surplus}"),
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n{surplus}"),
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok{surplus}"),
    ] {
        let pool = first_answered(first.clone()).await;
        for _ in 0..3 {
            let heard = text(call(&pool, post()).await.unwrap()).await;
            assert!(heard == "ok" || heard.is_empty(), "{first:?}: {heard}");
            assert!(pool.0.idle().kept.is_empty(), "{first:?}");
        }
    }
}

/// Checks that the pool asks the kernel: the runtime updates readiness only now and then, and not during a
/// long poll.
#[tokio::test]
async fn drops_connection_with_late_surplus_bytes() {
    use std::io::{Read as _, Write as _};

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (more, wanted) = std::sync::mpsc::channel::<()>();
    let (said, sent) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut first = true;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
            stream.write_all(OK.as_bytes()).unwrap();
            if std::mem::take(&mut first) {
                wanted.recv().unwrap();
                stream.write_all(OK.replace("ok", "no").as_bytes()).unwrap();
                said.send(stream).unwrap();
            }
        }
    });
    let pool = H1Pool::new(Dialer::plain(address, LONG));
    assert_eq!(text(call(&pool, post()).await.unwrap()).await, "ok");
    assert_eq!(pool.0.idle().kept.len(), 1);
    // Blocks this runtime until the bytes have arrived.
    more.send(()).unwrap();
    let _open = sent.recv().unwrap();
    assert_eq!(text(call(&pool, post()).await.unwrap()).await, "ok");
}

#[tokio::test]
async fn replaces_closed_connection() {
    let (listener, pool) = server().await;
    let (closed, is_closed) = tokio::sync::oneshot::channel();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        answer(&mut stream).await;
        drop(stream);
        closed.send(()).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        answer(&mut stream).await;
    });
    drop(call(&pool, post()).await.unwrap());
    // Even a request that must not be sent twice, with a body that can be read only once.
    let request = Request::post("/").header("host", "h");
    let body = Body::stream(http_body_util::Full::from("body"));
    timeout(LONG, is_closed).await.unwrap().unwrap();
    assert_eq!(
        call(&pool, request.body(body).unwrap()).await.unwrap().status(),
        200
    );
    timeout(LONG, serving).await.unwrap().unwrap();
}

#[tokio::test]
async fn skips_interim_responses() {
    let early = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n";
    let pool = first_answered(format!("HTTP/1.1 100 Continue\r\n\r\n{early}{OK}")).await;
    let response = call(&pool, get()).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers().len()), (200, 1));
    assert_eq!(text(response).await, "ok");
    assert_eq!(pool.0.idle().kept.len(), 1);

    let switching = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    let pool = first_answered(format!("{switching}{OK}")).await;
    let response = call(&pool, get()).await.unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(text(response).await, "");
    assert!(pool.0.idle().kept.is_empty());
}

#[tokio::test]
async fn bounds_response_fields() {
    let with = |fields: usize| {
        let fields: String = (0..fields).map(|number| format!("x-{number}: y\r\n")).collect();
        OK.replace("content", &format!("{fields}content"))
    };
    let pool = first_answered(with(450)).await;
    assert_eq!(call(&pool, get()).await.unwrap().headers().len(), 451);
    let pool = first_answered(with(500)).await;
    assert!(call(&pool, get()).await.is_err());
}

#[tokio::test]
async fn fails_body_with_wrong_length() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    for body in ["2\r\nok0\r\n\r\n", "2\nok\r\n0\r\n\r\n"] {
        let pool = first_answered(format!("{chunked}{body}")).await;
        let response = call(&pool, get()).await.unwrap();
        let read = timeout(LONG, response.into_body().collect_up_to(100))
            .await
            .unwrap();
        assert!(read.is_err(), "{body:?}: {read:?}");
        assert!(pool.0.idle().kept.is_empty(), "{body:?}");
    }
}

#[tokio::test]
async fn sets_request_framing() {
    let (listener, pool) = server().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            let mut body = vec![0; if head.contains("chunked") { 14 } else { 0 }];
            stream.read_exact(&mut body).await.unwrap();
            let lines = head
                .lines()
                .filter(|line| line.contains("content-length") || line.contains("transfer-"));
            let lines = lines.collect::<Vec<_>>().join(",");
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{lines}",
                lines.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let empty = || Body::stream(http_body_util::Empty::new());
    let unknown = || {
        Body::stream(http_body_util::StreamBody::new(futures::stream::iter([Ok::<
            _,
            BoxError,
        >(
            Frame::data(Bytes::from_static(b"body")),
        )])))
    };
    for (method, body, expected) in [
        (Method::GET, Body::Empty, ""),
        (Method::GET, empty(), ""),
        (Method::DELETE, Body::Empty, ""),
        (Method::POST, Body::Empty, "content-length: 0"),
        (Method::PUT, empty(), "content-length: 0"),
        (Method::GET, unknown(), "transfer-encoding: chunked"),
        (Method::POST, unknown(), "transfer-encoding: chunked"),
    ] {
        let mut request = Request::new(body);
        *request.method_mut() = method.clone();
        request.headers_mut().insert("host", "h".parse().unwrap());
        assert_eq!(
            text(call(&pool, request).await.unwrap()).await,
            expected,
            "{method}"
        );
    }
}

#[tokio::test]
async fn times_out_stalled_response() {
    let (listener, pool) = server().await;
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        hear(&mut stream).await;
        let half = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
        stream.write_all(half.as_bytes()).await.unwrap();
        // The end of a connection that still owes a response.
        stream.read_u8().await.unwrap_err();
    });
    let mut body = call(&pool, get()).await.unwrap().into_body();
    let first = timeout(LONG, body.frame()).await.unwrap().unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "half");
    // From here on, time advances whenever all tasks are idle.
    tokio::time::pause();
    let begin = tokio::time::Instant::now();
    let rest = timeout(UNREAD_TIMEOUT * 10, body.frame()).await;
    let error = rest.expect("the read has no timeout").unwrap().unwrap_err();
    assert!(
        error.to_string().contains("no more of the response arrived"),
        "{error}"
    );
    assert!(begin.elapsed() >= UNREAD_TIMEOUT, "{:?}", begin.elapsed());
    tokio::time::resume();
    timeout(LONG, serving)
        .await
        .expect("the connection stays open")
        .unwrap();
}
