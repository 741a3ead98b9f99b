//! Byte-level conversations.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Times, serve_timed};
use crate::body::{Body, BoxError};
use crate::listen::{Client as Caller, Handler, HeldAnswers, Options, Versions};
use crate::response::empty_response;

/// Longer than any step takes on a busy machine.
const LONG: Duration = Duration::from_secs(30);
/// Limits that no test reaches.
const PATIENT: Times = Times {
    head: LONG,
    idle: LONG,
    body: LONG,
};
const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const UPGRADE: &str = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n";

/// Returns once all tasks are idle: in paused time, timers fire only then.
async fn settled() {
    sleep(Duration::from_millis(1)).await;
}

struct Answers<F>(F);

impl<F, R> Handler for Answers<F>
where
    F: Fn(Request<Body>) -> R + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    fn handle(
        self: Arc<Self>,
        _client: Arc<Caller>,
        request: Request<Body>,
    ) -> impl Future<Output = Response<Body>> + Send {
        (self.0)(request)
    }
}

/// Responds with the target and the body, or with 400 if the body is invalid.
async fn echo(request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    match body.collect().await {
        Ok(body) => {
            let body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
            let target = head.uri.path_and_query().unwrap();
            Response::new(format!("<{target} {body}>").into())
        }
        Err(error) => {
            let text = crate::error::chain(&*error);
            let mut response = Response::new(text.into());
            *response.status_mut() = http::StatusCode::BAD_REQUEST;
            response
        }
    }
}

struct Client {
    io: DuplexStream,
    served: JoinHandle<Result<(), BoxError>>,
    drain: CancellationToken,
}

impl Client {
    fn connect<F, R>(times: Times, answer: F) -> Self
    where
        F: Fn(Request<Body>) -> R + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::sharing(&HeldAnswers::default(), times, answer)
    }

    /// One of several clients of a server.
    fn sharing<F, R>(held: &HeldAnswers, times: Times, answer: F) -> Self
    where
        F: Fn(Request<Body>) -> R + Send + Sync + 'static,
        R: Future<Output = Response<Body>> + Send + 'static,
    {
        let (io, theirs) = duplex(16 * 1024);
        let drain = CancellationToken::new();
        let drained = drain.clone();
        let options = Options {
            versions: Versions::Both,
            tls: None,
            head_limit: 4096,
            header_list_limit: 64 * 1024,
            connections: crate::listen::api_connections(),
            held: held.clone(),
            unfinished: crate::listen::unfinished_bounds(None),
        };
        let served = tokio::spawn(async move {
            let handler = Arc::new(Answers(answer));
            serve_timed(theirs, handler, Caller::default(), &options, &drained, times).await
        });
        Self { io, served, drain }
    }

    fn echo() -> Self {
        Self::connect(PATIENT, echo)
    }

    async fn say(&mut self, text: &str) {
        self.io.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until the received text ends with `end`.
    async fn hear(&mut self, end: &str) -> String {
        let mut heard = Vec::new();
        let reading = async {
            while !heard.ends_with(end.as_bytes()) {
                heard.push(self.io.read_u8().await.unwrap());
            }
        };
        let in_time = timeout(LONG, reading).await;
        let heard = String::from_utf8_lossy(&heard).into_owned();
        assert!(in_time.is_ok(), "{heard}");
        heard
    }

    /// Reads until the server closes.
    async fn rest(&mut self) -> String {
        let mut heard = Vec::new();
        let read = timeout(LONG, self.io.read_to_end(&mut heard)).await;
        let heard = String::from_utf8_lossy(&heard).into_owned();
        read.unwrap_or_else(|_| panic!("it stays open: {heard}")).unwrap();
        heard
    }

    /// Why the server closed the connection.
    async fn why(self) -> String {
        drop(self.io);
        let result = timeout(LONG, self.served).await.unwrap().unwrap();
        result.map_or_else(|error| crate::error::chain(&*error), |()| String::new())
    }
}

fn post(target: &str, fields: &str, body: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nhost: h\r\n{fields}\r\n{body}")
}

