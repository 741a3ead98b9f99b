//! The JSON of a bulk publish: no input panics, and JSON payloads stay slices of the body.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| outrigger_api::http::fuzz_publish_bulk(&Bytes::copy_from_slice(body)));
