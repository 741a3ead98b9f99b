//! Clients that are silent, incomplete, or slow: each state before the first complete request has a time
//! limit.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::h1;
use crate::h2::{self, ACK, END_HEADERS, END_STREAM, PREFACE, frame, hello, kind};
use crate::listeners::Protocol::{self, Grpc, Http1, Http2, Tcp, Tls};
use crate::listeners::{Listener, Request};
use crate::peer::{Peer, Sent, Target};

/// A way of being silent.
pub struct Silence {
    pub name: &'static str,
    pub needs: Protocol,
    /// Completes when the server has closed the connection, or ended the call.
    pub run: fn(Target) -> BoxFuture<'static, ()>,
}

/// Pause between bytes of a slow client.
const SLOW: Duration = Duration::from_millis(400);
/// Longer than any limit.
const LONG: Duration = Duration::from_secs(120);
/// Index of the method in the static table.
const POST: u8 = 0x83;
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// All ways.
pub const SILENCES: &[Silence] = &[
    Silence {
        name: "a connection without a word",
        needs: Tcp,
        run: |target| send_on_tcp(target, &[]).boxed(),
    },
    Silence {
        name: "half a handshake",
        needs: Tls,
        run: |target| send_on_tcp(target, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").boxed(),
    },
    Silence {
        name: "a handshake, then nothing",
        needs: Tls,
        run: |target| send_and_wait(target, Vec::new()).boxed(),
    },
    Silence {
        name: "half a request line",
        needs: Http1,
        run: |target| send_and_wait(target, b"GET /".to_vec()).boxed(),
    },
    Silence {
        name: "a head, byte by byte",
        needs: Http1,
        run: |target| {
            let path = h1::path(target.listener);
            drip(target, format!("GET {path} HTTP/1.1\r\nX-A: ").into_bytes(), b'a').boxed()
        },
    },
    Silence {
        name: "an upgrade to HTTP/2, then nothing",
        needs: Http2,
        run: |target| upgrade(target).boxed(),
    },
    Silence {
        name: "half a preface",
        needs: Http2,
        run: |target| send_and_wait(target, PREFACE[..20].to_vec()).boxed(),
    },
    Silence {
        name: "a preface without SETTINGS",
        needs: Http2,
        run: |target| send_and_wait(target, PREFACE.to_vec()).boxed(),
    },
    Silence {
        name: "half a block of fields",
        needs: Http2,
        run: |target| {
            let block = frame(kind::HEADERS, END_STREAM, 1, &h2::fields(target.listener));
            send_and_wait(target, [hello(&[]), block].concat()).boxed()
        },
    },
    Silence {
        name: "half a block of fields, pings answered",
        needs: Http2,
        run: |target| {
            let block = frame(kind::HEADERS, END_STREAM, 1, &h2::fields(target.listener));
            attentive(target, [hello(&[]), block].concat(), |_| false)
                .map(drop)
                .boxed()
        },
    },
    Silence {
        name: "half a message, pings answered",
        needs: Http2,
        run: |target| {
            let fields = call_fields(target.listener);
            send_half_message(target, fields).boxed()
        },
    },
    Silence {
        name: "half a message to an app, pings answered",
        needs: Grpc,
        run: |target| {
            let mut fields = h2::fields_of(target.listener, POST, "/orders.Orders/Watch");
            h2::field(&mut fields, "dapr-app-id", b"hostile");
            send_half_message(target, fields).boxed()
        },
    },
    Silence {
        name: "half a message for reflection, pings answered",
        needs: Grpc,
        run: |target| {
            let fields = h2::fields_of(target.listener, POST, REFLECTION);
            send_half_message(target, fields).boxed()
        },
    },
    Silence {
        name: "half a body",
        needs: Http1,
        run: |target| {
            let path = h1::path(target.listener);
            let input = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf");
            send_and_wait(target, input.into_bytes()).boxed()
        },
    },
];

/// Sends this before any TLS, then waits for the connection to close.
async fn send_on_tcp(target: Target, input: &[u8]) {
    let stream = target.raw().await;
    let stream = stream.unwrap_or_else(|why| panic!("{}: not connected: {why}", target.listener.name));
    end_of(Peer::new(Box::new(stream)), input).await;
}

/// Sends this, then waits for the connection to close.
async fn send_and_wait(target: Target, input: Vec<u8>) {
    end_of(connected(&target).await, &input).await;
}

/// A connection; retries, because a failed connect is not a closed connection.
async fn connected(target: &Target) -> Peer {
    let peer = target.connect().await;
    peer.unwrap_or_else(|why| panic!("{}: not connected: {why}", target.listener.name))
}

async fn end_of(mut peer: Peer, input: &[u8]) {
    if peer.send(input).await == Sent::All {
        while !peer.receive(LONG, |_| false).await.closed {}
    }
}

/// Sends this, then one byte at a time.
async fn drip(target: Target, input: Vec<u8>, byte: u8) {
    let peer = connected(&target).await;
    let bytes = std::iter::once(input).chain(std::iter::repeat_with(|| vec![byte]));
    peer.drip(bytes, SLOW).await;
}

async fn upgrade(target: Target) {
    if !target.listener.offers(Http1) {
        return;
    }
    let path = h1::path(target.listener);
    let input = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
         HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    );
    send_and_wait(target, input.into_bytes()).await;
}

/// The fields of an honest call; on listeners without gRPC, only marked as gRPC.
fn call_fields(listener: &Listener) -> Vec<u8> {
    match listener.honest {
        Request::Get(path) => {
            let mut fields = h2::fields_of(listener, POST, path);
            h2::field(&mut fields, "content-type", b"application/grpc");
            fields
        }
        _ => h2::fields(listener),
    }
}

/// An incomplete gRPC message.
async fn send_half_message(target: Target, fields: Vec<u8>) {
    let head = frame(kind::HEADERS, END_HEADERS, 1, &fields);
    let half = frame(kind::DATA, 0, 1, b"\0\0\0\0\x09half");
    let is_over = |received: &[u8]| h2::is_over(received, 1);
    attentive(target, [hello(&[]), head, half].concat(), is_over).await;
}

/// An HTTP/2 peer that answers pings.
pub(super) struct Attentive {
    peer: Peer,
    pub(super) received: Vec<u8>,
    pings: usize,
}

impl Attentive {
    /// `None` if the server does not accept all data.
    pub(super) async fn send(target: &Target, input: &[u8]) -> Option<Self> {
        let mut peer = connected(target).await;
        (peer.send(input).await == Sent::All).then_some(Self {
            peer,
            received: Vec::new(),
            pings: 0,
        })
    }

    /// Receives data, if any arrives in time; false once the connection is closed.
    pub(super) async fn receive(&mut self, limit: Duration) -> bool {
        let more = self.peer.receive(limit, |bytes| !bytes.is_empty()).await;
        self.received.extend(more.bytes);
        if more.closed {
            return false;
        }
        let frames = h2::frames(&self.received);
        let pings: Vec<_> = frames
            .iter()
            .filter(|f| f.kind == kind::PING && f.flags & ACK == 0)
            .collect();
        for ping in &pings[self.pings..] {
            if self.peer.send(&frame(kind::PING, ACK, 0, ping.payload)).await != Sent::All {
                return false;
            }
        }
        self.pings = pings.len();
        true
    }
}

/// The data that such a peer receives until `over` returns true, or the connection is closed.
pub(super) async fn attentive(target: Target, input: Vec<u8>, over: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let Some(mut peer) = Attentive::send(&target, &input).await else {
        return Vec::new();
    };
    while peer.receive(LONG).await && !over(&peer.received) {}
    peer.received
}
