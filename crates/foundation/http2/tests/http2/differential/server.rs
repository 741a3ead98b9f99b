//! Servers, as clients see them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use outrigger_http2::PREFACE;
use outrigger_http2::{Incoming, Reason, Service, StreamError};

use tokio::io::DuplexStream;

use super::wire::{END, Peer, Received, block, data, frame, go_away, headers, post, reset, setting, window};
use super::{
    AnyBody, CONFIG, SETTLED, TIMEOUTS, assert_same, difference, full, oracle, received, run, settle,
};

/// Events that a service sees, by request path.
type Log = BTreeMap<String, Vec<String>>;

#[derive(Default)]
pub(crate) struct Recorder(Mutex<Log>);

impl Recorder {
    fn note(&self, path: &str, event: impl Into<String>) {
        self.0
            .lock()
            .unwrap()
            .entry(path.to_owned())
            .or_default()
            .push(event.into());
    }
}

/// Records a call that was dropped before its response.
struct Dropped(Arc<Recorder>, Option<String>);

impl Drop for Dropped {
    fn drop(&mut self) {
        if let Some(path) = &self.1 {
            self.0.note(path, "dropped");
        }
    }
}

fn trailed(data: Bytes) -> AnyBody<Reason> {
    let trailers = async {
        Some(Ok(HeaderMap::from_iter([(
            "x-end".parse().unwrap(),
            HeaderValue::from_static("1"),
        )])))
    };
    Full::new(data)
        .map_err(|never| match never {})
        .with_trailers(trailers)
        .boxed_unsync()
}

impl Service for Recorder {
    type Body = AnyBody<Reason>;

    async fn call(self: Arc<Self>, request: Request<Incoming>) -> Response<AnyBody<Reason>> {
        self.answer(request.map(received)).await
    }

    fn reason(error: Reason) -> Reason {
        error
    }
}

impl Recorder {
    /// Responds according to the path.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Option<AnyBody<StreamError>>>,
    ) -> Response<AnyBody<Reason>> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let mut fields: Vec<_> = head
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {value:?}"))
            .collect();
        fields.sort();
        self.note(&path, format!("{} {} {fields:?}", head.method, head.uri));
        let mut dropped = Dropped(Arc::clone(&self), Some(path.clone()));
        let body = match (path.split('-').next(), body) {
            (Some("/hang"), _) => std::future::pending().await,
            (Some("/early"), _) => Empty::new().map_err(|never| match never {}).boxed_unsync(),
            (Some("/large"), _) => full(vec![b'x'; 200_000]),
            (Some("/fail"), _) => {
                // Fails later, because a reset may overtake data that is not written yet.
                let failure = async {
                    tokio::time::sleep(SETTLED / 2).await;
                    Err(Reason::ENHANCE_YOUR_CALM)
                };
                let data = async { Ok(Frame::data(Bytes::from_static(b"some"))) };
                let frames = futures::stream::once(data).chain(futures::stream::once(failure));
                StreamBody::new(frames).boxed_unsync()
            }
            (_, None) => trailed(Bytes::new()),
            (_, Some(body)) => match body.collect().await {
                Ok(body) => {
                    let trailers = body.trailers().map(|trailers| format!("{trailers:?}"));
                    let data = body.to_bytes();
                    self.note(&path, format!("{} bytes", data.len()));
                    trailers
                        .into_iter()
                        .for_each(|trailers| self.note(&path, trailers));
                    trailed(data)
                }
                Err(error) => {
                    self.note(&path, format!("{:?}", error.reason()));
                    Empty::new().map_err(|never| match never {}).boxed_unsync()
                }
            },
        };
        dropped.1 = None;
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::CREATED;
        response
    }
}

/// Events seen by the client and the service.
#[derive(Debug, PartialEq)]
pub(crate) struct Events {
    received: Received,
    seen: Log,
    closed: bool,
}

