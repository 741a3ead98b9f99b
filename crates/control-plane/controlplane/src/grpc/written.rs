//! Responses encoded while they are sent. Usually each message is encoded whole per caller, into a buffer per
//! stream. With hundreds of callers that request one long list, or listen to quiet streams, that would be
//! most of the process's memory.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{Stream, StreamExt, iter, once, unfold};
use http::HeaderMap;
use http_body::Frame;
use http_body_util::StreamBody;
use outrigger_grpc::frame::{PREFIX, Prefix};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::body::Body;
use tonic::{Response, Status};

/// Size of a piece of a list in bytes: one HTTP/2 frame and one TLS record.
const PIECE: usize = 16 << 10;
/// Field number of a list.
const FIELD: u32 = 1;
/// Maximum size of an item's key and length in bytes.
const HEAD: usize = 11;

/// The body that replaces the response's, once it reaches [`super::serve`].
#[derive(Clone)]
struct Written(Arc<Mutex<Option<Body>>>);

/// A response with one field, `repeated bytes ... = 1`, in the order of `items`; `T` is the type of such a
/// message. The items are shared, not copied, and only 16 KiB of the message exist at a time.
///
/// # Errors
/// `OUT_OF_RANGE` if it exceeds the maximum of a gRPC message, 4 GiB.
pub fn list<T: Default>(items: Vec<Bytes>) -> Result<Response<T>, Status> {
    let of = |item: &Bytes| key_len(FIELD) + encoded_len_varint(item.len() as u64) + item.len();
    let length: usize = items.iter().map(of).sum();
    let prefix = prefix(length)?;
    let list = List {
        left: PREFIX + length,
        begun: Bytes::copy_from_slice(&prefix),
        items: items.into_iter(),
    };
    let frames = iter(list).map(Frame::data);
    let end = once(async { Frame::trailers(status(&Status::ok(""))) });
    Ok(instead(T::default(), frames.chain(end)))
}

/// A streaming response. Each message is encoded when it is available, into a buffer of its exact size. The
/// first error ends the stream.
pub fn stream<T, M, S>(placeholder: T, messages: S) -> Response<T>
where
    M: Message + 'static,
    S: Stream<Item = Result<M, Status>> + Send + 'static,
{
    let frames = unfold(Some(Box::pin(messages)), |messages| async move {
        let mut messages = messages?;
        let failed = match messages.next().await.map(|message| message.and_then(encoded)) {
            Some(Ok(bytes)) => return Some((Frame::data(bytes), Some(messages))),
            Some(Err(status)) => status,
            None => Status::ok(""),
        };
        Some((Frame::trailers(status(&failed)), None))
    });
    instead(placeholder, frames)
}

/// The response as sent, with its replacement body if there is one.
pub(super) fn written(mut answer: http::Response<Body>) -> http::Response<Body> {
    if let Some(Written(body)) = answer.extensions_mut().remove::<Written>() {
        let body = body.lock().unwrap_or_else(PoisonError::into_inner).take();
        *answer.body_mut() = body.unwrap_or_default();
    }
    answer
}

fn instead<T>(placeholder: T, frames: impl Stream<Item = Frame<Bytes>> + Send + 'static) -> Response<T> {
    let body = Body::new(StreamBody::new(frames.map(Ok::<_, Status>)));
    let mut answer = Response::new(placeholder);
    let written = Written(Arc::new(Mutex::new(Some(body))));
    answer.extensions_mut().insert(written);
    answer
}

fn prefix(length: usize) -> Result<[u8; PREFIX], Status> {
    Prefix::write(length).ok_or_else(|| {
        Status::out_of_range(format!(
            "the response has {length} bytes, more than a gRPC message can have"
        ))
    })
}

fn encoded(message: impl Message) -> Result<Bytes, Status> {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_slice(&prefix(length)?);
    message
        .encode(&mut bytes)
        .map_err(|error| Status::internal(error.to_string()))?;
    Ok(bytes.freeze())
}

/// The trailers for a status.
fn status(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        // Without details, which do not fit into a header.
        let _ = Status::new(status.code(), "").add_header(&mut trailers);
    }
    trailers
}

/// The pieces of a list.
struct List {
    /// Bytes not written yet.
    left: usize,
    /// Rest of the current item.
    begun: Bytes,
    items: std::vec::IntoIter<Bytes>,
}

