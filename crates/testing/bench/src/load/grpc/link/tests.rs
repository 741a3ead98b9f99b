//! Processing of frames.

use bytes::{Bytes, BytesMut};
use http::{HeaderName, HeaderValue};
use outrigger_http2::frame::{HEAD, Head, Kind, flag};
use outrigger_http2::hpack::Encoder;

use super::Link;
use crate::load::call::Call;
use crate::load::connection::CallError;
use crate::load::grpc::Fault;
use crate::load::grpc::frames::framed;

/// A link with a call in progress, of which only the head is to be written yet.
fn begun(payload: usize) -> (Link, Call) {
    let call = Call::unary(1, "/any/call", payload).unwrap();
    let mut link = Link::new();
    link.out().clear();
    link.begin(&call).unwrap();
    (link, call)
}

fn take(link: &mut Link, bytes: &[u8]) -> Result<(), CallError> {
    let mut rest = bytes;
    while let Some(head) = Head::read(rest) {
        let (payload, after) = rest[HEAD..].split_at(head.length);
        rest = after;
        link.frame(head, payload)?;
    }
    assert!(rest.is_empty());
    Ok(())
}

/// The queued frames.
fn written(link: &mut Link) -> Vec<(Head, Bytes)> {
    let mut out = link.out().split().freeze();
    let mut frames = Vec::new();
    while let Some(head) = Head::read(&out) {
        let payload = out.slice(HEAD..HEAD + head.length);
        out = out.slice(HEAD + head.length..);
        frames.push((head, payload));
    }
    frames
}

fn block(fields: &[(&'static str, &'static str)]) -> BytesMut {
    let (mut encoder, mut block) = (Encoder::new(), BytesMut::new());
    for (name, value) in fields {
        match *name {
            ":status" => encoder.status(value.parse().unwrap(), &mut block),
            name => encoder.field(
                &HeaderName::from_static(name),
                &HeaderValue::from_static(value),
                &mut block,
            ),
        }
    }
    block
}

#[test]
fn reads_padding_priorities_and_split_heads() {
    let (mut link, call) = begun(10);
    link.fill(call.body());
    let interim = framed(Kind::Headers, flag::END_HEADERS, 1, &block(&[(":status", "103")]));
    let head = block(&[(":status", "200"), ("content-type", "application/grpc")]);
    let padded = [&[2], &[0; 5][..], &head[..1], b"xx"].concat();
    let flags = flag::PADDED | flag::PRIORITY;
    let head = [
        framed(Kind::Headers, flags, 1, &padded),
        framed(Kind::Continuation, 0, 1, &head[1..4]),
        framed(Kind::Continuation, flag::END_HEADERS, 1, &head[4..]),
    ];
    let body = framed(Kind::Data, flag::PADDED, 1, b"\x03bodyxxx");
    let trailers = block(&[("grpc-status", "0")]);
    let trailers = framed(Kind::Headers, flag::END_HEADERS | flag::END_STREAM, 1, &trailers);
    let ping = framed(Kind::Ping, 0, 0, b"12345678");
    take(&mut link, &[interim, head.concat(), ping, body].concat()).unwrap();
    assert!(link.answer(call.body()).unwrap().is_none());
    take(&mut link, &trailers).unwrap();
    assert_eq!(link.answer(call.body()).unwrap().unwrap().1, 4);
    assert!(link.is_asked());
    let (pong, payload) = written(&mut link).pop().unwrap();
    assert_eq!(
        (pong.kind, pong.flags, &payload[..]),
        (Kind::Ping, flag::ACK, &b"12345678"[..])
    );
}

#[test]
fn respects_send_windows() {
    let (mut link, call) = begun(70_000);
    let length = call.body().len();
    let mut sent = 0;
    let mut send = |link: &mut Link| {
        assert!(!link.fill(call.body()), "the window is exhausted");
        let frames = written(link).into_iter();
        let sizes: Vec<usize> = frames
            .filter(|(head, _)| head.kind == Kind::Data)
            .map(|(head, payload)| {
                assert_eq!(payload, call.body()[sent..sent + head.length]);
                sent += head.length;
                assert_eq!(head.has(flag::END_STREAM), sent == length);
                head.length
            })
            .collect();
        sizes
    };
    let setting = |id: u8, value: u32| [&[0, id][..], &value.to_be_bytes()].concat();
    let window = |stream, more: u32| framed(Kind::WindowUpdate, 0, stream, &more.to_be_bytes());
    take(&mut link, &framed(Kind::Settings, 0, 0, &setting(4, 10))).unwrap();
    assert_eq!(send(&mut link), [10]);
    take(&mut link, &window(1, 20)).unwrap();
    assert_eq!(send(&mut link), [20]);
    // Lowered below the bytes sent, then raised far: the connection's window is the remaining limit.
    take(&mut link, &framed(Kind::Settings, 0, 0, &setting(4, 0))).unwrap();
    assert_eq!(send(&mut link), [0; 0]);
    let settings = [setting(4, 1 << 20), setting(5, 40_000)].concat();
    take(&mut link, &framed(Kind::Settings, 0, 0, &settings)).unwrap();
    assert_eq!(send(&mut link), [40_000, 65_535 - 40_030]);
    take(&mut link, &window(0, 1 << 20)).unwrap();
    assert_eq!(send(&mut link), [length - 65_535]);
}

