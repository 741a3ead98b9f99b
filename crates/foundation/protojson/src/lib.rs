//! proto3 JSON, the form of the contract's messages for HTTP clients and apps. [`encode`] and [`decode`]
//! convert any message through its descriptor. Frequent parts have direct functions: [`to_json`] and
//! [`from_json`] for `google.protobuf.Value`, [`status()`] for `google.rpc.Status`, and [`bytes`].
//!
//! The two encoders of `google.protobuf.Value` differ for numbers from 2^53. A member of a message is
//! written in full up to 1e21, as API clients expect; a separate value has an exponent from there, as apps
//! expect.

mod message;
mod status;
mod value;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub use message::{decode, encode};
pub use status::status;
pub use value::{from_json, to_json, to_object};

/// The text form of bytes, without quotes.
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
