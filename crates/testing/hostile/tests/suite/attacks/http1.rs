//! HTTP/1.1: requests with ambiguous framing, and floods.

use futures::FutureExt;

use super::Run::{Do, SendBytes};
use super::Verdict::{Answered, Bounded, Ends, OneAnswer, Refused, Swallowed};
use super::{Attack, FLOOD, LITTLE, TIMEOUT, attack};
use crate::h1::{path, request, smuggled};
use crate::listeners::Listener;
use crate::listeners::Protocol::Http1;
use crate::peer::{Received, Target};

/// A row that sends its bytes once.
macro_rules! sends {
    ($name:literal, $verdict:ident, |$path:ident, $hidden:ident| $input:expr) => {
        attack(
            $name,
            Http1,
            SendBytes(|listener| {
                let $path = path(listener);
                let $hidden = smuggled($path);
                let _perhaps_unused = &$hidden;
                Vec::<u8>::from($input)
            }),
            $verdict,
            LITTLE,
        )
    };
}

/// A POST with these header fields, followed by `rest`.
fn post(path: &str, fields: &str, rest: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n{rest}")
}

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")
}

pub(super) const ATTACKS: &[Attack] = &[
    sends!(
        "content-length before transfer-encoding",
        OneAnswer,
        |p, hidden| post(
            p,
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            &format!("0\r\n\r\n{hidden}")
        )
    ),
    sends!(
        "transfer-encoding before content-length",
        OneAnswer,
        |p, hidden| post(
            p,
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            &format!("0\r\n\r\n{hidden}")
        )
    ),
    sends!("two lengths", Refused, |p, hidden| post(
        p,
        "Content-Length: 0\r\nContent-Length: 44\r\n",
        &hidden
    )),
    sends!("a list of lengths", Refused, |p, hidden| post(
        p,
        "Content-Length: 0, 44\r\n",
        &hidden
    )),
    sends!("a length with a sign", Refused, |p, hidden| post(
        p,
        "Content-Length: +0\r\n",
        &hidden
    )),
    sends!("a length below zero", Refused, |p, hidden| post(
        p,
        "Content-Length: -1\r\n",
        &hidden
    )),
    sends!("a length beyond 64 bits", Refused, |p, hidden| post(
        p,
        "Content-Length: 18446744073709551616\r\n",
        &hidden
    )),
    sends!("an unknown coding", Refused, |p, hidden| post(
        p,
        "Transfer-Encoding: xchunked\r\n",
        &format!("0\r\n\r\n{hidden}")
    )),
    sends!("chunked, then another coding", Refused, |p, hidden| post(
        p,
        "Transfer-Encoding: chunked, identity\r\n",
        &format!("0\r\n\r\n{hidden}")
    )),
    sends!(
        "chunked, then another coding in a separate field",
        Refused,
        |p, hidden| post(
            p,
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            &format!("0\r\n\r\n{hidden}")
        )
    ),
    sends!("space before the colon", Refused, |p, hidden| post(
        p,
        "Transfer-Encoding : chunked\r\n",
        &format!("0\r\n\r\n{hidden}")
    )),
    sends!("a coding after a vertical tab", Refused, |p, hidden| post(
        p,
        "Transfer-Encoding: \x0bchunked\r\n",
        &format!("0\r\n\r\n{hidden}")
    )),
    sends!("a folded field", Refused, |p, hidden| post(
        p,
        "Transfer-Encoding:\r\n chunked\r\n",
        &format!("0\r\n\r\n{hidden}")
    )),
    sends!("chunked in HTTP/1.0", OneAnswer, |p, hidden| format!(
        "POST {p} HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"
    )),
    sends!("carriage returns alone", Refused, |p, hidden| get(
        p,
        &format!("X-A: a\rX-B: b\r\r{hidden}\r\n")
    )),
    sends!("NUL in a field", Refused, |p, _h| get(p, "X-A: a\0b\r\n")),
    sends!("a field without name", Refused, |p, _h| get(p, ": a\r\n")),
    sends!("a field name with a space", Refused, |p, _h| get(p, "X A: a\r\n")),
    sends!("two hosts", Refused, |p, _h| get(p, "Host: elsewhere\r\n")),
    sends!("no version", Refused, |p, _h| format!("GET {p}\r\n\r\n")),
    sends!("a version of three digits", Refused, |p, _h| format!(
        "GET {p} HTTP/1.10\r\nHost: localhost\r\n\r\n"
    )),
    sends!("HTTP/1.0 with an upgrade", OneAnswer, |p, _h| format!(
        "GET {p} HTTP/1.0\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
    )),
    sends!("a chunk size with a plus sign", OneAnswer, |p, hidden| chunked(
        p,
        "1 + 1\r\nab\r\n0\r\n\r\n",
        &hidden
    )),
    sends!("a size with 0x", OneAnswer, |p, hidden| chunked(
        p,
        "0x2\r\nab\r\n0\r\n\r\n",
        &hidden
    )),
    sends!("a size beyond 64 bits", OneAnswer, |p, hidden| chunked(
        p,
        "10000000000000002\r\nab\r\n0\r\n\r\n",
        &hidden
    )),
    sends!(
        "a chunk size ending in a bare line feed",
        OneAnswer,
        |p, hidden| chunked(p, "2;a\nb\r\nab\r\n0\r\n\r\n", &hidden)
    ),
    sends!("a chunk longer than its size", OneAnswer, |p, hidden| chunked(
        p,
        "2\r\nabcd\r\n0\r\n\r\n",
        &hidden
    )),
    sends!(
        "the last chunk ends in a bare line feed",
        Swallowed,
        |p, hidden| chunked(p, "0\r\n\n", &hidden)
    ),
    attack(
        "a client that half-closes is answered",
        Http1,
        Do(|target| half_close(target).boxed()),
        Answered,
        LITTLE,
    ),
    attack(
        "a request line of 1 MiB",
        Http1,
        SendBytes(long_line),
        Refused,
        FLOOD,
    ),
    attack("a field of 4 MiB", Http1, SendBytes(long_field), Refused, FLOOD),
    attack(
        "a hundred thousand fields",
        Http1,
        SendBytes(many_fields),
        Refused,
        FLOOD,
    ),
    attack(
        "chunk extensions of 4 MiB",
        Http1,
        SendBytes(long_extension),
        Ends,
        FLOOD,
    ),
    attack(
        "an extension in each of many chunks",
        Http1,
        SendBytes(many_extensions),
        Ends,
        FLOOD,
    ),
    attack("trailers of 4 MiB", Http1, SendBytes(long_trailers), Ends, FLOOD),
    attack(
        "pipelined requests",
        Http1,
        Do(|target| pipeline(target, 300).boxed()),
        Answered,
        FLOOD,
    ),
    attack(
        "pipelined requests with unread responses",
        Http1,
        Do(|target| unread_pipeline(target).boxed()),
        Bounded,
        FLOOD,
    ),
    attack(
        "a megabyte of metadata under each of many keys",
        Http1,
        Do(|target| metadata(target).boxed()),
        Bounded,
        FLOOD,
    ),
    attack(
        "a terabyte announced",
        Http1,
        SendBytes(|l| post(path(l), "Content-Length: 1099511627776\r\n", "").into()),
        Bounded,
        LITTLE,
    ),
    attack(
        "another protocol",
        Http1,
        SendBytes(|_| [&b"\x16\x03\x01\x02\x00\x01\0\0".repeat(64)[..], b"\r\n\r\n"].concat()),
        Refused,
        LITTLE,
    ),
];

