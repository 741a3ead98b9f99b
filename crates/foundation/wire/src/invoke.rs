//! Codec of the streamed call between two sidecars
//! (`dapr.proto.internals.v1.ServiceInvocation/CallLocalStream`).
//!
//! The generated types would copy every body chunk and allocate three times per header. Here a frame is
//! read where it lies: header values and body chunks are slices of it, and a chunk is sent as a short
//! prefix followed by the caller's own bytes.
//!
//! Sending a call:
//!
//! ```
//! use bytes::{Bytes, BytesMut};
//! use outrigger_wire::invoke::{Chunk, FrameReader, Limits, RequestParts, Verb};
//! use outrigger_wire::invoke::{decode_request, encode_request};
//!
//! let body = Bytes::from_static(b"{}");
//! let head = RequestParts { method: "orders/1", verb: Verb::Post, ..RequestParts::default() };
//! let metadata = [("content-type", &b"application/json"[..])];
//! let mut out = BytesMut::new();
//! encode_request(&head, metadata, Some(Chunk { seq: 0, len: body.len() }), &mut out)?;
//! out.extend_from_slice(&body); // or hand both to the transport, one after the other
//!
//! let mut reader = FrameReader::new(4 << 20);
//! reader.push(out.freeze());
//! let frame = decode_request(&reader.next()?.expect("a whole frame"), &Limits::default())?;
//! assert_eq!(frame.payload.expect("a chunk").data, body);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod convert;
mod decode;
mod encode;
mod error;
mod fields;
mod head;

pub use crate::common::v1::http_extension::Verb;
pub use decode::{Limits, decode_request, decode_response};
pub use encode::{Chunk, encode_chunk, encode_request, encode_response, entries};
pub use error::DecodeError;
pub use head::{
    Actor, Payload, RequestFrame, RequestHead, RequestParts, ResponseFrame, ResponseHead, ResponseParts,
    method_of, verb_of,
};
pub use outrigger_grpc::frame::{FrameError, FrameReader, PREFIX as FRAME_PREFIX};
