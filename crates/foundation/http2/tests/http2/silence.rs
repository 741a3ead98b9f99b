//! Peers that stall. Time is paused: it advances when all tasks are idle.
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use outrigger_http2::frame::{HEAD, Head, Kind, PREFACE, flag};
use outrigger_http2::limits::{CROWDED_STALL, IDLE, STALL};
use outrigger_http2::{
    Config, Error, Incoming, KeepAlive, Reason, SendRequest, Service, SharedLimit, StreamError, Timeouts,
    connect, serve,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const CONFIG: Config = Config {
    stream_window: 1 << 20,
    connection_window: 1 << 20,
    send_buffer: 64 * 1024,
    ..Config::DEFAULT
};
const TIMES: Timeouts = Timeouts {
    preface: Duration::from_secs(10),
    keep_alive: KeepAlive {
        interval: Duration::from_secs(10),
        timeout: Duration::from_secs(5),
    },
};
/// Maximum delay of checks that run at intervals.
const LATE: Duration = Duration::from_secs(20);

/// Responds with the request's body, or with its error.
struct Echo;

impl Service for Echo {
    type Body = UnsyncBoxBody<Bytes, StreamError>;

    async fn call(self: Arc<Self>, request: Request<Incoming>) -> Response<Self::Body> {
        let large = request.uri().path() == "/large";
        let body = match request.into_body() {
            _ if large => Bytes::from(vec![0; 1 << 20]),
            Incoming::Empty => Bytes::new(),
            Incoming::Full(data) => data,
            Incoming::Stream(body) => match body.collect().await {
                Ok(body) => body.to_bytes(),
                Err(why) => return failed(why),
            },
        };
        Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync())
    }

    fn reason(error: StreamError) -> Reason {
        error.reason()
    }
}

fn failed(why: StreamError) -> Response<UnsyncBoxBody<Bytes, StreamError>> {
    let text = Full::new(Bytes::from(why.to_string()));
    let mut response = Response::new(text.map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::REQUEST_TIMEOUT;
    response
}

type Server = JoinHandle<Result<(), Error>>;

fn served(config: Config) -> (DuplexStream, Server) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let server = tokio::spawn(async move {
        serve(far, None, Arc::new(Echo), &config, TIMES, std::future::pending()).await
    });
    (near, server)
}

fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = Head {
        length: payload.len(),
        kind,
        flags,
        stream,
    };
    [&head.bytes(), payload].concat()
}

