//! The client against our server and against hyper's.
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use outrigger_http2::{
    Config, Incoming, KeepAlive, Reason, SendRequest, Service, StreamError, Timeouts, connect, serve,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(10);
const CONFIG: Config = Config {
    stream_window: 64 * 1024,
    connection_window: 256 * 1024,
    max_streams: 4,
    header_list: 16 * 1024,
    send_buffer: 64 * 1024,
    ..Config::DEFAULT
};

async fn soon<F: Future>(what: F) -> F::Output {
    timeout(LONG, what).await.unwrap()
}

async fn dialled(io: DuplexStream) -> SendRequest<DuplexStream> {
    let (client, connection) = connect(io, &CONFIG, None);
    tokio::spawn(connection);
    client
}

fn post<B>(path: &str, body: B) -> Request<B> {
    Request::post(format!("http://app{path}")).body(body).unwrap()
}

fn impossible(never: Infallible) -> Reason {
    match never {}
}

async fn whole(body: Incoming) -> Bytes {
    match body {
        Incoming::Empty => Bytes::new(),
        Incoming::Full(data) => data,
        Incoming::Stream(body) => soon(body.collect()).await.unwrap().to_bytes(),
    }
}

/// Echoes requests, with trailers.
struct Mirror;

impl Service for Mirror {
    type Body = UnsyncBoxBody<Bytes, StreamError>;

    async fn call(self: Arc<Self>, request: Request<Incoming>) -> Response<Self::Body> {
        let trailers = async {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            Some(Ok(trailers))
        };
        let body = match request.into_body() {
            Incoming::Empty => Empty::new().map_err(|never| match never {}).boxed_unsync(),
            Incoming::Full(data) => Full::new(data).map_err(|never| match never {}).boxed_unsync(),
            Incoming::Stream(body) => body.boxed_unsync(),
        };
        Response::new(body.with_trailers(trailers).boxed_unsync())
    }

    fn reason(error: StreamError) -> Reason {
        error.reason()
    }
}

async fn mirrored() -> SendRequest<DuplexStream> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let times = Timeouts {
        preface: LONG,
        keep_alive: KeepAlive {
            interval: LONG,
            timeout: LONG,
        },
    };
    tokio::spawn(async move {
        serve(
            far,
            None,
            Arc::new(Mirror),
            &CONFIG,
            times,
            std::future::pending(),
        )
        .await
    });
    dialled(near).await
}

#[tokio::test]
async fn echoes_bodies_of_any_size() {
    let client = mirrored().await;
    for size in [0, 1, 16_384, 70_000, 2 << 20] {
        let sent = Bytes::from(vec![b'x'; size]);
        let answer = soon(client.send(post("/", Full::new(sent.clone())), impossible)).await;
        assert!(whole(answer.unwrap().into_body()).await == sent, "{size}");
    }
    assert_eq!(client.streams(), 0);
}

#[tokio::test]
async fn receives_trailers() {
    let client = mirrored().await;
    let answer = soon(client.send(post("/", Full::new(Bytes::from_static(b"body"))), impossible)).await;
    let Incoming::Stream(body) = answer.unwrap().into_body() else {
        panic!("trailers are lost")
    };
    let body = soon(body.collect()).await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
}

#[tokio::test]
async fn queues_requests_above_stream_limit() {
    let client = Arc::new(mirrored().await);
    // The first response brings the server's settings.
    soon(client.send(post("/", Empty::new()), impossible))
        .await
        .unwrap();
    let calls: Vec<_> = (0..50)
        .map(|n: u8| {
            let client = Arc::clone(&client);
            tokio::spawn(async move {
                let body = Bytes::from(vec![n; 5000]);
                let answer = client.send(post("/", Full::new(body.clone())), impossible).await;
                whole(answer.unwrap().into_body()).await == body
            })
        })
        .collect();
    for call in calls {
        assert!(soon(call).await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_passes_turn_on() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let client = Arc::new(dialled(near).await);
    let (free, freed) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        let mut server = h2::server::Builder::new()
            .max_concurrent_streams(1)
            .handshake::<_, Bytes>(far)
            .await
            .unwrap();
        let (_, mut first) = server.accept().await.unwrap().unwrap();
        first.send_response(Response::new(()), true).unwrap();
        let (_, mut second) = server.accept().await.unwrap().unwrap();
        tokio::spawn(async move {
            freed.await.unwrap();
            second.send_response(Response::new(()), true).unwrap();
        });
        let (_, mut last) = server.accept().await.unwrap().unwrap();
        last.send_response(Response::new(()), true).unwrap();
        while server.accept().await.is_some() {}
    });
    let call = || {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.send(post("/", Empty::<Bytes>::new()), impossible).await })
    };
    // The first response brings the limit; the second call takes the only stream.
    soon(call()).await.unwrap().unwrap();
    let second = call();
    // Time is paused: a sleep ends when all tasks wait.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (given_up, last) = (call(), call());
    tokio::time::sleep(Duration::from_millis(50)).await;
    given_up.abort();
    assert!(given_up.await.is_err() && !last.is_finished());
    free.send(()).unwrap();
    assert!(soon(second).await.unwrap().is_ok() && soon(last).await.unwrap().is_ok());
    drop(client);
    soon(serving).await.unwrap();
}

