//! JSON web tokens and key sets: signs tokens for workloads, and verifies tokens of other issuers.
//!
//! Signatures use aws-lc directly, because the usual JWT crates lack ES512, which Dapr's contract lists.

mod algorithm;
mod claims;
mod issuer;
mod key;
mod key_set;
mod signer;
mod verify;

pub use algorithm::Algorithm;

pub(crate) use issuer::{JwtAuthority, JwtFiles, JwtRequest, TokenError, Tokens, generate};
pub(crate) use key_set::{KeySet, KeySetError};
pub(crate) use verify::{Expected, verify};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

fn encode_segment(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn decode_segment(text: &str) -> Option<Vec<u8>> {
    // Some producers add padding.
    URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests;