/// HEADERS of a POST without END_STREAM.
fn post(path: &str, grpc: bool) -> Vec<u8> {
    let mut block = vec![0x83, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend_from_slice(path.as_bytes());
    if grpc {
        // content-type, a literal with the name of static index 31.
        block.extend_from_slice(b"\x0f\x10\x10application/grpc");
    }
    frame(Kind::Headers, flag::END_HEADERS, 1, &block)
}

fn greeting() -> Vec<u8> {
    [&PREFACE[..], &frame(Kind::Settings, 0, 0, &[])].concat()
}

async fn hear(io: &mut ReadHalf<DuplexStream>) -> Option<(Head, Vec<u8>)> {
    let mut head = [0; HEAD];
    io.read_exact(&mut head).await.ok()?;
    let head = Head::read(&head).unwrap();
    let mut payload = vec![0; head.length];
    io.read_exact(&mut payload).await.ok()?;
    Some((head, payload))
}

/// Answers pings until a frame of `kind` arrives. Returns its payload and the elapsed time.
async fn until(kind: Kind, io: DuplexStream, input: &[u8]) -> (Vec<u8>, Duration, WriteHalf<DuplexStream>) {
    let (mut read, mut write) = tokio::io::split(io);
    let begin = Instant::now();
    write.write_all(input).await.unwrap();
    loop {
        let (head, payload) = hear(&mut read).await.unwrap();
        if head.kind == Kind::Ping && !head.has(flag::ACK) {
            let ping_ack = frame(Kind::Ping, flag::ACK, 0, &payload);
            write.write_all(&ping_ack).await.unwrap();
        }
        if head.kind == kind && !(kind == Kind::Settings) {
            tokio::spawn(async move { while hear(&mut read).await.is_some() {} });
            return (payload, begin.elapsed(), write);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_request_body_is_answered() {
    let (io, _server) = served(CONFIG);
    let input = [greeting(), post("/", false), frame(Kind::Data, 0, 1, b"half")].concat();
    let (answer, waited, _io) = until(Kind::Data, io, &input).await;
    let answer = String::from_utf8(answer).unwrap();
    assert_eq!(answer, StreamError::Stalled(STALL).to_string());
    assert!(waited >= STALL && waited < STALL + LATE, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn slow_body_is_not_stalled() {
    let (io, _server) = served(CONFIG);
    let input = [greeting(), post("/", false)].concat();
    let (_, _, mut write) = until(Kind::WindowUpdate, io, &input).await;
    for _ in 0..10 {
        // Pings are not answered here, but other frames prove that the peer is alive.
        for _ in 0..12 {
            sleep(Duration::from_secs(4)).await;
            write
                .write_all(&frame(Kind::Ping, flag::ACK, 0, &[0; 8]))
                .await
                .unwrap();
        }
        write.write_all(&frame(Kind::Data, 0, 1, b"x")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn grpc_streams_may_be_silent() {
    let (io, server) = served(Config { grpc: true, ..CONFIG });
    let input = [greeting(), post("/", true), frame(Kind::Data, 0, 1, b"half")].concat();
    let silent = timeout(STALL * 100, until(Kind::Data, io, &input)).await;
    assert!(silent.is_err() && !server.is_finished());
}

#[tokio::test(start_paused = true)]
async fn grpc_content_type_does_not_lift_limit() {
    let (io, _server) = served(CONFIG);
    let input = [greeting(), post("/", true), frame(Kind::Data, 0, 1, b"half")].concat();
    let (answer, waited, _io) = until(Kind::Data, io, &input).await;
    let answer = String::from_utf8(answer).unwrap();
    assert_eq!(answer, StreamError::Stalled(STALL).to_string());
    assert!(waited >= STALL && waited < STALL + LATE, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn unread_response_is_reset() {
    let (io, _server) = served(CONFIG);
    let input = [greeting(), post("/large", false)].concat();
    let (reason, waited, _io) = until(Kind::Reset, io, &input).await;
    assert_eq!(reason, Reason::CANCEL.0.to_be_bytes());
    assert!(waited >= STALL && waited < STALL + LATE, "{waited:?}");
}

/// Whether an unread gRPC response of 1 MiB is aborted when all connections share `limit` bytes.
async fn makes_room(limit: usize) -> bool {
    let (io, _server) = served(Config {
        grpc: true,
        unread_memory: Some(Box::leak(Box::new(SharedLimit::new(limit)))),
        ..CONFIG
    });
    let input = [greeting(), post("/large", false)].concat();
    let Ok((reason, waited, _io)) = timeout(STALL * 10, until(Kind::Reset, io, &input)).await else {
        return false;
    };
    assert_eq!(reason, Reason::CANCEL.0.to_be_bytes());
    assert!(waited >= CROWDED_STALL && waited <= STALL / 2, "{waited:?}");
    true
}

#[tokio::test(start_paused = true)]
async fn unread_grpc_response_makes_room() {
    assert!(makes_room(3 << 19).await, "it takes more than half");
    assert!(!makes_room(4 << 20).await);
}

#[tokio::test(start_paused = true)]
async fn stalled_sized_response_is_reset() {
    for length in [Some(10), None] {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (client, connection) = connect(near, &CONFIG, None);
        tokio::spawn(connection);
        let serving = tokio::spawn(async move {
            let mut server = h2::server::handshake(far).await.unwrap();
            let (_request, mut respond) = server.accept().await.unwrap().unwrap();
            let mut head = Response::new(());
            if let Some(length) = length {
                head.headers_mut()
                    .insert("content-length", HeaderValue::from(length));
            }
            let mut body = respond.send_response(head, false).unwrap();
            body.send_data(Bytes::from_static(b"half"), false).unwrap();
            tokio::spawn(async move { while server.accept().await.is_some() {} });
            let _reset = std::future::poll_fn(|cx| body.poll_reset(cx)).await;
        });
        let request = Request::post("http://app/").body(Empty::<Bytes>::new()).unwrap();
        let answer = client.send(request, |never| match never {}).await.unwrap();
        let Incoming::Stream(body) = answer.into_body() else {
            panic!("the rest is still to come")
        };
        let read = timeout(STALL * 10, body.collect()).await;
        match length {
            Some(_) => assert_eq!(read.unwrap().unwrap_err(), StreamError::Stalled(STALL)),
            None => assert!(read.is_err()),
        }
        serving.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn incomplete_frame_ends_connection() {
    let half_of_headers = post("/", true)[..12].to_vec();
    let fields_without_end = frame(Kind::Headers, 0, 1, &[0x83, 0x86]);
    let half_of_data = [
        post("/", true),
        frame(Kind::Data, 0, 1, &[0; 1000])[..20].to_vec(),
    ]
    .concat();
    for (input, more) in [
        (half_of_headers, vec![0x84]),
        (fields_without_end, frame(Kind::Continuation, 0, 1, &[])),
        (half_of_data, vec![0]),
    ] {
        let (mut io, server) = served(Config { grpc: true, ..CONFIG });
        let begin = Instant::now();
        io.write_all(&[greeting(), input].concat()).await.unwrap();
        let (mut read, mut write) = tokio::io::split(io);
        tokio::spawn(async move { while hear(&mut read).await.is_some() {} });
        // Sends a little from time to time, so that the connection does not look dead.
        for _ in 0..4 {
            sleep(Duration::from_secs(9)).await;
            write.write_all(&more).await.unwrap();
        }
        let trickle = tokio::spawn(async move {
            while write.write_all(&more[..more.len().min(1)]).await.is_ok() {
                sleep(Duration::from_secs(9)).await;
            }
        });
        let ended = server.await.unwrap();
        assert!(matches!(ended, Err(Error::IncompleteFrame(STALL))), "{ended:?}");
        assert!(begin.elapsed() >= STALL, "{:?}", begin.elapsed());
        trickle.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn client_reading_nothing_is_disconnected() {
    let (mut io, server) = served(Config { grpc: true, ..CONFIG });
    // The client opens its windows but does not read the socket.
    let input = [
        greeting(),
        frame(Kind::Settings, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]),
        frame(Kind::WindowUpdate, 0, 0, &(1_u32 << 30).to_be_bytes()),
        post("/large", true),
    ];
    io.write_all(&input.concat()).await.unwrap();
    let (read, mut write) = tokio::io::split(io);
    let alive = tokio::spawn(async move {
        let sign = frame(Kind::Ping, flag::ACK, 0, &[0; 8]);
        while write.write_all(&sign).await.is_ok() {
            sleep(Duration::from_secs(4)).await;
        }
    });
    let begin = Instant::now();
    let ended = server.await.unwrap();
    assert!(matches!(ended, Err(Error::WriteTimeout(STALL))), "{ended:?}");
    assert!(begin.elapsed() < STALL + LATE);
    alive.await.unwrap();
    drop(read);
}

#[tokio::test(start_paused = true)]
async fn idle_connection_closes_gracefully() {
    let (io, server) = served(CONFIG);
    let (mut sender, connection) = h2::client::handshake(io).await.unwrap();
    let connection = tokio::spawn(connection);
    // Not idle during a call, nor for a time after it.
    for _ in 0..3 {
        sleep(IDLE / 2).await;
        sender = sender.ready().await.unwrap();
        let request = Request::get("http://app/").body(()).unwrap();
        let (response, _) = sender.send_request(request, true).unwrap();
        response.await.unwrap();
    }
    let begin = Instant::now();
    // The side that closes last may not be able to send its close.
    let _ended = (connection.await.unwrap(), server.await.unwrap());
    assert!(begin.elapsed() >= IDLE - LATE && begin.elapsed() < IDLE + LATE);
}

/// A client that pings rarely, and only during a call.
async fn pinging_rarely(io: DuplexStream) -> (SendRequest<DuplexStream>, Server) {
    let config = Config {
        ping_idle: false,
        ..CONFIG
    };
    let keep_alive = KeepAlive {
        interval: SELDOM,
        timeout: Duration::from_secs(20),
    };
    let (client, connection) = connect(io, &config, Some(keep_alive));
    (client, tokio::spawn(connection))
}

/// Longer than the interval of the checks.
const SELDOM: Duration = Duration::from_secs(310);

#[tokio::test(start_paused = true)]
async fn pings_during_calls_only() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (client, connection) = pinging_rarely(near).await;
    let (mut read, mut write) = tokio::io::split(far);
    write.write_all(&frame(Kind::Settings, 0, 0, &[])).await.unwrap();
    let pings = tokio::spawn(async move {
        let mut preface = [0; PREFACE.len()];
        read.read_exact(&mut preface).await.unwrap();
        let mut pings = Vec::new();
        while let Some((head, _)) = hear(&mut read).await {
            if head.kind == Kind::Ping {
                pings.push(Instant::now());
            }
        }
        pings
    });
    sleep(SELDOM * 10).await;
    assert!(!connection.is_finished(), "an idle connection stays");
    let begin = Instant::now();
    let request = Request::post("http://app/").body(Empty::<Bytes>::new()).unwrap();
    let answer = timeout(SELDOM * 10, client.send(request, |never| match never {})).await;
    assert!(answer.unwrap().is_err());
    let waited = begin.elapsed();
    assert!(waited >= SELDOM && waited < SELDOM + LATE * 3, "{waited:?}");
    drop((client, write));
    let pings = pings.await.unwrap();
    assert_eq!(pings.len(), 1);
    assert!(pings[0] - begin > SELDOM - LATE, "{:?}", pings[0] - begin);
}

#[tokio::test(start_paused = true)]
async fn detects_stalls_despite_rare_pings() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (client, _connection) = pinging_rarely(near).await;
    tokio::spawn(async move {
        let mut server = h2::server::handshake(far).await.unwrap();
        let (_request, mut respond) = server.accept().await.unwrap().unwrap();
        let head = Response::builder().header("content-length", 10).body(()).unwrap();
        let mut body = respond.send_response(head, false).unwrap();
        body.send_data(Bytes::from_static(b"half"), false).unwrap();
        while server.accept().await.is_some() {}
    });
    let request = Request::post("http://app/").body(Empty::<Bytes>::new()).unwrap();
    let answer = client.send(request, |never| match never {}).await.unwrap();
    let Incoming::Stream(body) = answer.into_body() else {
        panic!("the rest is still to come")
    };
    let begin = Instant::now();
    let read = timeout(STALL * 10, body.collect()).await;
    assert_eq!(read.unwrap().unwrap_err(), StreamError::Stalled(STALL));
    assert!(begin.elapsed() < STALL + LATE * 2, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn silence_counts_from_last_frame() {
    let keep_alive = KeepAlive {
        interval: Duration::from_secs(3),
        timeout: Duration::from_secs(1),
    };
    let limit = keep_alive.interval + keep_alive.timeout;
    for tenths in [1, 15, 29, 31, 45, 59] {
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        let (client, connection) = connect(near, &CONFIG, Some(keep_alive));
        let connection = tokio::spawn(connection);
        far.write_all(&frame(Kind::Settings, 0, 0, &[])).await.unwrap();
        let (mut read, mut write) = tokio::io::split(far);
        let hearing = tokio::spawn(async move { while receives_any(&mut read).await {} });
        let sign = frame(Kind::Ping, flag::ACK, 0, &[0; 8]);
        sleep(Duration::from_millis(100 * tenths) / 2).await;
        write.write_all(&sign).await.unwrap();
        sleep(Duration::from_millis(100 * tenths) / 2).await;
        write.write_all(&sign).await.unwrap();
        let last = Instant::now();
        let ended = connection.await.unwrap();
        assert!(matches!(ended, Err(Error::KeepAliveTimeout(_))), "{ended:?}");
        let noticed = last.elapsed();
        assert!(noticed >= limit, "{tenths}: {noticed:?}");
        assert!(
            noticed < limit + Duration::from_millis(100),
            "{tenths}: {noticed:?}"
        );
        drop(client);
        hearing.await.unwrap();
    }
}

/// Whether the other side sends anything.
async fn receives_any(io: &mut ReadHalf<DuplexStream>) -> bool {
    io.read_u8().await.is_ok()
}