#[tokio::test]
async fn cancelled_request_frees_stream() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let client = dialled(near).await;
    let serving = tokio::spawn(async move {
        let mut server = h2::server::handshake(far).await.unwrap();
        let (request, mut respond) = server.accept().await.unwrap().unwrap();
        let reset = tokio::spawn(async move { std::future::poll_fn(|cx| respond.poll_reset(cx)).await });
        tokio::spawn(async move { while server.accept().await.is_some() {} });
        drop(request);
        reset.await.unwrap().unwrap()
    });
    let call = client.send(post("/", Empty::<Bytes>::new()), impossible);
    assert!(timeout(Duration::from_millis(100), call).await.is_err());
    assert_eq!(soon(serving).await.unwrap(), h2::Reason::CANCEL);
    assert_eq!(client.streams(), 0);
}

#[tokio::test]
async fn failed_body_resets_with_reason() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let client = dialled(near).await;
    let serving = tokio::spawn(async move {
        let mut server = h2::server::handshake(far).await.unwrap();
        let (request, _respond) = server.accept().await.unwrap().unwrap();
        tokio::spawn(async move { while server.accept().await.is_some() {} });
        let mut body = request.into_body();
        while let Some(data) = body.data().await {
            if let Err(error) = data {
                return error.reason();
            }
        }
        None
    });
    let pieces = [Ok(Frame::data(Bytes::from_static(b"begun"))), Err("broken")];
    let body = StreamBody::new(futures::stream::iter(pieces));
    let answer = soon(client.send(post("/", body), |_: &str| Reason::ENHANCE_YOUR_CALM)).await;
    let failed = answer.unwrap_err();
    assert_eq!(failed.error, StreamError::Reset(Reason::ENHANCE_YOUR_CALM));
    assert!(failed.request.is_none());
    assert_eq!(soon(serving).await.unwrap(), Some(h2::Reason::ENHANCE_YOUR_CALM));
}

#[tokio::test]
async fn goaway_completes_accepted_refuses_rest() {
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let client = dialled(near).await;
    let both = async {
        tokio::join!(
            client.send(post("/", Empty::<Bytes>::new()), impossible),
            client.send(post("/", Empty::<Bytes>::new()), impossible),
        )
    };
    let serving = async {
        let mut read = [0; 1024];
        let _first_words = far.read(&mut read).await.unwrap();
        // SETTINGS; GOAWAY with last stream 1 and NO_ERROR; response to stream 1: 204.
        far.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
        far.write_all(b"\0\0\x08\x07\0\0\0\0\0\0\0\0\x01\0\0\0\0")
            .await
            .unwrap();
        far.write_all(b"\0\0\x01\x01\x05\0\0\0\x01\x89").await.unwrap();
    };
    let ((taken, refused), ()) = soon(async { tokio::join!(both, serving) }).await;
    assert_eq!(taken.unwrap().status(), StatusCode::NO_CONTENT);
    let refused = refused.unwrap_err();
    assert_eq!(refused.error, StreamError::GoAway(Reason::NO_ERROR));
    assert!(refused.error.is_refusal() && refused.error.is_lost() && refused.request.is_none());
    assert!(client.is_closed());
    let late = soon(client.send(post("/", Empty::<Bytes>::new()), impossible)).await;
    assert!(late.unwrap_err().request.is_some());
}

#[tokio::test]
async fn connection_ends_without_handles() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (client, connection) = connect(near, &CONFIG, None);
    let running = tokio::spawn(connection);
    let serving = tokio::spawn(async move {
        let mut server = h2::server::handshake(far).await.unwrap();
        server.accept().await.is_none()
    });
    tokio::task::yield_now().await;
    drop(client);
    soon(running).await.unwrap().unwrap();
    assert!(soon(serving).await.unwrap());
}

#[tokio::test]
async fn skips_informational_responses() {
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let client = dialled(near).await;
    let serving = tokio::spawn(async move {
        let mut read = [0; 1024];
        let _first_words = far.read(&mut read).await.unwrap();
        // SETTINGS; HEADERS of stream 1 with :status 103 (a literal with the name of static index 8); then
        // 204.
        far.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
        far.write_all(b"\0\0\x05\x01\x04\0\0\0\x01\x08\x03103")
            .await
            .unwrap();
        far.write_all(b"\0\0\x01\x01\x05\0\0\0\x01\x89").await.unwrap();
        far
    });
    let answer = soon(client.send(post("/", Empty::<Bytes>::new()), impossible)).await;
    assert_eq!(answer.unwrap().status(), StatusCode::NO_CONTENT);
    drop(serving);
}
