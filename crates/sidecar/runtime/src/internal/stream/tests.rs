//! Messages as they come and go; other sidecars that stop half-way.

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
    let status = next.await.expect("it is waited for without end").unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let waited = begin.elapsed();
    assert!(
        waited >= UNREAD_TIMEOUT && waited < UNREAD_TIMEOUT + Duration::from_secs(1),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_stops_half_way_is_given_up() {
    for direction in [Direction::Request, Direction::Response] {
        let (pieces, mut stream) = stream(direction);
        // A frame of 100 bytes, of which 3 come.
        let half = Bytes::from_static(&[0, 0, 0, 0, 100, 1, 2, 3]);
        pieces.send(Ok(Frame::data(half))).await.unwrap();
        fails_late(&mut stream).await;
        assert!(pieces.is_closed(), "the peer is told");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_head_does_not_come_is_given_up_and_an_answer_is_waited_for() {
    let (pieces, mut asked) = stream(Direction::Request);
    fails_late(&mut asked).await;
    assert!(pieces.is_closed(), "the peer is told");
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
async fn a_payload_of_known_length_that_stops_is_given_up() {
    let (pieces, mut stream) = stream(Direction::Response);
    stream.expect(&announced(10));
    let data = Bytes::from_static(b"half");
    stream.take_payload(Some(Payload { seq: 0, data })).unwrap();
    assert_eq!(stream.ready.pop_front().unwrap().unwrap(), "half");
    fails_late(&mut stream).await;
    assert!(pieces.is_closed(), "the peer is told");
}

#[tokio::test(start_paused = true)]
async fn what_has_no_length_or_came_whole_is_waited_for() {
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
async fn no_message_holds_more_than_a_small_part_of_a_body() {
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
fn a_message_may_have_as_much_of_a_body_as_the_limit() {
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
async fn what_is_here_of_a_request_before_the_rest_counts_for_its_connection() {
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
        panic!("there is no room for both");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    drop(one);
    let (others, mut other) = begun();
    others.send(half()).await.unwrap();
    assert!(other.poll_message(&mut cx).is_pending());
    // So does a message that is whole and that nobody takes.
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
