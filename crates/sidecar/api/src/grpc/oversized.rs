//! Worker responses over the message limit. The codec refuses them by length alone, and the caller would wait
//! until the worker disconnects. This module scans them for the work item that they answer, so that it fails
//! at once.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::Request;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use outrigger_blocks_actors::workflow::Oversized;
use outrigger_transport::body::{Body, BoxError};
use outrigger_transport::grpc::{PREFIX, Prefix};
use prost::encoding::{WireType, decode_key, decode_varint};
use tokio::time::timeout;

/// Timeout of the scan.
const READ: Duration = Duration::from_secs(10);
/// Most bytes scanned. The fields that identify the work item may come last.
const MAX_READ: usize = 64 << 20;
/// Longest id or token, bytes.
const MAX_NAME: usize = 4096;

/// The fields of a response that identify its work item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields {
    task: Option<u32>,
    token: u32,
}

/// Field number of the instance id in both responses.
const INSTANCE: u32 = 1;
/// `WorkflowResponse`.
pub(super) const TURN: Fields = Fields { task: None, token: 4 };
/// `ActivityResponse`.
pub(super) const ACTIVITY: Fields = Fields {
    task: Some(2),
    token: 5,
};

/// The unchanged request, unless its message is larger than `limit`.
///
/// # Errors
/// The size of the message and, as far as known, its work item.
pub(super) async fn check(
    request: Request<Body>,
    fields: Fields,
    limit: usize,
) -> Result<Request<Body>, Oversized> {
    let (head, mut body) = request.into_parts();
    if body.known_length().is_some_and(|length| length <= limit as u64) {
        return Ok(Request::from_parts(head, body));
    }
    let (mut frames, mut start) = (VecDeque::new(), BytesMut::new());
    while start.len() < PREFIX {
        match timeout(READ, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                start.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                frames.push_back(frame);
            }
            // The generated server hits the same error and reports it.
            Ok(None) | Err(_) => break,
            Ok(Some(Err(error))) => {
                let failed = body_failed(frames, error);
                return Ok(Request::from_parts(head, failed));
            }
        }
    }
    let size = match Prefix::read(&start) {
        Some(Prefix { flag: 0, length }) => length,
        // The codec refuses compressed messages.
        _ => 0,
    };
    if size <= limit {
        return Ok(Request::from_parts(head, resumed(frames, body)));
    }
    let mut scan = Scan::new(fields);
    scan.pass(start.get(PREFIX..).unwrap_or_default());
    let rest = async {
        let mut read = start.len();
        while let Some(Ok(frame)) = body.frame().await {
            let Some(data) = frame.data_ref() else { continue };
            scan.pass(data);
            read += data.len();
            if read > MAX_READ {
                break;
            }
        }
    };
    // On a timeout, use what was found so far.
    let _in_time = timeout(READ, rest).await;
    Err(Oversized {
        size,
        limit,
        ..scan.found
    })
}

/// A body that yields `frames` first.
struct Resumed {
    frames: VecDeque<Result<Frame<Bytes>, BoxError>>,
    body: Body,
}

fn resumed(frames: VecDeque<Frame<Bytes>>, body: Body) -> Body {
    let frames = frames.into_iter().map(Ok).collect();
    let (body, connection) = body.uncounted();
    Body::stream(Resumed { frames, body }).counted(connection)
}

fn body_failed(frames: VecDeque<Frame<Bytes>>, error: BoxError) -> Body {
    let frames = frames.into_iter().map(Ok).chain([Err(error)]).collect();
    Body::stream(Resumed {
        frames,
        body: Body::Empty,
    })
}

impl HttpBody for Resumed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.frames.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None => Pin::new(&mut self.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Scans a message as it arrives for its small fields. It buffers at most one of them.
struct Scan {
    fields: Fields,
    found: Oversized,
    /// Bytes of the current field.
    buffer: BytesMut,
    /// Bytes left of a field that is skipped.
    skip: usize,
    /// Whether the bytes are not a valid message.
    is_lost: bool,
}

impl Scan {
    fn new(fields: Fields) -> Self {
        Self {
            fields,
            found: Oversized::default(),
            buffer: BytesMut::new(),
            skip: 0,
            is_lost: false,
        }
    }

    fn pass(&mut self, data: &[u8]) {
        let skipped = self.skip.min(data.len());
        self.skip -= skipped;
        if self.is_lost {
            return;
        }
        self.buffer.extend_from_slice(&data[skipped..]);
        while self.field().is_some() {}
        // A key and a length take at most ten bytes each.
        self.is_lost |= self.buffer.len() > MAX_NAME + 20;
    }

    /// Takes one field; `None` if it is incomplete.
    fn field(&mut self) -> Option<()> {
        let mut rest: &[u8] = &self.buffer;
        let (tag, wire) = decode_key(&mut rest).ok()?;
        match wire {
            WireType::Varint => {
                let value = decode_varint(&mut rest).ok()?;
                if Some(tag) == self.fields.task {
                    // Truncation is protobuf's encoding of a negative `int32`.
                    #[allow(clippy::cast_possible_truncation)]
                    let task = value as i32;
                    self.found.task = Some(task);
                }
            }
            WireType::SixtyFourBit => rest = rest.get(8..)?,
            WireType::ThirtyTwoBit => rest = rest.get(4..)?,
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                let is_wanted = (tag == INSTANCE || tag == self.fields.token) && length <= MAX_NAME;
                if is_wanted {
                    let (value, after) = rest.split_at_checked(length)?;
                    let value = String::from_utf8_lossy(value).into_owned();
                    match tag {
                        INSTANCE => self.found.instance = value,
                        _ => self.found.token = value,
                    }
                    rest = after;
                } else {
                    let here = length.min(rest.len());
                    self.skip = length - here;
                    rest = &rest[here..];
                }
            }
            WireType::StartGroup | WireType::EndGroup => {
                self.is_lost = true;
                return None;
            }
        }
        let taken = self.buffer.len() - rest.len();
        self.buffer.advance(taken);
        Some(())
    }
}

