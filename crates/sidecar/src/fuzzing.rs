//! The parsers of what comes from the network, for the fuzz targets.

use bytes::Bytes;

pub use outrigger_blocks::crypto::fuzz_document_header as document_header;

/// Reads `body` as each body of a state request.
pub fn state_bodies(body: &[u8]) {
    outrigger_api::http::fuzz_state_bodies(&Bytes::copy_from_slice(body));
}

/// Reads `text` as the query of a state store.
pub fn state_query(text: &[u8]) {
    outrigger_blocks::state::fuzz_query(text);
}

/// Reads `body` as a bulk to be published.
pub fn publish_bulk(body: &[u8]) {
    outrigger_api::http::fuzz_publish_bulk(&Bytes::copy_from_slice(body));
}