/// Plays `script` against a server started by `serve`.
async fn converse<E, F>(script: &[Vec<u8>], serve: impl FnOnce(DuplexStream, Arc<Recorder>) -> F) -> Events
where
    E: Send + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
{
    let (near, far) = tokio::io::duplex(1 << 20);
    let recorder = Arc::new(Recorder::default());
    let serving = tokio::spawn(serve(far, Arc::clone(&recorder)));
    let mut client = Peer::new(near, false);
    client.say(&[&PREFACE[..], &frame(4, 0, 0, &[])].concat()).await;
    for input in script {
        client.say(input).await;
    }
    let closed = client.closed;
    let received = std::mem::take(&mut client.received);
    drop(client);
    serving.abort();
    settle().await;
    let seen = std::mem::take(&mut *recorder.0.lock().unwrap());
    Events {
        received,
        seen,
        closed,
    }
}

/// See [`difference`].
pub(crate) fn differ(name: &str, script: &[Vec<u8>], allowed: &[(&str, &str)]) -> Option<String> {
    let ours = run(converse(script, |io, recorder| {
        outrigger_http2::serve(io, None, recorder, &CONFIG, TIMEOUTS, std::future::pending())
    }));
    let hyper = run(converse(script, oracle::serve));
    difference(name, &ours, &hyper, allowed)
}

/// Conversations with permitted differences, and the reasons.
const CODE: &str = "h2 has PROTOCOL_ERROR for all connection errors of these kinds";
const CONNECTION: &str = "h2 ends the connection for some errors of one stream";
const ALLOWED: &[(&str, &str)] = &[
    (
        "end of the client",
        "h2 sends GOAWAY, and closes, once the last stream behind a GOAWAY of the client is over",
    ),
    ("data behind the end", CONNECTION),
    ("headers behind the end", CODE),
    ("streams backwards", CODE),
    ("reset of a wrong length", CODE),
    ("ping of a wrong length", CODE),
    ("settings of a wrong length", CODE),
    ("acknowledged settings with a payload", CODE),
    ("initial window too large", CODE),
    ("window update of a wrong length", CODE),
    ("no such index", CODE),
    ("upper case", CONNECTION),
    ("unknown pseudo-header", CONNECTION),
    ("pseudo-header in trailers", "h2 tells the reader alone"),
    ("by nothing, of a stream", CONNECTION),
];

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "app"),
    (":path", "/echo"),
];

fn with(more: &[(&str, &str)]) -> Vec<u8> {
    headers(1, END, &[&GET[..], more].concat())
}

fn without(name: &str) -> Vec<u8> {
    let fields: Vec<_> = GET.into_iter().filter(|(field, _)| *field != name).collect();
    headers(1, END, &fields)
}

#[test]
fn requests_and_their_answers() {
    let bodies = [
        data(1, 0, b"one"),
        data(1, 0, b""),
        data(1, 0, b"two"),
        data(1, END, b"three"),
    ];
    let padded = frame(0, 0x8 | END, 1, b"\x04text\0\0\0\0");
    let split = block(&GET);
    let (first, rest) = split.split_at(7);
    let priority = [&[0, 0, 0, 0, 7][..], &split].concat();
    let conversations = [
        ("get", vec![with(&[])]),
        (
            "fields",
            vec![with(&[
                ("x-b", "2"),
                ("x-a", "1"),
                ("x-b", "3"),
                ("te", "trailers"),
            ])],
        ),
        ("body", [&[post(1, "/echo", 0, &[])], &bodies[..]].concat()),
        (
            "body at once",
            vec![[post(1, "/echo", 0, &[]), data(1, END, b"all")].concat()],
        ),
        ("padding", vec![post(1, "/echo", 0, &[]), padded]),
        (
            "content-length",
            vec![
                post(1, "/echo", 0, &[("content-length", "3")]),
                data(1, END, b"abc"),
            ],
        ),
        (
            "trailers",
            vec![
                post(1, "/echo", 0, &[]),
                data(1, 0, b"abc"),
                headers(1, END, &[("x-t", "1")]),
            ],
        ),
        (
            "continuation",
            vec![[frame(1, END, 1, first), frame(9, 4, 1, rest)].concat()],
        ),
        ("priority", vec![frame(1, 0x25, 1, &priority)]),
        (
            "two at once",
            vec![
                post(1, "/echo-1", 0, &[]),
                post(3, "/echo-3", END, &[]),
                data(1, END, b"1"),
            ],
        ),
        (
            "early answer",
            vec![post(1, "/early", 0, &[]), data(1, END, b"unread")],
        ),
        (
            "no answer",
            vec![post(1, "/hang", END, &[]), post(3, "/echo", END, &[])],
        ),
        ("failing answer", vec![post(1, "/fail", END, &[])]),
        (
            "reset of a body",
            vec![post(1, "/echo", 0, &[]), data(1, 0, b"abc"), reset(1, 8)],
        ),
        (
            "reset of a call",
            vec![
                post(1, "/hang", END, &[]),
                reset(1, 8),
                post(3, "/echo", END, &[]),
            ],
        ),
        ("reset with a code", vec![post(1, "/echo", 0, &[]), reset(1, 11)]),
        (
            "frames behind the answer",
            vec![post(1, "/early", 0, &[]), data(1, 0, b"late"), reset(1, 8)],
        ),
        ("ping", vec![frame(6, 0, 0, b"12345678")]),
        ("unknown frame", vec![frame(99, 3, 1, b"?"), with(&[])]),
        ("unknown setting", vec![setting(99, 1), with(&[])]),
        (
            "end of the client",
            vec![post(1, "/echo", 0, &[]), go_away(0, 0), data(1, END, b"abc")],
        ),
    ];
    assert_same(
        conversations
            .iter()
            .map(|(name, script)| differ(name, script, ALLOWED)),
    );
}

