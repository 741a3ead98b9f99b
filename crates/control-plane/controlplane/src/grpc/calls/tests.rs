use std::convert::Infallible;
use std::future::pending;

use futures::stream::{self, BoxStream, StreamExt};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use outrigger_accept::Limits;
use outrigger_grpc::fields::MAX_FIELDS;
use outrigger_grpc::messages::MESSAGE_TIMEOUT;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::{ServerLimits, drive};
use super::*;

const LIMITS: ServerLimits = ServerLimits {
    connections: Limits {
        connections: 1,
        per_source: 1,
    },
    ping_after: Duration::from_secs(10),
    ping_timeout: Duration::from_secs(20),
    streams: 1024,
};
const ONE: &str = "/dapr.proto.scheduler.v1.Scheduler/ScheduleJob";
const LONG: Duration = Duration::from_secs(24 * 3600);

/// Reads a request to its end and reports the result, or answers `/large` with a megabyte.
async fn answer(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    if request.uri().path() == "/large" {
        // Like tonic: one piece, then trailers.
        let message = Full::new(Bytes::from(vec![0; 1 << 20]));
        let trailers = async { Some(Ok(HeaderMap::new())) };
        return Ok(Response::new(Body::new(message.with_trailers(trailers))));
    }
    let read = request.into_body().collect().await;
    let said = match read {
        Ok(_) => Status::ok(""),
        Err(status) => status,
    };
    Ok(said.into_http())
}

type Pieces = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

fn begun(bytes: Bytes) -> Pieces {
    let piece = stream::iter([Ok(Frame::data(bytes))]);
    StreamBody::new(piece.chain(stream::pending()).boxed())
}

/// These bytes, then silence.
fn silent(bytes: &'static [u8]) -> Pieces {
    begun(Bytes::from_static(bytes))
}

/// An empty body.
fn nothing() -> Pieces {
    StreamBody::new(stream::empty().boxed())
}

async fn connect() -> (SendRequest<Pieces>, JoinHandle<()>) {
    connect_to(Calls::new()).await
}

async fn connect_to(calls: Arc<Calls>) -> (SendRequest<Pieces>, JoinHandle<()>) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let service = tower::service_fn(answer);
    let served = tokio::spawn(drive(far, LIMITS, calls, service, |_| {}, pending()));
    // This connection answers pings.
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(64 * 1024);
    let (sender, connection) = builder.handshake(TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    (sender, served)
}

fn call(path: &str, body: Pieces) -> Request<Pieces> {
    let request = Request::post(format!("http://localhost{path}"));
    request.body(body).unwrap()
}

async fn status(sender: &mut SendRequest<Pieces>, path: &str, body: Pieces) -> Status {
    let response = sender.send_request(call(path, body)).await.unwrap();
    Status::from_header_map(response.headers()).unwrap()
}

