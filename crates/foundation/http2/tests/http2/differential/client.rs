//! Clients, as servers see them.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use outrigger_http2::{Reason, SendRequest, StreamError};
use tokio::io::DuplexStream;

use super::wire::{END, Peer, Received, data, frame, go_away, headers, reset, setting};
use super::{AnyBody, CONFIG, assert_same, difference, oracle, received, run, settle};

/// Events seen by the server and by the calls of a client.
#[derive(Debug, PartialEq)]
struct Events {
    received: Received,
    calls: Vec<Vec<String>>,
    closed: bool,
}

fn failed(error: StreamError) -> String {
    match error {
        StreamError::Reset(reason) => format!("reset: {reason}"),
        other => format!("{other:?}"),
    }
}

/// The interface of both client implementations.
pub(crate) trait Client: Send + Sync + 'static {
    /// The response, or the error and whether the request may be retried.
    fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<Response<Option<AnyBody<StreamError>>>, (StreamError, bool)>> + Send;
}

impl Client for SendRequest<DuplexStream> {
    async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Option<AnyBody<StreamError>>>, (StreamError, bool)> {
        let impossible = |never: Infallible| -> Reason { match never {} };
        let sent = SendRequest::send(self, request, impossible).await;
        sent.map(|response| response.map(received)).map_err(|failed| {
            (
                failed.error,
                failed.request.is_some() || failed.error.is_refusal(),
            )
        })
    }
}

async fn call(client: Arc<impl Client>, n: usize) -> Vec<String> {
    let body = Full::new(Bytes::from(vec![b'x'; n]));
    let request = Request::post(format!("http://app/{n}")).body(body).unwrap();
    let response = match client.send(request).await {
        Ok(response) => response,
        Err((error, repeatable)) => return vec![failed(error), format!("repeatable: {repeatable}")],
    };
    let (head, body) = response.into_parts();
    let mut events = vec![head.status.to_string()];
    let mut fields: Vec<_> = head.headers.iter().map(|field| format!("{field:?}")).collect();
    fields.sort();
    events.extend(fields);
    let mut bytes = 0;
    let mut body = body.unwrap_or_default();
    while let Some(frame) = body.frame().await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(data)) => bytes += data.len(),
            Ok(Err(frame)) => events.push(format!("{:?}", frame.into_trailers())),
            Err(error) => {
                events.push(failed(error));
                break;
            }
        }
    }
    events.push(format!("{bytes} bytes"));
    events
}

/// Sends `calls` requests, the n-th with n bytes, while the server sends a script.
async fn converse<E: Send + 'static>(
    client: &Arc<impl Client>,
    connection: impl Future<Output = Result<(), E>> + Send + 'static,
    far: DuplexStream,
    calls: usize,
    script: &[Vec<u8>],
) -> Events {
    let mut server = Peer::new(far, true);
    let driving = tokio::spawn(connection);
    server.say(&frame(4, 0, 0, &[])).await;
    let mut running = Vec::new();
    for n in 0..calls {
        running.push(tokio::spawn(call(Arc::clone(client), n)));
        settle().await;
    }
    for input in script {
        server.say(input).await;
    }
    let closed = driving.is_finished();
    let received = std::mem::take(&mut server.received);
    drop(server);
    let mut events = Vec::new();
    for call in running {
        events.push(call.await.unwrap());
    }
    Events {
        received,
        calls: events,
        closed,
    }
}

/// Conversations with permitted differences, and the reasons.
const CONNECTION: &str = "h2 ends the connection for some errors of one stream";
const GOODBYE: &str = "hyper answers the server's GOAWAY with its own when it closes";
const ALLOWED: &[(&str, &str)] = &[
    ("goodbye", GOODBYE),
    ("goodbye to all", GOODBYE),
    ("data before the head", CONNECTION),
    ("upper case", CONNECTION),
    ("no status", "h2 sends no reset where both sides have ended"),
    (
        "head too large",
        "h2 tells the caller PROTOCOL_ERROR, and sends no reset where both sides have ended",
    ),
    (
        "goodbye with an error",
        "h2 does not distinguish processed streams from others",
    ),
];

fn differ(name: &str, calls: usize, script: &[Vec<u8>]) -> Option<String> {
    let ours = run(async {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (client, connection) = outrigger_http2::connect(near, &CONFIG, None);
        let client = Arc::new(client);
        let events = converse(&client, connection, far, calls, script).await;
        assert_eq!(client.streams(), 0);
        events
    });
    let hyper = run(async {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (client, connection) = oracle::connect(near).await;
        converse(&Arc::new(client), connection, far, calls, script).await
    });
    difference(name, &ours, &hyper, ALLOWED)
}

fn ok(stream: u32, flags: u8) -> Vec<u8> {
    headers(stream, flags, &[(":status", "200"), ("x-a", "1")])
}

#[test]
fn responses() {
    let status = |status| headers(1, 0, &[(":status", status)]);
    let conversations = [
        ("head alone", 1, vec![ok(1, END)]),
        (
            "body",
            1,
            vec![ok(1, 0), data(1, 0, b"one"), data(1, END, b"two")],
        ),
        ("at once", 1, vec![[ok(1, 0), data(1, END, b"all")].concat()]),
        (
            "trailers",
            1,
            vec![ok(1, 0), data(1, 0, b"one"), headers(1, END, &[("x-t", "1")])],
        ),
        ("informational", 1, vec![status("103"), ok(1, END)]),
        ("two", 2, vec![ok(3, 0), ok(1, END), data(3, END, b"second")]),
        ("refused", 1, vec![reset(1, 7)]),
        ("reset", 1, vec![reset(1, 2)]),
        (
            "reset in the body",
            1,
            vec![ok(1, 0), data(1, 0, b"one"), reset(1, 11)],
        ),
        (
            "complete, and the request not needed",
            1,
            vec![[ok(1, END), reset(1, 0)].concat()],
        ),
        ("goodbye", 2, vec![go_away(1, 0), ok(1, END)]),
        ("goodbye to all", 2, vec![go_away(0, 0)]),
        ("connection lost", 2, vec![ok(1, 0)]),
        ("one stream at a time", 1, vec![setting(3, 1), ok(1, END)]),
    ];
    assert_same(
        conversations
            .iter()
            .map(|(name, calls, script)| differ(name, *calls, script)),
    );
}

#[test]
fn violations() {
    let long = "x".repeat(5000);
    let conversations = [
        ("data before the head", 1, vec![data(1, END, b"x")]),
        ("no status", 1, vec![headers(1, END, &[("x-a", "1")])]),
        (
            "upper case",
            1,
            vec![headers(1, END, &[(":status", "200"), ("X-A", "1")])],
        ),
        ("of an idle stream", 1, vec![ok(5, END)]),
        ("push", 1, vec![frame(5, 4, 1, b"\0\0\0\x02")]),
        (
            "less than content-length",
            1,
            vec![
                headers(1, 0, &[(":status", "200"), ("content-length", "5")]),
                data(1, END, b"x"),
            ],
        ),
        (
            "more than content-length",
            1,
            vec![
                headers(1, 0, &[(":status", "200"), ("content-length", "1")]),
                data(1, END, b"xyz"),
            ],
        ),
        (
            "head too large",
            1,
            vec![headers(1, END, &[(":status", "200"), ("x-a", &long)])],
        ),
        ("goodbye with an error", 2, vec![go_away(1, 2)]),
    ];
    assert_same(
        conversations
            .iter()
            .map(|(name, calls, script)| differ(name, *calls, script)),
    );
}