#[test]
fn windows() {
    let conversations = [
        (
            "of the connection",
            vec![
                setting(4, 1 << 20),
                post(1, "/large", END, &[]),
                window(0, 1000),
                window(0, 1 << 20),
            ],
        ),
        (
            "of a stream",
            vec![
                setting(4, 100),
                window(0, 1 << 20),
                post(1, "/large", END, &[]),
                window(1, 50),
                window(1, 1 << 20),
            ],
        ),
        (
            "none",
            vec![
                setting(4, 0),
                post(1, "/large", END, &[]),
                setting(4, 10),
                window(1, 5),
            ],
        ),
        (
            "less than none",
            vec![
                post(1, "/large", END, &[]),
                setting(4, 100),
                window(0, 1 << 20),
                window(1, 65_000),
                window(1, 1000),
            ],
        ),
        (
            "of two",
            vec![
                post(1, "/large-1", END, &[]),
                post(3, "/echo-3", END, &[]),
                window(0, 1 << 20),
                window(1, 1 << 20),
            ],
        ),
        (
            "reset while waiting",
            vec![
                post(1, "/large", END, &[]),
                reset(1, 8),
                window(0, 10),
                post(3, "/echo", END, &[]),
            ],
        ),
        (
            "too large, of a stream",
            vec![post(1, "/hang", END, &[]), window(1, 0x7fff_ffff)],
        ),
        ("too large, of the connection", vec![window(0, 0x7fff_ffff)]),
        (
            "by nothing, of a stream",
            vec![post(1, "/hang", END, &[]), window(1, 0)],
        ),
        ("by nothing, of the connection", vec![window(0, 0)]),
        ("of an idle stream", vec![window(1, 1)]),
        (
            "more than allowed",
            vec![
                post(1, "/hang", 0, &[]),
                data(1, 0, &[0; 16_384]).repeat(4),
                data(1, 0, b"more"),
            ],
        ),
    ];
    assert_same(
        conversations
            .iter()
            .map(|(name, script)| differ(name, script, ALLOWED)),
    );
}