#[tokio::test]
async fn passes_targets_unchanged() {
    let mut client = Client::echo();
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nhost: h\r\n\r\n");
    client.say(&get("/`a`?filter={\"a\":1}&b=`")).await;
    client.hear("</%60a%60?filter={%22a%22:1}&b=` >").await;
    // Two at once, with bodies that look like escapable targets and must stay unchanged.
    let body = "GET /<a> HTTP/1.1\r\n\"<>\"\r\n\r\n";
    let length = format!("content-length: {}\r\n", body.len());
    let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    client
        .say(&format!(
            "{}{}{}",
            post("/<a>", &length, body),
            post("/<b>", "transfer-encoding: chunked\r\n", &chunked),
            get("/<c>")
        ))
        .await;
    client.hear(&format!("</%3Ca%3E {body}>")).await;
    client.hear(&format!("</%3Cb%3E {body}>")).await;
    client.hear("</%3Cc%3E >").await;
    // In pieces, split anywhere.
    let whole = post("/<d>?\"", "transfer-encoding: chunked\r\n", &chunked);
    for byte in whole.chars() {
        client.say(&byte.to_string()).await;
        tokio::task::yield_now().await;
    }
    client.hear(&format!("</%3Cd%3E?%22 {body}>")).await;
}

#[tokio::test]
async fn refuses_ambiguous_requests() {
    let big = format!("x: {}\r\n", "x".repeat(9000));
    for (sent, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400 Bad Request"),
        (post("/", "host: i\r\n", ""), "400 Bad Request"),
        (
            post("/", "content-length: 5\r\ncontent-length: 6\r\n", ""),
            "400 Bad Request",
        ),
        (
            post("/", "transfer-encoding: gzip, chunked\r\n", ""),
            "501 Not Implemented",
        ),
        (post("/", &big, ""), "431 Request Header Fields Too Large"),
        (
            post("/", &"x: y\r\n".repeat(101), ""),
            "431 Request Header Fields Too Large",
        ),
        ("PRI * HTTP/2.0\r\n\r\nxx\r\n\r\n".to_owned(), "400 Bad Request"),
    ] {
        let mut client = Client::echo();
        // The bytes that follow are not parsed.
        client
            .say(&format!("{sent}GET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n"))
            .await;
        let heard = client.rest().await;
        assert!(
            heard.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{sent:?}: {heard}"
        );
        assert!(heard.contains("connection: close\r\n"), "{heard}");
        assert!(!heard.contains("smuggled"), "{heard}");
    }
}

#[tokio::test]
async fn closes_after_length_with_chunks() {
    for fields in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\nContent-Length: 5\r\n",
    ] {
        let mut client = Client::echo();
        let sent = post("/", fields, "0\r\n\r\n");
        client
            .say(&format!("{sent}GET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n"))
            .await;
        let heard = client.rest().await;
        assert!(heard.contains("connection: close\r\n"), "{heard}");
        assert!(heard.ends_with("</ >"), "{heard}");
    }
}

#[tokio::test]
async fn refuses_malformed_chunks() {
    for end in [
        "0\r\n\n",
        "0\r\nx: y\r\n\n",
        "0\n\r\n",
        "1\nx\r\n0\r\n\r\n",
        "g\r\n",
    ] {
        let mut client = Client::echo();
        let sent = post("/", "transfer-encoding: chunked\r\n", end);
        client
            .say(&format!("{sent}GET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n"))
            .await;
        let heard = client.rest().await;
        assert!(
            heard.starts_with("HTTP/1.1 400") && heard.contains("chunk"),
            "{end:?}: {heard}"
        );
        assert!(!heard.contains("smuggled"), "{end:?}: {heard}");
    }
}

#[tokio::test]
async fn sends_head_before_failed_body() {
    let fails = |before: Option<&'static str>| {
        let word = before.map(|word| Ok(Frame::data(Bytes::from_static(word.as_bytes()))));
        let failure = Err(BoxError::from("no more"));
        Response::new(Body::stream(StreamBody::new(futures::stream::iter(
            word.into_iter().chain([failure]),
        ))))
    };
    for (word, heard) in [(None, ""), (Some("word"), "4\r\nword\r\n")] {
        let mut client = Client::connect(PATIENT, move |_| std::future::ready(fails(word)));
        client.say(&post("/", "", "")).await;
        let rest = client.rest().await;
        let (head, body) = rest.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{rest}");
        assert_eq!(body, heard);
    }
}

#[tokio::test(start_paused = true)]
async fn answers_half_closed_client() {
    for body in ["", "content-length: 3\r\n"] {
        let mut client = Client::connect(PATIENT, async |request| {
            settled().await;
            echo(request).await
        });
        let sent = if body.is_empty() { "" } else { "abc" };
        client.say(&post("/a", body, sent)).await;
        client.io.shutdown().await.unwrap();
        let heard = client.rest().await;
        assert!(heard.ends_with(&format!("</a {sent}>")), "{heard}");
    }
}

