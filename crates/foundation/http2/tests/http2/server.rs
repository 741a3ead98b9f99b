//! The server against hyper's client, over pipes.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use outrigger_http2::frame::{HEAD, Head, Kind, PREFACE, flag};
use outrigger_http2::{Config, Error, Incoming, KeepAlive, Service, StreamError, Timeouts, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(10);
const CONFIG: Config = Config {
    stream_window: 64 * 1024,
    connection_window: 256 * 1024,
    max_streams: 16,
    header_list: 16 * 1024,
    send_buffer: 64 * 1024,
    ..Config::DEFAULT
};
const TIMES: Timeouts = Timeouts {
    preface: LONG,
    keep_alive: KeepAlive {
        interval: LONG,
        timeout: LONG,
    },
};

type Body = UnsyncBoxBody<Bytes, StreamError>;

/// Echoes bodies as they arrive; counts started and dropped calls.
struct Echo {
    may: Semaphore,
    begun: AtomicUsize,
    dropped: AtomicUsize,
}

struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Service for Echo {
    type Body = Body;

    async fn call(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let unfinished = Counted(&self.dropped);
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.may.acquire().await.unwrap().forget();
        std::mem::forget(unfinished);
        assert_ne!(request.uri().path(), "/panic");
        let streamed = request.uri().path() == "/stream";
        let length = request
            .headers()
            .get("x-large")
            .map(|v| v.to_str().unwrap().parse().unwrap());
        let body = match request.into_body() {
            Incoming::Empty => Bytes::new(),
            Incoming::Full(data) => data,
            Incoming::Stream(body) if streamed => return Response::new(body.boxed_unsync()),
            Incoming::Stream(body) => match body.collect().await {
                Ok(body) => body.to_bytes(),
                Err(why) => Bytes::from(why.to_string()),
            },
        };
        let mut response = Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync());
        response
            .headers_mut()
            .insert("content-type", HeaderValue::from_static("text/plain"));
        if let Some(length) = length {
            let value = HeaderValue::try_from("v".repeat(length)).unwrap();
            response.headers_mut().insert("x-large", value);
        }
        response
    }

    fn reason(error: StreamError) -> outrigger_http2::Reason {
        error.reason()
    }
}

struct Served {
    echo: Arc<Echo>,
    drain: Arc<Notify>,
    server: JoinHandle<Result<(), Error>>,
    client: DuplexStream,
}

fn served_within(permits: usize, times: Timeouts) -> Served {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let echo = Arc::new(Echo {
        may: Semaphore::new(permits),
        begun: AtomicUsize::new(0),
        dropped: AtomicUsize::new(0),
    });
    let (service, drain) = (Arc::clone(&echo), Arc::new(Notify::new()));
    let stop = Arc::clone(&drain);
    let server =
        tokio::spawn(async move { serve(far, None, service, &CONFIG, times, stop.notified()).await });
    Served {
        echo,
        drain,
        server,
        client: near,
    }
}

fn served(permits: usize) -> Served {
    served_within(permits, TIMES)
}

async fn connected(io: DuplexStream) -> SendRequest<Bytes> {
    let (sender, connection) = h2::client::Builder::new()
        .initial_connection_window_size(4 << 20)
        .handshake(io)
        .await
        .unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap()
}

fn post(path: &str) -> Request<()> {
    Request::post(format!("http://app{path}")).body(()).unwrap()
}

async fn soon<F: Future>(what: F) -> F::Output {
    timeout(LONG, what).await.unwrap()
}