#[test]
fn violations() {
    let long = "x".repeat(5000);
    let open = || post(1, "/hang", 0, &[]);
    let conversations = [
        ("data on an idle stream", vec![data(1, END, b"x")]),
        ("data on stream 0", vec![data(0, 0, b"x")]),
        (
            "data behind the end",
            vec![post(1, "/hang", END, &[]), data(1, END, b"x")],
        ),
        ("headers on an even stream", vec![headers(2, END, &GET)]),
        ("headers on stream 0", vec![headers(0, END, &GET)]),
        (
            "headers behind the end",
            vec![post(1, "/hang", END, &[]), headers(1, END, &[("x-t", "1")])],
        ),
        (
            "streams backwards",
            vec![post(3, "/hang", END, &[]), post(1, "/hang", END, &[])],
        ),
        ("reset of an idle stream", vec![reset(1, 8)]),
        ("reset of stream 0", vec![reset(0, 8)]),
        ("reset of a wrong length", vec![open(), frame(3, 0, 1, b"123")]),
        ("ping of a wrong length", vec![frame(6, 0, 0, b"123")]),
        ("ping on a stream", vec![frame(6, 0, 1, b"12345678")]),
        ("settings on a stream", vec![frame(4, 0, 1, &[])]),
        ("settings of a wrong length", vec![frame(4, 0, 0, b"12345")]),
        (
            "acknowledged settings with a payload",
            vec![frame(4, 1, 0, b"123456")],
        ),
        ("enable push 2", vec![setting(2, 2)]),
        ("frames too small", vec![setting(5, 100)]),
        ("initial window too large", vec![setting(4, 1 << 31)]),
        ("window update of a wrong length", vec![frame(8, 0, 0, b"123")]),
        ("goaway on a stream", vec![frame(7, 0, 1, b"12345678")]),
        ("push", vec![frame(5, 4, 1, b"\0\0\0\x02")]),
        ("continuation alone", vec![frame(9, 4, 1, &[])]),
        (
            "continuation interrupted",
            vec![frame(1, END, 1, &block(&GET)), frame(6, 0, 0, b"12345678")],
        ),
        (
            "continuation of another stream",
            vec![frame(1, END, 1, &block(&GET)), frame(9, 4, 3, &[])],
        ),
        ("frame too large", vec![data(1, 0, &[0; 16_385])]),
        ("no such index", vec![frame(1, 5, 1, &[0xff, 0xff, 0x00])]),
        ("padding too long", vec![open(), frame(0, 8, 1, b"\x09text")]),
        ("upper case", vec![with(&[("X-A", "1")])]),
        ("connection field", vec![with(&[("connection", "close")])]),
        ("te of gzip", vec![with(&[("te", "gzip")])]),
        (
            "pseudo-header behind fields",
            vec![headers(1, END, &[&GET[..3], &[("x-a", "1")], &GET[3..]].concat())],
        ),
        ("unknown pseudo-header", vec![with(&[(":x", "1")])]),
        ("pseudo-header twice", vec![with(&[(":path", "/other")])]),
        ("status of a request", vec![with(&[(":status", "200")])]),
        ("no method", vec![without(":method")]),
        ("no scheme", vec![without(":scheme")]),
        ("no path", vec![without(":path")]),
        (
            "empty path",
            vec![headers(1, END, &[&GET[..3], &[(":path", "")]].concat())],
        ),
        (
            "less than content-length",
            vec![
                post(1, "/hang", 0, &[("content-length", "5")]),
                data(1, END, b"abc"),
            ],
        ),
        (
            "more than content-length",
            vec![
                post(1, "/hang", 0, &[("content-length", "2")]),
                data(1, END, b"abc"),
            ],
        ),
        (
            "trailers without END_STREAM",
            vec![open(), headers(1, 0, &[("x-t", "1")])],
        ),
        (
            "pseudo-header in trailers",
            vec![open(), headers(1, END, &[(":path", "/")])],
        ),
        (
            "list too large",
            vec![with(&[("x-a", &long)]), post(3, "/echo", END, &[])],
        ),
        (
            "connect",
            vec![headers(1, 0, &[(":method", "CONNECT"), (":authority", "app:80")])],
        ),
    ];
    assert_same(
        conversations
            .iter()
            .map(|(name, script)| differ(name, script, ALLOWED)),
    );
}

#[test]
fn refuses_streams_above_limit() {
    let script: Vec<_> = (0..10)
        .map(|n| post(2 * n + 1, &format!("/hang-{n}"), END, &[]))
        .collect();
    assert_same([differ("too many streams", &script, ALLOWED)].into_iter());
}