impl Iterator for List {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut piece = BytesMut::with_capacity(self.left.min(PIECE));
        loop {
            let fits = self.begun.len().min(PIECE - piece.len());
            piece.put_slice(&self.begun.split_to(fits));
            // The head of an item is never split.
            if !self.begun.is_empty() || PIECE - piece.len() < HEAD {
                break;
            }
            let Some(item) = self.items.next() else { break };
            encode_key(FIELD, WireType::LengthDelimited, &mut piece);
            encode_varint(item.len() as u64, &mut piece);
            self.begun = item;
        }
        self.left -= piece.len();
        (!piece.is_empty()).then(|| piece.freeze())
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    /// Any message with this single field.
    #[derive(Clone, PartialEq, Message)]
    struct Listed {
        #[prost(bytes = "bytes", repeated, tag = "1")]
        items: Vec<Bytes>,
    }

    fn sent<T: Send + 'static>(answer: Response<T>) -> Body {
        written(answer.into_http_response()).into_body()
    }

    trait IntoHttp {
        fn into_http_response(self) -> http::Response<Body>;
    }

    impl<T> IntoHttp for Response<T> {
        fn into_http_response(self) -> http::Response<Body> {
            let (_, _, extensions) = self.into_parts();
            let mut answer = http::Response::new(Body::empty());
            *answer.extensions_mut() = extensions;
            answer
        }
    }

    fn message(bytes: &[u8]) -> Listed {
        assert_eq!(bytes[..PREFIX], prefix(bytes.len() - PREFIX).unwrap());
        Listed::decode(&bytes[PREFIX..]).unwrap()
    }

    #[tokio::test]
    async fn list_equals_encoded_message() {
        for sizes in [
            &[][..],
            &[0],
            &[1, 0, 3],
            &[PIECE],
            &[127, 128, PIECE * 3 + 1, 0, 7],
            &[1400; 100],
            &[PIECE - PREFIX - 3 - 12, 1],
            &[PIECE - PREFIX - 3 - 10, 1],
        ] {
            let items: Vec<_> = (0u8..)
                .zip(sizes)
                .map(|(n, &size)| Bytes::from(vec![n; size]))
                .collect();
            let mut body = sent(list::<Listed>(items.clone()).unwrap());
            let mut all = Vec::new();
            loop {
                match body.frame().await.unwrap().unwrap().into_data() {
                    Ok(piece) => {
                        assert!(!piece.is_empty() && piece.len() <= PIECE, "{sizes:?}");
                        all.extend_from_slice(&piece);
                    }
                    Err(end) => {
                        assert_eq!(end.into_trailers().unwrap()["grpc-status"], "0");
                        break;
                    }
                }
            }
            assert!(body.frame().await.is_none());
            assert_eq!(message(&all), Listed { items });
        }
    }

    #[tokio::test]
    async fn list_holds_one_piece() {
        let item = Bytes::from(vec![b'x'; 1400]);
        let mut body = sent(list::<Listed>(vec![item; 1000]).unwrap());
        let mut pieces = 0;
        while let Some(Ok(Ok(piece))) = body.frame().await.map(|frame| frame.map(Frame::into_data)) {
            // A unique handle; nothing else holds the memory.
            assert!(piece.try_into_mut().unwrap().capacity() <= PIECE);
            pieces += 1;
        }
        let length: usize = 1000 * 1403 + PREFIX;
        assert!(
            (length.div_ceil(PIECE)..=length.div_ceil(PIECE - HEAD)).contains(&pieces),
            "{pieces}"
        );
    }

    #[tokio::test]
    async fn stream_buffers_have_exact_size() {
        let one = Listed {
            items: vec![Bytes::from_static(b"one")],
        };
        let messages = vec![
            Ok(one.clone()),
            Ok(Listed::default()),
            Err(Status::unavailable("too slow")),
            Ok(one.clone()),
        ];
        let mut body = sent(stream((), iter(messages)));
        let mut next = async || body.frame().await.unwrap().unwrap();
        let first = next().await.into_data().unwrap();
        assert_eq!(message(&first), one);
        assert_eq!(
            first.try_into_mut().unwrap().capacity(),
            PREFIX + one.encoded_len()
        );
        assert_eq!(message(&next().await.into_data().unwrap()), Listed::default());
        let end = next().await.into_trailers().unwrap();
        assert_eq!(
            (&end["grpc-status"], &end["grpc-message"]),
            (&"14".parse().unwrap(), &"too%20slow".parse().unwrap())
        );
        assert!(body.frame().await.is_none());
    }

    #[test]
    fn passes_other_responses_unchanged() {
        let answer = written(http::Response::builder().status(204).body(Body::empty()).unwrap());
        assert_eq!(answer.status(), 204);
    }
}
