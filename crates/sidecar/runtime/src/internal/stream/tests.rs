//! Message streams, including those of sidecars that stall.

use std::time::Duration;

use http::HeaderValue;
use http_body_util::{BodyExt, StreamBody};
use outrigger_transport::body::{UnfinishedBounds, UnfinishedMemory};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::*;

type Pieces = mpsc::Sender<Result<Frame<Bytes>, BoxError>>;

fn stream(direction: Direction) -> (Pieces, MessageStream) {
    let (pieces, received) = mpsc::channel(1);
    let body = Body::stream(StreamBody::new(ReceiverStream::new(received)));
    (pieces, MessageStream::new(body, direction, 1 << 20))
}

fn announced(length: u64) -> HeaderMap {
    HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from(length))])
}

async fn fails_late(stream: &mut MessageStream) {
    let begin = Instant::now();
    let next = timeout(
        UNREAD_TIMEOUT * 10,
        std::future::poll_fn(|cx| stream.poll_message(cx)),
    );
    let status = next.await.expect("the read has no timeout").unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let waited = begin.elapsed();
    assert!(
        waited >= UNREAD_TIMEOUT && waited < UNREAD_TIMEOUT + Duration::from_secs(1),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn times_out_partial_message() {
    for direction in [Direction::Request, Direction::Response] {
        let (pieces, mut stream) = stream(direction);
        // A frame of 100 bytes, of which 3 arrive.
        let half = Bytes::from_static(&[0, 0, 0, 0, 100, 1, 2, 3]);
        pieces.send(Ok(Frame::data(half))).await.unwrap();
        fails_late(&mut stream).await;
        assert!(pieces.is_closed(), "the peer is notified");
    }
}

#[tokio::test(start_paused = true)]
async fn times_out_missing_request_head() {
    let (pieces, mut asked) = stream(Direction::Request);
    fails_late(&mut asked).await;
    assert!(pieces.is_closed(), "the peer is notified");
    for direction in [Direction::Request, Direction::Response] {
        let (pieces, mut stream) = stream(direction);
        if direction == Direction::Request {
            let head = Bytes::from_static(&[0, 0, 0, 0, 0]);
            pieces.send(Ok(Frame::data(head))).await.unwrap();
            let head = std::future::poll_fn(|cx| stream.poll_message(cx)).await;
            assert!(head.unwrap().is_some());
        }
        let next = std::future::poll_fn(|cx| stream.poll_message(cx));
        assert!(timeout(UNREAD_TIMEOUT * 10, next).await.is_err(), "{direction:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn times_out_stalled_payload() {
    let (pieces, mut stream) = stream(Direction::Response);
    stream.expect(&announced(10));
    let data = Bytes::from_static(b"half");
    stream.take_payload(Some(Payload { seq: 0, data })).unwrap();
    assert_eq!(stream.ready.pop_front().unwrap().unwrap(), "half");
    fails_late(&mut stream).await;
    assert!(pieces.is_closed(), "the peer is notified");
}

#[tokio::test(start_paused = true)]
async fn waits_without_known_length() {
    for length in [0, 4] {
        let (_pieces, mut stream) = stream(Direction::Response);
        stream.expect(&announced(length));
        let data = Bytes::from_static(b"half");
        stream.take_payload(Some(Payload { seq: 0, data })).unwrap();
        let next = timeout(
            UNREAD_TIMEOUT * 10,
            std::future::poll_fn(|cx| stream.poll_message(cx)),
        );
        assert!(next.await.is_err());
    }
}

#[tokio::test]
async fn bounds_payload_of_each_message() {
    let body = Bytes::from(vec![b'x'; 3 * CHUNK + 1]);
    let stream = ChunkStream::new(Bytes::new(), body.into(), 0, Finish::End);
    let sent = Body::Stream(Box::pin(stream)).collect().await.unwrap().to_bytes();
    let mut reader = FrameReader::new(CHUNK + 32);
    reader.push(sent);
    let mut lengths = Vec::new();
    while let Some(message) = reader.next().unwrap() {
        let frame = invoke::decode_request(&message, &Limits::default()).unwrap();
        lengths.push(frame.payload.unwrap().data.len());
    }
    assert_eq!(lengths, [CHUNK, CHUNK, CHUNK, 1]);
}

#[test]
fn accepts_payload_up_to_limit() {
    let payload = |length| {
        Some(Payload {
            seq: 0,
            data: vec![b'x'; length].into(),
        })
    };
    let stream = || MessageStream::new(Body::Empty, Direction::Request, 100);
    assert!(stream().take_payload(payload(100)).is_ok());
    let refused = stream().take_payload(payload(101)).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("limit of 100 (see --max-body-size)"));
}

#[tokio::test]
async fn counts_buffered_request_bytes() {
    static MEMORY: UnfinishedMemory = UnfinishedMemory::new();
    let bounds = UnfinishedBounds {
        connection: 100,
        process: 1000,
    };
    let connection = Unfinished::new(bounds, &MEMORY);
    let begun = || {
        let (pieces, received): (Pieces, _) = mpsc::channel(2);
        let body = Body::stream(StreamBody::new(ReceiverStream::new(received)));
        let body = body.counted(Some(Arc::clone(&connection)));
        (pieces, MessageStream::new(body, Direction::Request, 1 << 20))
    };
    let half = || -> Result<Frame<Bytes>, BoxError> {
        let part: Vec<u8> = [&[0, 0, 0, 1, 0][..], &[0; 55]].concat();
        Ok(Frame::data(part.into()))
    };
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let (pieces, mut one) = begun();
    pieces.send(half()).await.unwrap();
    assert!(one.poll_message(&mut cx).is_pending());
    let (others, mut other) = begun();
    others.send(half()).await.unwrap();
    let Poll::Ready(Err(refused)) = other.poll_message(&mut cx) else {
        panic!("the limit has no room for both");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    drop(one);
    let (others, mut other) = begun();
    others.send(half()).await.unwrap();
    assert!(other.poll_message(&mut cx).is_pending());
    // A whole message that is not taken counts too.
    drop(other);
    let mut message = BytesMut::new();
    invoke::encode_chunk(Chunk { seq: 0, len: 101 }, &mut message).unwrap();
    message.extend_from_slice(&[b'x'; 101]);
    let (others, mut other) = begun();
    others.send(Ok(Frame::data(message.freeze()))).await.unwrap();
    other.wait_first().await;
    let refused = other.into_body().err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
}
