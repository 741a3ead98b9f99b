//! The prefix of a gRPC message: a compression flag and a length.

use bytes::{BufMut as _, Bytes, BytesMut};

/// Bytes of the prefix.
pub(crate) const FRAME: usize = 5;

/// A message with its prefix.
pub(crate) fn message(message: &impl prost::Message) -> Bytes {
    framed(&message.encode_to_vec())
}

/// An encoded message with its prefix.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(FRAME + message.len());
    framed.put_u8(0);
    // No message here is near 4 GB.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.put_slice(message);
    framed.freeze()
}
