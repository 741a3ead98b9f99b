//! proto3 JSON, the form in which HTTP clients and apps have messages of the contract. All of it is read and written here:
//! [`encode`] and [`decode`] any message, through its descriptor; the parts that calls need often without one: [`to_json`]
//! and [`from_json`] `google.protobuf.Value`, [`status`] `google.rpc.Status`, and [`bytes`].
//!
//! The two that write a `google.protobuf.Value` differ in numbers from 2^53 on: a member of a message has them written
//! out up to 1e21, as clients of the API know them; a value by itself has an exponent from there, as apps do.

mod message;
mod status;
mod value;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub use message::{decode, encode};
pub use status::status;
pub use value::{from_json, to_json, to_object};

/// The text that stands for bytes, without its quotes.
pub fn bytes(data: &[u8]) -> String {
    STANDARD.encode(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_standard_padded_base64() {
        for (data, text) in [
            (&b""[..], ""),
            (&[0xfb, 0xff, 0xfe], "+//+"),
            (&[0xff], "/w=="),
            (b"ab", "YWI="),
        ] {
            assert_eq!(bytes(data), text);
        }
    }
}
