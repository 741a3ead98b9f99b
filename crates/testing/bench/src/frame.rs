//! The frame of a gRPC message: a compression flag and a length.

use bytes::{BufMut as _, Bytes, BytesMut};

/// Bytes before each message.
pub(crate) const FRAME: usize = 5;

/// A message with its frame in front.
pub(crate) fn message(message: &impl prost::Message) -> Bytes {
    framed(&message.encode_to_vec())
}

/// Bytes that stand for a message, with the frame in front.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(FRAME + message.len());
    framed.put_u8(0);
    // No message here comes near 4 GB.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}