#[tokio::test]
async fn probes_half_closed_client() {
    let (begun, mut calls) = tokio::sync::mpsc::unbounded_channel();
    let stuck = move |_request: Request<Body>| {
        let (alive, gone) = tokio::sync::oneshot::channel::<()>();
        begun.send(alive).unwrap();
        async move {
            let _over = gone.await;
            Response::new("late".into())
        }
    };
    let mut client = Client::connect(PATIENT, stuck.clone());
    client.say(&post("/", "", "")).await;
    let mut call = calls.recv().await.unwrap();
    drop(client.io);
    timeout(LONG, call.closed()).await.unwrap();

    let mut client = Client::connect(PATIENT, stuck);
    client.say(&post("/", "", "")).await;
    let call = calls.recv().await.unwrap();
    client.io.shutdown().await.unwrap();
    let interim = "HTTP/1.1 100 Continue\r\n\r\n";
    client.hear(&interim.repeat(2)).await;
    assert!(!call.is_closed());
    drop(call);
    let heard = client.rest().await;
    assert!(
        heard.starts_with("HTTP/1.1 200") && heard.ends_with("late"),
        "{heard}"
    );
}

#[tokio::test(start_paused = true)]
async fn bounds_every_client_wait() {
    let short = Duration::from_millis(100);
    let head = Times {
        head: short,
        ..PATIENT
    };
    for said in ["", "G", "GET / HTTP/1.1\r\n", "PRI *"] {
        let mut client = Client::connect(head, echo);
        client.say(said).await;
        assert_eq!(client.rest().await, "", "{said:?}");
        assert!(client.why().await.contains("within 100ms"), "{said:?}");
    }
    let mut client = Client::connect(
        Times {
            idle: short,
            ..PATIENT
        },
        echo,
    );
    client.say(&post("/", "", "")).await;
    assert!(client.rest().await.ends_with("</ >"));
    assert!(client.why().await.contains("no request within 100ms"));
    // A client that starts another request gets the head timeout.
    let mut client = Client::connect(Times { idle: LONG, ..head }, echo);
    client.say(&format!("{}G", post("/", "", ""))).await;
    assert!(client.rest().await.ends_with("</ >"));
    assert!(client.why().await.contains("no complete head of a request"));

    for (fields, part) in [
        ("content-length: 9\r\n", "abc"),
        ("transfer-encoding: chunked\r\n", "3\r\nab"),
    ] {
        let mut client = Client::connect(
            Times {
                body: short,
                ..PATIENT
            },
            echo,
        );
        client.say(&post("/", fields, part)).await;
        let heard = client.rest().await;
        assert!(
            heard.starts_with("HTTP/1.1 400") && heard.contains("within 100ms"),
            "{heard}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn drain_closes_connections_without_request() {
    let upgrade = format!("GET /up HTTP/1.1\r\nhost: h\r\n{UPGRADE}\r\n");
    for said in ["", "G", "PRI * HTT", PREFACE, &upgrade] {
        let mut client = Client::echo();
        client.say(said).await;
        if said == upgrade {
            // The response does not wait for anything either.
            client.hear("</up >").await;
        }
        settled().await;
        client.drain.cancel();
        let heard = client.rest().await;
        assert!(
            said == upgrade || said == PREFACE || heard.is_empty(),
            "{said:?}: {heard}"
        );
        assert_eq!(client.why().await, "", "{said:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn drain_finishes_calls_in_flight() {
    let mut client = Client::echo();
    client.say(&post("/", "", "")).await;
    client.hear("</ >").await;
    client.say(&post("/", "content-length: 3\r\n", "")).await;
    client.say("a").await;
    settled().await;
    client.drain.cancel();
    settled().await;
    client.say("bc").await;
    let heard = client.rest().await;
    assert!(
        heard.contains("connection: close\r\n") && heard.ends_with("</ abc>"),
        "{heard}"
    );

    let mut client = Client::echo();
    client.say(&post("/", "", "")).await;
    client.hear("</ >").await;
    client.drain.cancel();
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn drains_unread_body() {
    let no = async |_| empty_response(http::StatusCode::FORBIDDEN);
    let mut client = Client::connect(PATIENT, no);
    let some = "x".repeat(100_000);
    let chunked = format!("186a0\r\n{some}\r\n0\r\n\r\n");
    for sent in [
        post("/", "content-length: 100000\r\n", &some),
        post("/", "transfer-encoding: chunked\r\n", &chunked),
    ] {
        client.say(&sent).await;
        let heard = client.hear("\r\n\r\n").await;
        assert!(
            heard.starts_with("HTTP/1.1 403") && !heard.contains("connection: close"),
            "{heard}"
        );
    }
    // A body over the limit is not drained, but the client can still read the response.
    client
        .say(&post("/", "content-length: 100000000\r\n", &some[..10_000]))
        .await;
    let heard = client.rest().await;
    assert!(
        heard.starts_with("HTTP/1.1 403") && heard.contains("connection: close"),
        "{heard}"
    );
    // A client that waits for `100 Continue` does not get one for an unread body.
    let mut client = Client::connect(PATIENT, no);
    client
        .say(&post("/", "content-length: 3\r\nexpect: 100-continue\r\n", ""))
        .await;
    let heard = client.rest().await;
    assert!(
        heard.starts_with("HTTP/1.1 403") && heard.contains("connection: close"),
        "{heard}"
    );
}

#[tokio::test]
async fn sends_continue_when_body_is_read() {
    let mut client = Client::echo();
    client
        .say(&post("/", "content-length: 3\r\nexpect: 100-continue\r\n", ""))
        .await;
    assert_eq!(client.hear("\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.say("abc").await;
    assert!(client.hear("</ abc>").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test(start_paused = true)]
async fn body_with_head_is_whole() {
    let whole = async |request: Request<Body>| {
        let kind = match request.body() {
            Body::Empty => "empty",
            Body::Full(_) => "whole",
            _ => "coming",
        };
        let read = request.into_body().collect().await.is_ok();
        Response::new(format!("<{kind} {read}>").into())
    };
    let mut client = Client::connect(PATIENT, whole);
    client.say(&post("/", "", "")).await;
    client.hear("<empty true>").await;
    client.say(&post("/", "content-length: 3\r\n", "abc")).await;
    client.hear("<whole true>").await;
    client.say(&post("/", "content-length: 3\r\n", "a")).await;
    settled().await;
    client.say("bc").await;
    client.hear("<coming true>").await;
}

#[tokio::test]
async fn evicts_unread_response() {
    let text = format!("{}end", "x".repeat(100 * 1024));
    let whole = text.len();
    // There is room for one of them.
    let held = HeldAnswers::up_to(whole + whole / 2);
    let connect = || {
        let text = text.clone();
        let answer = move |request: Request<Body>| {
            let text = match request.uri().path() {
                "/small" => "the end".to_owned(),
                _ => text.clone(),
            };
            std::future::ready(Response::new(Body::from(text)))
        };
        Client::sharing(&held, PATIENT, answer)
    };
    let get = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    let (mut silent, mut reader) = (connect(), connect());
    // A response that has been read no longer counts: the next one fits and the connection continues.
    reader.say(get).await;
    assert!(reader.hear("end").await.len() > whole);
    silent.say(get).await;
    silent.hear("\r\n\r\n").await;
    reader.say("GET /small HTTP/1.1\r\nhost: x\r\n\r\n").await;
    reader.hear("the end").await;
    reader.say(get).await;
    assert!(reader.hear("end").await.len() > whole);
    assert!(silent.rest().await.len() < whole);
    let why = silent.why().await;
    assert!(why.contains("unread response evicted"), "{why}");
    silent = connect();
    silent.say(get).await;
    assert!(silent.hear("end").await.len() > whole);
}

#[tokio::test]
async fn upgrade_answers_on_stream_1() {
    let mut client = Client::echo();
    client
        .say(&format!(
            "GET /<up> HTTP/1.1\r\nhost: h\r\n{UPGRADE}\r\n{PREFACE}"
        ))
        .await;
    let heard = client.hear("\r\n\r\n").await;
    assert!(
        heard.starts_with("HTTP/1.1 101 Switching Protocols\r\n"),
        "{heard}"
    );
    client.io.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
    client.hear("</%3Cup%3E >").await;
    // A request that cannot be upgraded is served as HTTP/1.1.
    for fields in [
        UPGRADE.replace("h2c", "websocket"),
        UPGRADE.replace("http2-settings: AAMAAABk", "http2-settings: AAMAAABk!"),
        UPGRADE.replace("http2-settings: AAMAAABk", "http2-settings: AAMA"),
        format!("{UPGRADE}content-length: 0\r\n").replace("http2-settings: AAMAAABk\r\n", ""),
    ] {
        let mut client = Client::echo();
        client.say(&post("/", &fields, "")).await;
        assert!(client.hear("</").await.starts_with("HTTP/1.1 200"), "{fields}");
    }
}
