//! Peers that behave in ways the protocol allows but callers do not expect.

use std::io::Read as _;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::{H2Pool, KeepAlive};
use crate::body::{Body, BoxError};
use crate::conn::{Dialer, SendError};

/// Time before a ping, and its timeout.
const INTERVAL: Duration = Duration::from_millis(50);
const PING_TIMEOUT: Duration = Duration::from_millis(1500);
/// Longer than any step takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);
/// The start of a PING frame that is not an acknowledgement: 8 bytes, type 6, no flags, stream 0.
const PING: [u8; 9] = [0, 0, 8, 6, 0, 0, 0, 0, 0];

/// A peer, and a pool of connections to it.
async fn peer(keep_alive: Option<(Duration, Duration)>) -> (TcpListener, H2Pool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (
        listener,
        H2Pool::new(
            Dialer::plain(address, LONG),
            keep_alive.map(|times| KeepAlive::new(times, true)),
        ),
    )
}

async fn accept(listener: &TcpListener) -> Connection<TcpStream, Bytes> {
    let (stream, _) = listener.accept().await.unwrap();
    h2::server::handshake(stream).await.unwrap()
}

type Call = (Request<RecvStream>, SendResponse<Bytes>);

/// The next request; the connection is polled in the background from then on.
async fn next(mut connection: Connection<TcpStream, Bytes>) -> Call {
    let call = connection.accept().await.unwrap().unwrap();
    tokio::spawn(async move { while connection.accept().await.is_some() {} });
    call
}

fn post(body: Body) -> Request<Body> {
    Request::post("/call").body(body).unwrap()
}

type Pieces = mpsc::Sender<Result<Frame<Bytes>, BoxError>>;

/// A body fed piece by piece, and a signal sent when it is dropped.
fn fed() -> (Pieces, oneshot::Receiver<()>, Body) {
    let (pieces, received) = mpsc::channel(1);
    let (dropped, gone) = oneshot::channel();
    let body = Body::stream(StreamBody::new(ReceiverStream::new(received))).on_end(move || {
        let _nobody_asks = dropped.send(());
    });
    (pieces, gone, body)
}

fn piece(text: &'static str) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

async fn answered(pool: &H2Pool, body: Body) -> Response<Body> {
    let sent = timeout(LONG, pool.send(post(body))).await;
    sent.expect("no response").unwrap()
}

#[tokio::test]
async fn replaces_connection_to_silent_peer() {
    let (listener, pool) = peer(Some((INTERVAL, PING_TIMEOUT))).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = stream.into_std().unwrap();
        let mut raw = stream.try_clone().unwrap();
        let stream = TcpStream::from_std(stream).unwrap();
        let mut silent = h2::server::handshake(stream).await.unwrap();
        let _call = silent.accept().await.unwrap().unwrap();
        // The peer stops reading and writing; the connection stays open.
        let (_request, mut respond) = next(accept(&listener).await).await;
        respond.send_response(Response::new(()), true).unwrap();
        stopped.await.unwrap();
        // Bytes received up to now.
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = raw.read(&mut buffer) {
            bytes.extend_from_slice(&buffer[..count]);
        }
        bytes
    });
    let started = Instant::now();
    let sent = timeout(LONG, pool.send(post(Body::Full("hello".into())))).await;
    let error = sent.expect("the call has no timeout").err().unwrap();
    assert!(started.elapsed() >= INTERVAL + PING_TIMEOUT, "{error}");
    assert!(matches!(&error, SendError::Broken { .. }), "{error}");
    // Unavailable, so a caller may retry the call; not repeatable, because the peer had the request.
    assert!(error.is_unavailable() && !error.is_repeatable(), "{error}");
    let response = answered(&pool, Body::Full("again".into())).await;
    assert_eq!(response.status(), StatusCode::OK);
    stop.send(()).unwrap();
    let bytes = timeout(LONG, serving).await.unwrap().unwrap();
    assert!(
        bytes.windows(PING.len()).any(|window| window == PING),
        "no ping in {bytes:?}"
    );
}