#[tokio::test]
async fn refuses_message_with_too_many_fields() {
    let (mut sender, _served) = connect().await;
    let many = [0x1a, 0].repeat(MAX_FIELDS + 1);
    let flat = [&[0, 0, 4, 0, 2][..], &many].concat();
    // The first message of a stream of jobs, with actor types in a nested message.
    let nested = [&[0, 0, 4, 0, 6, 0x0a, 0x82, 0x80, 0x10][..], &many].concat();
    for (path, message) in [
        (ONE, &flat),
        (CLIENT_STREAMING[0], &flat),
        (WATCH_JOBS, &flat),
        (WATCH_JOBS, &nested),
    ] {
        let status = status(&mut sender, path, begun(message.clone().into())).await;
        assert_eq!(
            status.code(),
            tonic::Code::ResourceExhausted,
            "{path}: {status:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn aborts_stalled_message_despite_pings() {
    let (mut sender, _served) = connect().await;
    for path in [ONE, CLIENT_STREAMING[0], CLIENT_STREAMING[1]] {
        let begun = Instant::now();
        let status = status(&mut sender, path, silent(b"\0\0\0\0\x09half")).await;
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded, "{path}: {status:?}");
        assert_eq!(begun.elapsed().as_secs(), MESSAGE_TIMEOUT.as_secs(), "{path}");
    }
    // Other calls are served during and after it.
    assert_eq!(status(&mut sender, ONE, nothing()).await.code(), tonic::Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn silent_stream_keeps_connection() {
    let (mut sender, served) = connect().await;
    for path in CLIENT_STREAMING {
        let whole = silent(b"\0\0\0\0\x04full");
        let silence = timeout(LONG, sender.send_request(call(path, whole))).await;
        assert!(silence.is_err(), "{path}: {silence:?}");
    }
    assert!(!served.is_finished());
}

#[tokio::test(start_paused = true)]
async fn closes_idle_connection_gracefully() {
    let (_sender, served) = connect().await;
    let begun = Instant::now();
    served.await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), FIRST_CALL_TIMEOUT.as_secs());
    let (mut sender, served) = connect().await;
    for _ in 0..3 {
        let _status = status(&mut sender, ONE, nothing()).await;
        tokio::time::sleep(IDLE_TIMEOUT - Duration::from_secs(1)).await;
        assert!(!served.is_finished());
    }
    timeout(Duration::from_secs(2), served).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn unread_response_closes_connection() {
    let (mut sender, served) = connect().await;
    let response = sender.send_request(call("/large", nothing())).await.unwrap();
    let begun = Instant::now();
    timeout(LONG, served).await.unwrap().unwrap();
    let waited = begun.elapsed();
    assert!(waited >= UNREAD_TIMEOUT && waited < IDLE_TIMEOUT, "{waited:?}");
    drop(response);
    // A response that is read slowly is not aborted.
    let (mut sender, served) = connect().await;
    let mut response = sender.send_request(call("/large", nothing())).await.unwrap();
    let mut read = 0;
    while let Some(frame) = response.frame().await {
        read += frame.unwrap().into_data().map_or(0, |data| data.len());
        tokio::time::sleep(UNREAD_TIMEOUT / 4).await;
    }
    assert_eq!(read, 1 << 20);
    assert!(!served.is_finished());
}

#[tokio::test(start_paused = true)]
async fn unread_response_aborts_only_its_call() {
    let (mut sender, served) = connect().await;
    let mut beside = sender.clone();
    let watching = beside.send_request(call(CLIENT_STREAMING[1], silent(b"\0\0\0\0\x04full")));
    let watching = tokio::spawn(watching);
    for _ in 0..3 {
        let response = sender.send_request(call("/large", nothing())).await.unwrap();
        // More than the time limit plus the polling interval.
        tokio::time::sleep(UNREAD_TIMEOUT + 2 * POLL_INTERVAL).await;
        let read = response.into_body().collect().await;
        let error = format!("{:?}", read.unwrap_err());
        assert!(error.contains("CANCEL, Remote"), "{error}");
        assert!(!watching.is_finished() && !served.is_finished());
    }
    // Responses that are read are served as before.
    let read = sender.send_request(call("/large", nothing())).await.unwrap();
    let read = read.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(read.len(), 1 << 20);
    assert!(!watching.is_finished() && !served.is_finished());
}

#[tokio::test]
async fn limits_incomplete_requests() {
    let (sender, _served) = connect().await;
    // Messages of 16 MiB, each lacking one byte.
    let most = MAX_UNFINISHED_PER_CONNECTION / (16 << 20);
    let calls = (0..=most).map(|_| {
        let mut sender = sender.clone();
        async move {
            let mut message = vec![0; 16 << 20];
            message[1..5].copy_from_slice(&(16_u32 << 20).to_be_bytes());
            status(&mut sender, ONE, begun(message.into())).await
        }
    });
    let (refused, ..) = futures::future::select_all(calls.map(Box::pin)).await;
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused:?}");
}

#[test]
fn knows_client_streaming_methods() {
    let proto = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../proto/dapr/proto");
    let mut streaming = Vec::new();
    for service in ["operator", "placement", "scheduler", "sentry"] {
        let file = proto.join(service).join("v1").join(format!("{service}.proto"));
        let text = std::fs::read_to_string(&file).unwrap();
        let mut package = "";
        let mut name = "";
        for line in text.lines().map(str::trim) {
            let words: Vec<_> = line.split([' ', '(', ';']).collect();
            match words[..] {
                ["package", given, ..] => package = given,
                ["service", given, ..] => name = given,
                ["rpc", method, "stream", ..] => streaming.push(format!("/{package}.{name}/{method}")),
                _ => {}
            }
        }
    }
    assert_eq!(streaming, CLIENT_STREAMING);
}

/// Invariant: connections with few calls are served, however many streams others keep open. A connection
/// above its share is refused until some of its calls end.
#[tokio::test]
async fn refuses_only_busy_connections() {
    const LIMIT: usize = 16;
    let limit: &'static SharedLimit = Box::leak(Box::new(SharedLimit::new(LIMIT)));
    let open = |sender: &mut SendRequest<Pieces>| {
        tokio::spawn(sender.send_request(call(WATCH_JOBS, silent(&[0, 0]))))
    };
    let mut quiet = Vec::new();
    for _ in 0..2 * LIMIT {
        let mut sender = connect_to(Calls::within(limit)).await.0;
        (0..3).for_each(|_| drop(open(&mut sender)));
        quiet.push(sender);
    }
    let mut busy = connect_to(Calls::within(limit)).await.0;
    let held: Vec<_> = (0..LIMIT).map(|_| open(&mut busy)).collect();
    let refused = status(&mut busy, ONE, nothing()).await;
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert!(refused.message().contains(budget::VARIABLE), "{refused}");
    for sender in &mut quiet {
        assert_eq!(status(sender, ONE, nothing()).await.code(), tonic::Code::Ok);
    }
    held.iter().for_each(JoinHandle::abort);
    while status(&mut busy, ONE, nothing()).await.code() != tonic::Code::Ok {
        tokio::task::yield_now().await;
    }
}
