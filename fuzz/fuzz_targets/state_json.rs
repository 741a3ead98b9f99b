//! The JSON bodies of state requests: no input panics, and values stay slices of the body.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| outrigger_api::http::fuzz_state_bodies(&Bytes::copy_from_slice(body)));