#[test]
fn returns_received_bytes_to_windows() {
    let (mut link, call) = begun(10);
    link.fill(call.body());
    written(&mut link);
    take(
        &mut link,
        &framed(Kind::Headers, flag::END_HEADERS, 1, &block(&[(":status", "200")])),
    )
    .unwrap();
    let data = framed(Kind::Data, 0, 1, &[0; 16_384]);
    for _ in 0..256 {
        take(&mut link, &data).unwrap();
    }
    let credit: Vec<_> = written(&mut link)
        .into_iter()
        .map(|(head, more)| {
            (
                head.kind,
                head.stream,
                u32::from_be_bytes(more[..].try_into().unwrap()),
            )
        })
        .collect();
    let update = |stream, more| (Kind::WindowUpdate, stream, more);
    assert_eq!(
        credit,
        [update(1, 2 << 20), update(0, 4 << 20), update(1, 2 << 20)]
    );
}

#[test]
fn detects_protocol_errors() {
    let ok = || framed(Kind::Headers, flag::END_HEADERS, 1, &block(&[(":status", "200")]));
    let last = flag::END_HEADERS | flag::END_STREAM;
    let number = |number: u32| number.to_be_bytes();
    for (bytes, error) in [
        (
            framed(Kind::Reset, 0, 1, &number(7)),
            "the call was reset with code 7",
        ),
        (
            framed(Kind::GoAway, 0, 0, &[number(1), number(2)].concat()),
            "the peer sent GOAWAY with code 2",
        ),
        (
            framed(Kind::GoAway, 0, 0, &[number(0), number(0)].concat()),
            "the peer sent GOAWAY with code 0",
        ),
        (
            framed(Kind::GoAway, 0, 0, &[0; 7]),
            "the peer sends a frame that is too short",
        ),
        (framed(Kind::PushPromise, 0, 1, &[0; 9]), "the peer pushes"),
        (
            framed(Kind::Settings, 0, 0, &[0; 7]),
            "the peer sends settings of a wrong length",
        ),
        (
            framed(Kind::Ping, 0, 0, &[0; 7]),
            "the peer sends a ping of a wrong length",
        ),
        (
            framed(Kind::WindowUpdate, 0, 0, &number(0)),
            "the peer sends an invalid window increment",
        ),
        (
            framed(Kind::WindowUpdate, 0, 1, &number(0x7fff_ffff)),
            "the peer sends an invalid window increment",
        ),
        (
            framed(Kind::Data, 0, 1, b"x"),
            "the peer sends a body without a head",
        ),
        (
            framed(Kind::Data, 0, 3, b"x"),
            "the peer sends an unexpected response",
        ),
        (
            [ok(), framed(Kind::Data, flag::PADDED, 1, &[1])].concat(),
            "the peer sends more padding than payload",
        ),
        (
            framed(Kind::Headers, flag::PRIORITY, 1, &[0; 4]),
            "the peer sends a priority that is too short",
        ),
        (
            framed(Kind::Continuation, 0, 1, &[]),
            "the peer sends CONTINUATION without a header block",
        ),
        (
            [
                framed(Kind::Headers, 0, 1, &[]),
                framed(Kind::Ping, 0, 0, &[0; 8]),
            ]
            .concat(),
            "the peer interrupts a header block",
        ),
        (
            framed(Kind::Headers, last, 1, &[0x80]),
            "the header tables have no entry 0",
        ),
        (
            framed(Kind::Headers, last, 1, b"\0\x01A\x01x"),
            "the peer sends invalid headers",
        ),
        (
            framed(Kind::Headers, last, 1, &[]),
            "the peer sends neither a head nor trailers",
        ),
        (
            [ok(), ok()].concat(),
            "the peer sends neither a head nor trailers",
        ),
    ] {
        let (mut link, _) = begun(10);
        let refused = take(&mut link, &bytes).unwrap_err().to_string();
        assert_eq!(refused, format!("connection: {error}"));
    }
    let mut endless = framed(Kind::Headers, 0, 1, &[]);
    for _ in 0..20 {
        endless.extend(framed(Kind::Continuation, 0, 1, &[0; 16_384]));
    }
    let refused = take(&mut begun(10).0, &endless).unwrap_err().to_string();
    assert_eq!(
        refused,
        "connection: the peer sends a header block that is too large"
    );
}

#[test]
fn response_requires_status_and_whole_request() {
    let end = |fields| {
        framed(
            Kind::Headers,
            flag::END_HEADERS | flag::END_STREAM,
            1,
            &block(fields),
        )
    };
    let (mut link, _) = begun(10);
    let refused = take(&mut link, &end(&[(":status", "200")])).unwrap_err();
    assert_eq!(refused.to_string(), "grpc-status missing");
    let (mut link, call) = begun(10);
    take(&mut link, &end(&[(":status", "200"), ("grpc-status", "0")])).unwrap();
    assert!(matches!(link.answer(call.body()), Err(Fault::Protocol(_))));
    // A call without a response leaves an unusable connection.
    let (mut link, call) = begun(10);
    assert!(matches!(link.begin(&call), Err(Fault::Protocol(_))));
}