/// Scans `bytes` as a turn response and as an activity response, whole and in pieces of `size` bytes.
///
/// # Panics
///
/// If the two scans differ, or disagree with the decoded message.
#[cfg(feature = "fuzzing")]
pub fn fuzz(bytes: &[u8], size: usize) {
    use outrigger_wire::durabletask::{ActivityResponse, WorkflowResponse};
    use prost::Message;

    let scan = |fields, size: usize| {
        let mut scan = Scan::new(fields);
        bytes.chunks(size).for_each(|piece| scan.pass(piece));
        scan
    };
    let is_short = |texts: [&str; 2]| texts.iter().all(|text| text.len() <= MAX_NAME);
    for fields in [TURN, ACTIVITY] {
        let (whole, pieces) = (scan(fields, bytes.len().max(1)), scan(fields, size));
        assert_eq!(whole.found, pieces.found);
        let (instance, task, token) = if fields.task.is_some() {
            let Ok(read) = ActivityResponse::decode(bytes) else {
                continue;
            };
            (read.instance_id, read.task_id, read.completion_token)
        } else {
            let Ok(read) = WorkflowResponse::decode(bytes) else {
                continue;
            };
            (read.instance_id, 0, read.completion_token)
        };
        // No SDK writes groups.
        if !whole.is_lost && is_short([&instance, &token]) {
            let found = &whole.found;
            assert_eq!((&found.instance, &found.token), (&instance, &token));
            assert_eq!(found.task.unwrap_or_default(), task);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::StreamBody;
    use outrigger_transport::grpc::frame;
    use outrigger_wire::durabletask::{ActivityResponse, WorkflowAction, WorkflowResponse};
    use prost::Message;

    use super::*;

    /// A request whose body arrives in pieces of this size.
    fn request(message: &impl Message, piece: usize) -> Request<Body> {
        let body = frame(message);
        let pieces: Vec<_> = body.chunks(piece).map(Bytes::copy_from_slice).collect();
        let pieces = pieces
            .into_iter()
            .map(|piece| Ok::<_, BoxError>(Frame::data(piece)));
        Request::new(Body::stream(StreamBody::new(stream::iter(pieces))))
    }

    fn activity(bytes: usize) -> ActivityResponse {
        ActivityResponse {
            instance_id: "a".to_owned(),
            task_id: 7,
            result: Some("x".repeat(bytes)),
            completion_token: "t-1".to_owned(),
            ..ActivityResponse::default()
        }
    }

    #[tokio::test]
    async fn oversized_response_names_work_item() {
        let (activity, turn) = (
            activity(100_000),
            WorkflowResponse {
                instance_id: "b".to_owned(),
                actions: vec![WorkflowAction::default(); 50_000],
                completion_token: "t-2".to_owned(),
                ..WorkflowResponse::default()
            },
        );
        for piece in [1, 3, 16_384, usize::MAX] {
            let found = check(request(&activity, piece), ACTIVITY, 1000)
                .await
                .err()
                .unwrap();
            let expected = Oversized {
                instance: "a".to_owned(),
                task: Some(7),
                token: "t-1".to_owned(),
                size: activity.encoded_len(),
                limit: 1000,
            };
            assert_eq!(found, expected, "{piece}");
            let found = check(request(&turn, piece), TURN, 1000).await.err().unwrap();
            let expected = Oversized {
                instance: "b".to_owned(),
                task: None,
                token: "t-2".to_owned(),
                size: turn.encoded_len(),
                limit: 1000,
            };
            assert_eq!(found, expected, "{piece}");
        }
    }

    #[tokio::test]
    async fn passes_small_response_unchanged() {
        let message = activity(900);
        for piece in [1, 7, usize::MAX] {
            let passed = check(request(&message, piece), ACTIVITY, 1000).await.unwrap();
            let body = passed.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, frame(&message), "{piece}");
        }
        let cut = Request::new(Body::Full(Bytes::from_static(b"\0\0")));
        let passed = check(cut, ACTIVITY, 1).await.unwrap();
        assert_eq!(passed.into_body().collect().await.unwrap().to_bytes().len(), 2);
    }

    #[tokio::test]
    async fn invalid_message_takes_no_memory() {
        let mut scan = Scan::new(TURN);
        for _ in 0..100 {
            scan.pass(&[0xff; 1000]);
        }
        assert!(scan.is_lost && scan.buffer.len() < 2 * MAX_NAME);
    }
}