#[tokio::test]
async fn fails_response_of_silent_peer() {
    let (listener, pool) = peer(Some((INTERVAL, PING_TIMEOUT))).await;
    let serving = tokio::spawn(async move {
        let mut connection = accept(&listener).await;
        let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
        let mut stream = respond.send_response(Response::new(()), false).unwrap();
        stream.send_data(Bytes::from_static(b"half"), false).unwrap();
        // One poll of the connection writes its queue.
        let _nothing_more = timeout(INTERVAL / 2, connection.accept()).await;
        std::future::pending::<()>().await;
    });
    let response = answered(&pool, Body::Empty).await;
    let read = timeout(LONG, response.into_body().collect()).await;
    assert!(read.expect("the read has no timeout").is_err());
    serving.abort();
}

#[tokio::test]
async fn replaces_idle_connection_to_silent_peer() {
    let (listener, pool) = peer(Some((INTERVAL, PING_TIMEOUT))).await;
    let serving = tokio::spawn(async move {
        let mut silent = accept(&listener).await;
        let (_request, mut respond) = silent.accept().await.unwrap().unwrap();
        respond.send_response(Response::new(()), true).unwrap();
        let _nothing_more = timeout(INTERVAL / 2, silent.accept()).await;
        let (_request, mut respond) = next(accept(&listener).await).await;
        respond.send_response(Response::new(()), true).unwrap();
        std::future::pending::<()>().await;
    });
    drop(answered(&pool, Body::Empty).await);
    let given_up = async {
        while pool.usable().is_some() {
            tokio::time::sleep(PING_TIMEOUT / 10).await;
        }
    };
    timeout(LONG, given_up).await.expect("the connection stays open");
    assert_eq!(answered(&pool, Body::Empty).await.status(), StatusCode::OK);
    serving.abort();
}

#[tokio::test]
async fn keeps_peer_that_acks_pings() {
    let (listener, pool) = peer(Some((INTERVAL, LONG))).await;
    let serving = tokio::spawn(async move {
        let mut connection = accept(&listener).await;
        while let Some(call) = connection.accept().await {
            let (_request, mut respond) = call.unwrap();
            respond.send_response(Response::new(()), true).unwrap();
        }
    });
    for _ in 0..2 {
        assert_eq!(answered(&pool, Body::Empty).await.status(), StatusCode::OK);
        // Long enough for several pings, including some without streams.
        tokio::time::sleep(INTERVAL * 4).await;
        assert!(pool.usable().is_some());
    }
    serving.abort();
}

#[tokio::test]
async fn early_response_ends_request() {
    let (listener, pool) = peer(None).await;
    let serving = tokio::spawn(async move {
        let (request, mut respond) = next(accept(&listener).await).await;
        let response = Response::builder().status(413).body(()).unwrap();
        let mut stream = respond.send_response(response, false).unwrap();
        stream.send_data(Bytes::from_static(b"too large"), true).unwrap();
        // RFC 9113 section 8.1: a server that does not need the rest of the request resets the stream with
        // NO_ERROR after the response, as h2 does here.
        drop(request);
    });
    let (pieces, gone, body) = fed();
    pieces.send(piece("begun")).await.unwrap();
    let response = answered(&pool, body).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let answer = timeout(LONG, response.into_body().collect()).await.unwrap();
    assert_eq!(answer.unwrap().to_bytes(), "too large");
    timeout(LONG, gone)
        .await
        .expect("the rest of the request is still read")
        .unwrap();
    assert!(pieces.send(piece("more")).await.is_err());
    assert!(pool.is_idle());
    serving.await.unwrap();
}

#[tokio::test]
async fn keeps_early_status_after_reset() {
    let (listener, pool) = peer(None).await;
    let serving = tokio::spawn(async move {
        let (request, mut respond) = next(accept(&listener).await).await;
        let mut stream = respond.send_response(Response::new(()), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("7"));
        stream.send_trailers(trailers).unwrap();
        drop(request);
    });
    let (pieces, gone, body) = fed();
    pieces.send(piece("begun")).await.unwrap();
    let response = answered(&pool, body).await;
    let answer = timeout(LONG, response.into_body().collect())
        .await
        .unwrap()
        .unwrap();
    let trailers = answer.trailers().expect("no trailers");
    assert_eq!(trailers["grpc-status"], "7");
    timeout(LONG, gone).await.unwrap().unwrap();
    serving.await.unwrap();
}