async fn eventually(count: &AtomicUsize, wanted: usize) {
    let reached = async {
        while count.load(Ordering::SeqCst) != wanted {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon(reached).await;
}

async fn read(mut body: h2::RecvStream) -> Vec<u8> {
    let mut got = Vec::new();
    while let Some(data) = soon(body.data()).await {
        let data = data.unwrap();
        got.extend_from_slice(&data);
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    got
}

#[tokio::test]
async fn sends_settings_first() {
    let Served {
        mut client, server, ..
    } = served(0);
    let mut head = [0; 9];
    soon(client.read_exact(&mut head)).await.unwrap();
    // Type 4 (SETTINGS) of stream 0: RFC 9113 section 6.5.
    assert_eq!((head[3], &head[5..]), (4, &[0; 4][..]));
    client
        .write_all(b"\x16\x03\x01 this is TLS, not HTTP/2")
        .await
        .unwrap();
    assert!(matches!(soon(server).await.unwrap(), Err(Error::Protocol(_))));
}

#[tokio::test]
async fn echoes_bodies_of_any_size() {
    let Served { client, .. } = served(100);
    let mut sender = connected(client).await;
    for size in [0, 1, 16_384, 16_385, 200 * 1024, 3 * 1024 * 1024] {
        for path in ["/", "/stream"] {
            let (response, mut stream) = sender.send_request(post(path), false).unwrap();
            let sent: Vec<u8> = (0..size).map(|n: usize| (n * 31 % 251) as u8).collect();
            stream.send_data(sent.clone().into(), true).unwrap();
            let response = soon(response).await.unwrap();
            assert!(read(response.into_body()).await == sent, "{path} {size}");
            sender = sender.ready().await.unwrap();
        }
    }
}

#[tokio::test]
async fn answers_concurrent_calls() {
    let Served { client, echo, .. } = served(0);
    let sender = connected(client).await;
    let mut calls = Vec::new();
    for n in 0..16u8 {
        let (response, mut stream) = sender
            .clone()
            .ready()
            .await
            .unwrap()
            .send_request(post("/"), false)
            .unwrap();
        stream.send_data(vec![n; 50_000].into(), true).unwrap();
        calls.push((n, response));
    }
    echo.may.add_permits(16);
    for (n, response) in calls {
        let body = read(soon(response).await.unwrap().into_body()).await;
        assert!(body == vec![n; 50_000]);
    }
}

#[tokio::test]
async fn passes_trailers_both_ways() {
    let Served { client, .. } = served(1);
    let mut sender = connected(client).await;
    let (response, mut stream) = sender.send_request(post("/stream"), false).unwrap();
    stream.send_data(Bytes::from_static(b"body"), false).unwrap();
    let mut body = soon(response).await.unwrap().into_body();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    stream.send_trailers(trailers.clone()).unwrap();
    assert_eq!(soon(body.data()).await.unwrap().unwrap(), "body");
    assert!(soon(body.data()).await.is_none());
    assert_eq!(soon(body.trailers()).await.unwrap(), Some(trailers));
}

#[tokio::test]
async fn receives_heads_of_any_size() {
    let Served { client, .. } = served(2);
    let (mut sender, connection) = h2::client::Builder::new()
        .max_header_list_size(200 * 1024)
        .handshake::<_, Bytes>(client)
        .await
        .unwrap();
    tokio::spawn(connection);
    for length in ["100", "100000"] {
        let mut request = post("/");
        request
            .headers_mut()
            .insert("x-large", HeaderValue::from_static(length));
        let (response, _) = sender.send_request(request, true).unwrap();
        let response = soon(response).await.unwrap();
        assert_eq!(response.headers()["x-large"].len().to_string(), length);
    }
}

#[tokio::test]
async fn answers_431_for_oversized_headers() {
    let Served { client, .. } = served(1);
    let mut sender = connected(client).await;
    let mut request = post("/");
    let large = HeaderValue::try_from("x".repeat(20 * 1024)).unwrap();
    request.headers_mut().insert("x-more", large);
    let (response, _) = sender.send_request(request, true).unwrap();
    let response = soon(response).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    let (response, _) = sender.send_request(post("/"), true).unwrap();
    assert_eq!(soon(response).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn drops_cancelled_call() {
    let Served { client, echo, .. } = served(0);
    let mut sender = connected(client).await;
    let (_response, mut stream) = sender.send_request(post("/"), false).unwrap();
    eventually(&echo.begun, 1).await;
    assert_eq!(echo.dropped.load(Ordering::SeqCst), 0);
    stream.send_reset(Reason::CANCEL);
    eventually(&echo.dropped, 1).await;
}

#[tokio::test]
async fn drops_calls_of_lost_client() {
    let Served {
        client, echo, server, ..
    } = served(0);
    let (mut sender, connection) = h2::client::handshake(client).await.unwrap();
    let connection = tokio::spawn(connection);
    let _call = sender.send_request(post("/"), true).unwrap();
    eventually(&echo.begun, 1).await;
    connection.abort();
    eventually(&echo.dropped, 1).await;
    soon(server).await.unwrap().unwrap();
}

#[tokio::test]
async fn panicking_call_resets_stream_only() {
    let Served { client, .. } = served(2);
    let mut sender = connected(client).await;
    let (response, _) = sender.send_request(post("/panic"), true).unwrap();
    let error = soon(response).await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
    let (response, _) = sender.send_request(post("/"), true).unwrap();
    assert_eq!(soon(response).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn reset_body_reports_reason() {
    let Served { client, echo, .. } = served(0);
    let mut sender = connected(client).await;
    let (response, mut stream) = sender.send_request(post("/stream"), false).unwrap();
    eventually(&echo.begun, 1).await;
    echo.may.add_permits(1);
    stream.send_data(Bytes::from_static(b"some"), false).unwrap();
    let mut body = soon(response).await.unwrap().into_body();
    assert_eq!(soon(body.data()).await.unwrap().unwrap(), "some");
    stream.send_reset(Reason::ENHANCE_YOUR_CALM);
    let error = soon(body.data()).await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn drain_completes_calls_in_flight() {
    let Served {
        client,
        echo,
        drain,
        mut server,
    } = served(0);
    let mut sender = connected(client).await;
    let (response, mut stream) = sender.send_request(post("/"), false).unwrap();
    stream.send_data(Bytes::from_static(b"late"), true).unwrap();
    eventually(&echo.begun, 1).await;
    drain.notify_one();
    assert!(timeout(Duration::from_millis(50), &mut server).await.is_err());
    echo.may.add_permits(1);
    assert_eq!(read(soon(response).await.unwrap().into_body()).await, b"late");
    drop(sender);
    soon(server).await.unwrap().unwrap();
}

/// Invariant: a silent client without calls cannot delay a server's shutdown.
#[tokio::test(start_paused = true)]
async fn drain_ignores_silent_idle_client() {
    let Served {
        mut client,
        drain,
        server,
        ..
    } = served(0);
    // Sends the preface and SETTINGS, but no acknowledgements.
    client
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let begun = tokio::time::Instant::now();
    drain.notify_one();
    soon(server).await.unwrap().unwrap();
    let took = begun.elapsed();
    assert!(took <= Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn times_out_without_preface() {
    let short = Timeouts {
        preface: Duration::from_millis(20),
        ..TIMES
    };
    let Served {
        mut client, server, ..
    } = served_within(0, short);
    client.write_all(b"PRI * HTT").await.unwrap();
    assert!(matches!(
        soon(server).await.unwrap(),
        Err(Error::PrefaceTimeout(_))
    ));
}

#[tokio::test(start_paused = true)]
async fn disconnects_client_ignoring_pings() {
    let short = Timeouts {
        keep_alive: KeepAlive {
            interval: Duration::from_millis(20),
            timeout: Duration::from_millis(200),
        },
        ..TIMES
    };
    let Served { client, server, .. } = served_within(1, short);
    // A client that answers pings stays connected.
    let mut sender = connected(client).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!server.is_finished());
    let (response, _) = sender.send_request(post("/"), true).unwrap();
    soon(response).await.unwrap();
    // A client that does not is disconnected.
    let Served {
        mut client, server, ..
    } = served_within(1, short);
    client
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    assert!(matches!(
        soon(server).await.unwrap(),
        Err(Error::KeepAliveTimeout(_))
    ));
}

#[tokio::test]
async fn endless_resets_end_connection() {
    let Served { client, server, .. } = served(0);
    let mut sender = connected(client).await;
    for _ in 0..100_000 {
        let Ok(ready) = sender.ready().await else { break };
        sender = ready;
        let Ok((_, mut stream)) = sender.send_request(post("/"), false) else {
            break;
        };
        stream.send_reset(Reason::CANCEL);
        tokio::task::yield_now().await;
        sender = match sender.ready().await {
            Ok(sender) => sender,
            Err(error) => {
                assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
                break;
            }
        };
    }
    assert!(matches!(soon(server).await.unwrap(), Err(Error::Protocol(_))));
}

#[tokio::test]
async fn unread_stream_does_not_block_others() {
    let Served { client, echo, .. } = served(0);
    let mut sender = connected(client).await;
    let (_unread, mut stream) = sender.send_request(post("/stream"), false).unwrap();
    stream.send_data(vec![b'x'; 1 << 20].into(), true).unwrap();
    eventually(&echo.begun, 1).await;
    echo.may.add_permits(2);
    let mut sender = sender.ready().await.unwrap();
    let (response, mut stream) = sender.send_request(post("/"), false).unwrap();
    stream.send_data(vec![b'y'; 100].into(), true).unwrap();
    assert_eq!(read(soon(response).await.unwrap().into_body()).await.len(), 100);
}

/// A frame as bytes.
fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = Head {
        length: payload.len(),
        kind,
        flags,
        stream,
    };
    [&head.bytes(), payload].concat()
}

/// SETTINGS with an initial window for streams.
fn window(bytes: u8) -> Vec<u8> {
    frame(Kind::Settings, 0, 0, &[0, 4, 0, 0, 0, bytes])
}

/// HEADERS of `POST http://a/` without END_STREAM.
fn post_head() -> Vec<u8> {
    let fields = [0x83, 0x86, 0x84, 0x41, 1, b'a'];
    frame(Kind::Headers, flag::END_HEADERS, 1, &fields)
}

async fn hear(io: &mut DuplexStream) -> (Head, Vec<u8>) {
    let mut head = [0; HEAD];
    soon(io.read_exact(&mut head)).await.unwrap();
    let head = Head::read(&head).unwrap();
    let mut payload = vec![0; head.length];
    soon(io.read_exact(&mut payload)).await.unwrap();
    (head, payload)
}

#[tokio::test]
async fn acknowledges_window_change_first() {
    let mut client = served(1).client;
    let body = frame(Kind::Data, flag::END_STREAM, 1, b"hello");
    let input = [&PREFACE[..], &window(0), &post_head(), &body].concat();
    client.write_all(&input).await.unwrap();
    while hear(&mut client).await.0.kind != Kind::Headers {}
    client.write_all(&window(1)).await.unwrap();
    let (acknowledgement, _) = hear(&mut client).await;
    assert_eq!(
        (acknowledgement.kind, acknowledgement.flags),
        (Kind::Settings, flag::ACK)
    );
    let (data, payload) = hear(&mut client).await;
    assert_eq!((data.kind, &*payload), (Kind::Data, &b"h"[..]));
}

#[tokio::test]
async fn frames_after_reset_get_stream_closed() {
    // The call is still in flight when the frames arrive.
    let mut served = served(0);
    let input = [&PREFACE[..], &window(100), &post_head()].concat();
    served.client.write_all(&input).await.unwrap();
    eventually(&served.echo.begun, 1).await;
    let reset = frame(Kind::Reset, 0, 1, &8_u32.to_be_bytes());
    let behind = frame(Kind::Data, 0, 1, b"data");
    served.client.write_all(&[reset, behind].concat()).await.unwrap();
    loop {
        let (head, payload) = hear(&mut served.client).await;
        if head.kind == Kind::Reset {
            assert_eq!((head.stream, &*payload), (1, &5_u32.to_be_bytes()[..]));
            return;
        }
    }
}
