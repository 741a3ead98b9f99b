//! The client against hyper's server, and against misbehaving peers.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use outrigger_http2::frame::{HEAD, Head, Kind, flag};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Duration, timeout};

use super::Client;
use super::frames::framed;
use crate::load::call::Call;
use crate::load::connection::Connection;
use crate::load::wire::{Counted, Traffic};

type Answer = Response<BoxBody<Bytes, Infallible>>;

const MEGABYTE: usize = 1 << 20;

async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A server with default windows, which responds according to the path.
async fn server() -> u16 {
    let (listener, port) = listen().await;
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let connection = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(65_535)
                .initial_connection_window_size(65_535)
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(connection);
        }
    });
    port
}

async fn answer(request: Request<Incoming>) -> Result<Answer, hyper::Error> {
    let path = request.uri().path().to_owned();
    assert_eq!(request.headers()["te"], "trailers");
    let body = request.into_body().collect().await?.to_bytes();
    let mut answer = echo(body);
    match &*path {
        "/refused" => {
            answer = Response::new(Full::default().boxed());
            answer.headers_mut().insert("grpc-status", "5".parse().unwrap());
            answer
                .headers_mut()
                .insert("grpc-message", "not here".parse().unwrap());
        }
        "/unavailable" => *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE,
        "/long" => {
            let long = "x".repeat(40_000).parse().unwrap();
            answer.headers_mut().insert("long", long);
        }
        _ => {}
    }
    Ok(answer)
}

fn echo(body: Bytes) -> Answer {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(body).with_trailers(std::future::ready(Some(Ok(trailers))));
    Response::new(body.boxed())
}

async fn connect(call: &Call) -> Connection {
    Connection::open(call, &Arc::new(Traffic::default()))
        .await
        .unwrap()
}

#[tokio::test]
async fn reuses_connection() {
    let port = server().await;
    for (path, payload, calls) in [
        ("/any/call", 10, 50),
        ("/long", 10, 3),
        // More than any window, in both directions.
        ("/any/call", MEGABYTE, 20),
    ] {
        let call = Call::unary(port, path, payload).unwrap();
        let mut connection = connect(&call).await;
        for _ in 0..calls {
            let answer = connection.call().await.unwrap();
            assert!(answer.payload == payload && answer.head <= answer.end);
        }
    }
}

#[tokio::test]
async fn non_success_is_error() {
    let port = server().await;
    for (path, error) in [
        ("/refused", "grpc-status 5 not here"),
        ("/unavailable", "status 503"),
    ] {
        let call = Call::unary(port, path, 10).unwrap();
        let refused = connect(&call).await.call().await.unwrap_err();
        assert_eq!(refused.to_string(), error);
    }
}

#[tokio::test]
async fn goaway_stops_new_calls() {
    let (listener, port) = listen().await;
    let call = Call::unary(port, "/any/call", 10).unwrap();
    let (mut connection, accepted) = tokio::join!(connect(&call), listener.accept());
    let served = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(accepted.unwrap().0), service_fn(answer));
    tokio::pin!(served);
    tokio::select! {
        answer = connection.call() => drop(answer.unwrap()),
        ended = &mut served => panic!("{ended:?}"),
    }
    served.as_mut().graceful_shutdown();
    // Calls in flight at the GOAWAY are still answered.
    let (last, _) = tokio::join!(connection.call(), served);
    last.unwrap();
    let refused = connection.call().await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "connection: the peer sent GOAWAY with code 0"
    );
}

/// The result of a call to a peer that sends these bytes and reads everything.
async fn against(bytes: Vec<u8>, close: bool) -> String {
    let (listener, port) = listen().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        if close {
            stream.shutdown().await.unwrap();
        }
        let _gone = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    });
    let call = Call::unary(port, "/any/call", 10).unwrap();
    let stream = TcpStream::connect(call.address).await.unwrap();
    let counted = Counted::new(stream, Arc::new(Traffic::default()));
    let mut client = Client::open(counted, Duration::from_millis(100)).await.unwrap();
    let outcome = timeout(Duration::from_secs(20), client.call(&call))
        .await
        .expect("no hang");
    outcome.unwrap_err().to_string()
}

#[tokio::test]
async fn calls_do_not_hang() {
    let silent = "connection: no data from the peer for 0.1 s";
    assert_eq!(against(Vec::new(), false).await, silent);
    assert_eq!(against(framed(Kind::Settings, 0, 0, &[]), false).await, silent);
    assert_eq!(against(Vec::new(), true).await, "connection: closed by the peer");
    let http = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_vec();
    assert_eq!(
        against(http, false).await,
        "connection: the peer sends a frame that is too large"
    );
    let unfinished = framed(Kind::Settings, 0, 0, &[0; 6])[..10].to_vec();
    assert_eq!(against(unfinished, false).await, silent);
}

#[tokio::test]
async fn sends_call_in_one_write() {
    let (listener, port) = listen().await;
    let call = Call::unary(port, "/any/call", 1000).unwrap();
    let mut connection = connect(&call).await;
    let (mut peer, _) = listener.accept().await.unwrap();
    let mut bytes = vec![0; 64 << 10];
    let hello = 24 + HEAD + 12 + HEAD + 4;
    peer.read_exact(&mut bytes[..hello]).await.unwrap();
    let read = async {
        let count = peer.read(&mut bytes).await.unwrap();
        let head = Head::read(&bytes).unwrap();
        let data = Head::read(&bytes[HEAD + head.length..]).unwrap();
        assert_eq!(
            (head.kind, data.kind, data.flags),
            (Kind::Headers, Kind::Data, flag::END_STREAM)
        );
        assert_eq!(count, 2 * HEAD + head.length + call.body().len());
    };
    tokio::select! {
        outcome = connection.call() => panic!("{outcome:?}"),
        () = read => {}
    }
}
