//! What a server sees of the client, byte by byte, and what the client makes of answers.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{Method, Request, Response};
use http_body::{Body, Frame};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use outrigger_http1::{Answer, Client, Cut, Failed, Unanswered};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(20);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Sent = BoxBody<Bytes, BoxError>;
type Answered = Result<Response<Answer<DuplexStream, Sent>>, Unanswered>;

fn empty() -> Sent {
    Empty::new().map_err(Into::into).boxed()
}

fn full(text: &'static str) -> Sent {
    Full::from(text).map_err(Into::into).boxed()
}

/// A body of unknown length that comes as it is fed.
fn fed() -> (mpsc::UnboundedSender<Result<&'static str, BoxError>>, Sent) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let frames = stream::unfold(receiver, async |mut receiver: mpsc::UnboundedReceiver<_>| {
        let fed: Result<&str, BoxError> = receiver.recv().await?;
        Some((fed.map(|text| Frame::data(Bytes::from(text))), receiver))
    });
    (
        sender,
        BodyExt::boxed(StreamBody::new(SyncStream(Box::pin(frames)))),
    )
}

/// A stream that only one thread looks at.
struct SyncStream<S>(std::pin::Pin<Box<S>>);

impl<S: stream::Stream + Send + Sync> stream::Stream for SyncStream<S> {
    type Item = S::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

fn request(method: Method, body: Sent) -> Request<Sent> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = "http://ignored/path?q=1".parse().unwrap();
    request.headers_mut().insert("host", "h".parse().unwrap());
    request
}

fn call(client: Client<DuplexStream>, request: Request<Sent>) -> JoinHandle<Answered> {
    tokio::spawn(async move { timeout(LONG, client.call(request)).await.unwrap() })
}

async fn hear(io: &mut DuplexStream, end: &str) -> String {
    let mut heard = Vec::new();
    let reading = async {
        while !heard.ends_with(end.as_bytes()) {
            heard.push(io.read_u8().await.unwrap());
        }
    };
    let in_time = timeout(LONG, reading).await;
    let heard = String::from_utf8(heard).unwrap();
    assert!(in_time.is_ok(), "{heard}");
    heard
}

/// Has a request without a body answered with `answer`, after which the server closes if it `closes`.
async fn answered(method: Method, answer: &str, closes: bool) -> (Answered, DuplexStream) {
    let (io, mut server) = duplex(100_000);
    let calling = call(Client::new(io), request(method, empty()));
    hear(&mut server, "\r\n\r\n").await;
    server.write_all(answer.as_bytes()).await.unwrap();
    if closes {
        server.shutdown().await.unwrap();
    }
    (calling.await.unwrap(), server)
}

/// The whole body, and whether the connection can be used again.
async fn read(answer: Answer<DuplexStream, Sent>) -> (Result<Bytes, Cut>, bool) {
    match answer {
        Answer::Whole(data, client) => (Ok(data), client.is_some()),
        Answer::Coming(mut body) => {
            let mut data = Vec::new();
            while let Some(frame) = timeout(LONG, body.frame()).await.unwrap() {
                match frame {
                    Ok(frame) => data.extend_from_slice(frame.data_ref().map_or(&[], |data| &**data)),
                    Err(cut) => return (Err(cut), body.take_client().is_some()),
                }
            }
            (Ok(data.into()), body.take_client().is_some())
        }
    }
}

#[tokio::test]
async fn requests_tell_their_length() {
    for (method, body, expected) in [
        (Method::GET, empty(), "GET /path?q=1 HTTP/1.1\r\nhost: h\r\n\r\n"),
        (
            Method::POST,
            empty(),
            "POST /path?q=1 HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n",
        ),
        (
            Method::DELETE,
            full("abc"),
            "DELETE /path?q=1 HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\nabc",
        ),
    ] {
        let (io, mut server) = duplex(1000);
        let _calling = call(Client::new(io), request(method, body));
        let end = expected.lines().last().unwrap();
        let end = if end.is_empty() { "\r\n\r\n" } else { end };
        assert_eq!(hear(&mut server, end).await, expected);
    }
    let (io, mut server) = duplex(1000);
    let (sender, body) = fed();
    let mut told = request(Method::PUT, body);
    told.headers_mut()
        .insert("transfer-encoding", "gzip".parse().unwrap());
    let _calling = call(Client::new(io), told);
    let heard = hear(&mut server, "\r\n\r\n").await;
    assert_eq!(
        heard,
        "PUT /path?q=1 HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    for piece in ["one", "three"] {
        sender.send(Ok(piece)).unwrap();
        assert_eq!(
            hear(&mut server, &format!("{piece}\r\n")).await,
            format!("{:x}\r\n{piece}\r\n", piece.len())
        );
    }
    drop(sender);
    assert_eq!(hear(&mut server, "0\r\n\r\n").await, "0\r\n\r\n");
}