#[tokio::test]
async fn delivers_early_response_despite_full_window() {
    let (listener, pool) = peer(None).await;
    let serving = tokio::spawn(async move {
        // Its window fills up and is never updated.
        let (request, mut respond) = next(accept(&listener).await).await;
        let mut stream = respond.send_response(Response::new(()), false).unwrap();
        stream.send_data(Bytes::from_static(b"enough"), true).unwrap();
        std::future::pending::<()>().await;
        drop(request);
    });
    let (pieces, gone, body) = fed();
    let feeding = tokio::spawn(async move {
        let large = Bytes::from(vec![0; 1 << 20]);
        while pieces.send(Ok(Frame::data(large.clone()))).await.is_ok() {}
    });
    let response = answered(&pool, body).await;
    let answer = timeout(LONG, response.into_body().collect()).await.unwrap();
    assert_eq!(answer.unwrap().to_bytes(), "enough");
    timeout(LONG, gone)
        .await
        .expect("the request is still being sent")
        .unwrap();
    timeout(LONG, feeding).await.unwrap().unwrap();
    assert!(pool.is_idle());
    serving.abort();
}

#[tokio::test]
async fn sends_request_after_response_head() {
    let (listener, pool) = peer(None).await;
    let serving = tokio::spawn(async move {
        let (request, mut respond) = next(accept(&listener).await).await;
        let mut stream = respond.send_response(Response::new(()), false).unwrap();
        let mut body = request.into_body();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            stream.send_data(data, false).unwrap();
        }
        stream.send_data(Bytes::new(), true).unwrap();
    });
    let (pieces, _gone, body) = fed();
    let mut response = answered(&pool, body).await.into_body();
    for text in ["one", "two", "three"] {
        pieces.send(piece(text)).await.unwrap();
        let frame = timeout(LONG, response.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), text);
    }
    drop(pieces);
    let end = timeout(LONG, response.collect()).await.unwrap().unwrap();
    assert!(end.to_bytes().is_empty());
    serving.await.unwrap();
}

#[tokio::test]
async fn reports_truncated_response() {
    let (listener, pool) = peer(None).await;
    let serving = tokio::spawn(async move {
        let (request, mut respond) = next(accept(&listener).await).await;
        let response = Response::builder()
            .header("content-length", "10")
            .body(())
            .unwrap();
        let mut stream = respond.send_response(response, false).unwrap();
        stream.send_reset(Reason::INTERNAL_ERROR);
        drop(request);
    });
    // The reset may also lose the response head; what matters is that some error is reported.
    let read = async {
        let response = pool.send(post(Body::Empty)).await.map_err(BoxError::from)?;
        response.into_body().collect().await
    };
    assert!(timeout(LONG, read).await.unwrap().is_err());
    serving.await.unwrap();
}

#[tokio::test]
async fn concurrent_dials_share_timeout() {
    // The server never accepts. The kernel's backlog is short, so later connections get no reply.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut crowd = Vec::new();
    while let Ok(connected) = timeout(Duration::from_millis(300), TcpStream::connect(address)).await {
        crowd.push(connected.unwrap());
        assert!(crowd.len() < 100, "the backlog never fills");
    }
    let limit = Duration::from_secs(1);
    let pool = H2Pool::new(Dialer::plain(address.to_string(), limit), None);
    let began = Instant::now();
    let calls = (0..40).map(|_| pool.send(post(Body::Empty)));
    for failed in futures::future::join_all(calls).await {
        let text = failed.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(text.contains("no answer within 1s"), "{text}");
    }
    assert!(
        began.elapsed() < 20 * limit,
        "the timeouts added up: {:?}",
        began.elapsed()
    );
}
