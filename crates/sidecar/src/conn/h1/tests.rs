//! Servers that keep connections open, and that close them.

use std::time::Duration;

use http::{Request, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::{H1Pool, IDLE_TIMEOUT};
use crate::body::Body;
use crate::conn::{Dialer, SendError};

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);

async fn server() -> (TcpListener, H1Pool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, H1Pool::new(Dialer::plain(address, LONG)))
}

/// Reads the head of a request and answers it.
async fn answer(stream: &mut TcpStream) {
    hear(stream).await;
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    stream.write_all(answer).await.unwrap();
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
async fn a_connection_is_used_again_and_closed_when_nobody_uses_it() {
    let (listener, pool) = server().await;
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        answer(&mut stream).await;
        answer(&mut stream).await;
        // Closed by the other end, although it will call again.
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
async fn a_server_that_closed_meanwhile_is_called_again_where_that_is_safe() {
    let (listener, pool) = server().await;
    let serving = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            answer(&mut stream).await;
            // It hears the next request, and is gone.
            hear(&mut stream).await;
        }
        let (mut stream, _) = listener.accept().await.unwrap();
        answer(&mut stream).await;
    });
    drop(call(&pool, get()).await.unwrap());
    // Sent again: a GET may be seen twice.
    drop(call(&pool, get()).await.unwrap());
    let post = Request::post("/").header("host", "h").body(Body::Empty).unwrap();
    let error = call(&pool, post).await.map(drop).unwrap_err();
    assert!(error.is_unavailable() && !error.is_repeatable(), "{error}");
    drop(call(&pool, get()).await.unwrap());
    timeout(LONG, serving).await.unwrap().unwrap();
}