#[tokio::test]
async fn a_connection_carries_one_call_after_the_other() {
    let (io, mut server) = duplex(1000);
    let mut client = Client::new(io);
    for (answer, expected) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", "abc"),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
            "",
        ),
        (
            "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n",
            "",
        ),
    ] {
        assert!(client.is_usable());
        let calling = call(client, request(Method::POST, full("body")));
        hear(&mut server, "\r\n\r\nbody").await;
        server.write_all(answer.as_bytes()).await.unwrap();
        let Answer::Whole(data, again) = calling.await.unwrap().unwrap().into_body() else {
            panic!("not whole")
        };
        assert_eq!(data, expected);
        client = again.expect("a connection to use again");
    }
    // An answer in pieces gives its connection back at its end.
    for (first, second, expected) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabc", "def", "abcdef"),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "0\r\n\r\n",
            "abc",
        ),
    ] {
        let calling = call(client, request(Method::GET, empty()));
        hear(&mut server, "\r\n\r\n").await;
        server.write_all(first.as_bytes()).await.unwrap();
        let Answer::Coming(mut body) = calling.await.unwrap().unwrap().into_body() else {
            panic!("all of it")
        };
        assert!(body.take_client().is_none());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
        assert!(body.take_client().is_none());
        server.write_all(second.as_bytes()).await.unwrap();
        let rest = (&mut body).collect().await.unwrap().to_bytes();
        assert_eq!(rest, expected[3..]);
        client = body.take_client().expect("a connection to use again");
    }
    server.write_all(b"unasked").await.unwrap();
    assert!(!client.is_usable());
    let (io, server) = duplex(1000);
    drop(server);
    assert!(!Client::new(io).is_usable());
}

#[tokio::test]
async fn bodies_end_where_the_answer_says() {
    for (method, answer, closes, expected, again) in [
        (
            Method::HEAD,
            "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n",
            false,
            "",
            true,
        ),
        (
            Method::GET,
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n",
            false,
            "",
            true,
        ),
        (
            Method::GET,
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\nconnection: close\r\n\r\na",
            false,
            "a",
            false,
        ),
        (
            Method::GET,
            "HTTP/1.1 200 OK\r\n\r\nup to the end",
            true,
            "up to the end",
            false,
        ),
        (
            Method::GET,
            "HTTP/1.0 200\r\n\r\nup to the end",
            true,
            "up to the end",
            false,
        ),
        (
            Method::GET,
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n1\r\n",
            true,
            "1\r\n",
            false,
        ),
        (
            Method::GET,
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
            false,
            "a",
            false,
        ),
    ] {
        let (answer_head, _server) = answered(method, answer, closes).await;
        let (body, is_usable) = read(answer_head.unwrap().into_body()).await;
        assert_eq!((body.unwrap(), is_usable), (expected.into(), again), "{answer}");
    }
}

#[tokio::test]
async fn broken_answers_are_errors() {
    for (answer, malformed) in [
        ("", false),
        ("HTTP/1.1 200 OK\r\ncontent", false),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            true,
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", true),
        ("HTTP/1.1 99999 OK\r\n\r\n", true),
        ("SSH-2.0-server\r\n\r\n", true),
    ] {
        let (result, _server) = answered(Method::GET, answer, true).await;
        let error = result.map(drop).unwrap_err();
        assert!(error.sent);
        assert_eq!(error.failed.is_lost(), !malformed, "{answer}: {error}");
        assert_eq!(
            matches!(error.failed, Failed::Malformed(_)),
            malformed,
            "{answer}: {error}"
        );
    }
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n",
    ] {
        let (result, _server) = answered(Method::GET, answer, true).await;
        let (body, again) = read(result.unwrap().into_body()).await;
        let expected = if answer.ends_with("no size\r\n") {
            "malformed"
        } else {
            "connection ended"
        };
        assert!(body.unwrap_err().to_string().contains(expected));
        assert!(!again);
    }
    let (io, server) = duplex(1000);
    drop(server);
    let error = call(Client::new(io), request(Method::POST, full("a")))
        .await
        .unwrap()
        .map(drop)
        .unwrap_err();
    assert!(!error.sent && error.failed.is_lost(), "{error}");
}