fn chunked(path: &str, body: &str, hidden: &str) -> String {
    post(path, "Transfer-Encoding: chunked\r\n", &format!("{body}{hidden}"))
}

fn long_line(listener: &Listener) -> Vec<u8> {
    format!(
        "GET {}?{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        path(listener),
        "a".repeat(1 << 20)
    )
    .into()
}

fn long_field(listener: &Listener) -> Vec<u8> {
    get(path(listener), &format!("X-A: {}\r\n", "a".repeat(4 << 20))).into()
}

fn many_fields(listener: &Listener) -> Vec<u8> {
    get(path(listener), &"X-A: a\r\n".repeat(100_000)).into()
}

fn long_extension(listener: &Listener) -> Vec<u8> {
    chunked(
        path(listener),
        &format!("2;{}\r\nab\r\n0\r\n\r\n", "a".repeat(4 << 20)),
        "",
    )
    .into()
}

fn many_extensions(listener: &Listener) -> Vec<u8> {
    chunked(
        path(listener),
        &format!("1;{}\r\na\r\n", "a".repeat(100)).repeat(40_000),
        "0\r\n\r\n",
    )
    .into()
}

fn long_trailers(listener: &Listener) -> Vec<u8> {
    chunked(
        path(listener),
        &format!("2\r\nab\r\n0\r\n{}", "X-A: aaaaaaaa\r\n".repeat(300_000)),
        "\r\n",
    )
    .into()
}

async fn half_close(target: Target) -> Received {
    let Ok(mut peer) = target.connect().await else {
        return Received::not_connected();
    };
    peer.send(request(target.listener, "").as_bytes()).await;
    peer.finish().await;
    peer.receive(TIMEOUT, crate::h1::is_answered).await
}

/// Sends `count` requests in one write and waits for their responses, because a busy server takes time.
async fn pipeline(target: Target, count: usize) -> Received {
    let Ok(mut peer) = target.connect().await else {
        return Received::not_connected();
    };
    peer.send(request(target.listener, "").repeat(count).as_bytes())
        .await;
    let answers = |bytes: &[u8]| String::from_utf8_lossy(bytes).matches("HTTP/1.1 ").count();
    peer.receive(TIMEOUT * 2, |bytes| answers(bytes) >= count).await
}

async fn unread_pipeline(target: Target) -> Received {
    let Ok(mut peer) = target.connect().await else {
        return Received::not_connected();
    };
    let some = request(target.listener, "").repeat(100).into_bytes();
    for _ in 0..50 {
        if peer.send(&some).await != crate::peer::Sent::All {
            break;
        }
    }
    Received::default()
}

/// Number of metadata keys.
const KEYS: u32 = 40;

/// Data that any client of a port can make the server keep; clients of the HTTP API must be trusted with
/// it.
async fn metadata(target: Target) -> Received {
    if path(target.listener).starts_with("/v1.0/invoke/") {
        return Received::default();
    }
    let (value, mut connected) = (vec![b'a'; 1 << 20], 0);
    for key in 0..KEYS {
        let Ok(mut peer) = target.connect().await else {
            continue;
        };
        connected += 1;
        let length = value.len();
        let head = format!(
            "PUT /v1.0/metadata/{key} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        );
        peer.send(head.as_bytes()).await;
        peer.send(&value).await;
        peer.receive(TIMEOUT, crate::h1::is_answered).await;
    }
    if 2 * connected < KEYS {
        return Received::not_connected();
    }
    Received::default()
}
