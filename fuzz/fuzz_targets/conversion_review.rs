//! Conversion of subscriptions for the API server: no input panics, and only fields that a version lacks
//! are lost.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| outrigger_operator::fuzzing::conversion(body));