#[tokio::test]
async fn an_answer_may_come_before_the_request_is_over() {
    let (io, mut server) = duplex(1000);
    let (sender, body) = fed();
    let calling = call(Client::new(io), request(Method::POST, body));
    sender.send(Ok("one")).unwrap();
    hear(&mut server, "one\r\n").await;
    server
        .write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        .await
        .unwrap();
    let Answer::Coming(mut body) = calling.await.unwrap().unwrap().into_body() else {
        panic!("all of it")
    };
    let reading = tokio::spawn(async move {
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        (first, body.frame().await.is_none(), body.take_client().is_some())
    });
    // While somebody waits for the answer the rest of the request goes out.
    sender.send(Ok("two")).unwrap();
    hear(&mut server, "two\r\n").await;
    drop(sender);
    hear(&mut server, "0\r\n\r\n").await;
    server.write_all(b"3\r\nabc\r\n0\r\n\r\n").await.unwrap();
    assert_eq!(
        timeout(LONG, reading).await.unwrap().unwrap(),
        ("abc".into(), true, true)
    );

    // An answer that ends first ends the request too.
    let (io, mut server) = duplex(1000);
    let (sender, body) = fed();
    let calling = call(Client::new(io), request(Method::POST, body));
    sender.send(Ok("one")).unwrap();
    hear(&mut server, "one\r\n").await;
    server
        .write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")
        .await
        .unwrap();
    let (body, again) = read(calling.await.unwrap().unwrap().into_body()).await;
    assert_eq!((body.unwrap(), again), ("no".into(), false));
    assert!(sender.is_closed());
}

#[tokio::test]
async fn a_request_that_fails_is_an_error_of_the_request() {
    let (io, mut server) = duplex(1000);
    let (sender, body) = fed();
    let calling = call(Client::new(io), request(Method::POST, body));
    sender.send(Ok("one")).unwrap();
    hear(&mut server, "one\r\n").await;
    sender.send(Err("lost".into())).unwrap();
    let error = calling.await.unwrap().map(drop).unwrap_err();
    assert!(
        matches!(&error.failed, Failed::Body(why) if why.to_string() == "lost"),
        "{error}"
    );
    assert!(!error.failed.is_lost());
    let mut rest = String::new();
    server.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "", "no last chunk");
}

#[tokio::test]
async fn a_server_may_answer_and_close_while_it_is_written_to() {
    let (io, mut server) = duplex(64);
    let calling = call(Client::new(io), request(Method::POST, full(LARGE)));
    server
        .write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        .await
        .unwrap();
    drop(server);
    let response = calling.await.unwrap().unwrap();
    assert_eq!(response.status(), 413);
    let (_, again) = read(response.into_body()).await;
    assert!(!again);
}

static LARGE: &str = match str::from_utf8(&[b'x'; 10_000]) {
    Ok(text) => text,
    Err(_) => "",
};

#[tokio::test]
async fn large_bodies_pass_both_ways_at_once() {
    let (io, server) = duplex(1000);
    let body = Full::from(vec![b'x'; 1_000_000]).map_err(Into::into).boxed();
    let calling = call(Client::new(io), request(Method::POST, body));
    let (mut reader, mut writer) = tokio::io::split(server);
    let echoing = tokio::spawn(async move {
        writer
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
            .await
            .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(reader.read_u8().await.unwrap());
        }
        tokio::io::copy(&mut reader, &mut writer).await.unwrap()
    });
    let answer = calling.await.unwrap().unwrap().into_body();
    let Answer::Coming(body) = &answer else {
        panic!("all of it")
    };
    assert_eq!(body.size_hint().exact(), Some(1_000_000));
    let (echoed, again) = read(answer).await;
    assert!(echoed.unwrap() == vec![b'x'; 1_000_000] && again);
    assert_eq!(timeout(LONG, echoing).await.unwrap().unwrap(), 1_000_000);
}
