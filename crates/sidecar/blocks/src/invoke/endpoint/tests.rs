//! Servers that stall in the middle of a response.

use http_body_util::BodyExt as _;
use outrigger_transport::stall::UNREAD_TIMEOUT;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::{Instant, pause, timeout};

use super::*;

/// The rest of a response that stalls after `answer`, and the time until it failed.
async fn rest_of(answer: &'static str) -> Option<(Result<Option<String>, String>, Duration)> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_u8().await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        std::future::pending::<()>().await;
    });
    let client = client(Some(RootCertStore::empty()), None)
        .unwrap()
        .build()
        .unwrap();
    let response = transmit(&client, url, Request::new(Body::Empty)).await.unwrap();
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "half");
    // From here on, time advances whenever all tasks are idle.
    pause();
    let begin = Instant::now();
    let rest = timeout(UNREAD_TIMEOUT * 10, body.frame()).await.ok()?;
    serving.abort();
    let rest = match rest {
        Some(Ok(frame)) => Ok(frame.into_data().ok().map(|data| format!("{data:?}"))),
        Some(Err(error)) => Err(described(error.as_ref())),
        None => Ok(None),
    };
    Some((rest, begin.elapsed()))
}

#[tokio::test]
async fn times_out_stalled_response() {
    let (rest, waited) = rest_of("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        .await
        .expect("the read has no timeout");
    let error = rest.unwrap_err();
    assert!(error.contains("no more of the response arrived"), "{error}");
    assert!(waited >= UNREAD_TIMEOUT, "{waited:?}");
}

#[tokio::test]
async fn times_out_stalled_chunked_response() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    let (rest, waited) = rest_of(head).await.expect("the read has no timeout");
    assert!(
        rest.is_err() && waited >= UNREAD_TIMEOUT,
        "{rest:?} after {waited:?}"
    );
}

#[tokio::test]
async fn event_stream_may_be_silent() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n";
    assert!(rest_of(head).await.is_none());
}
