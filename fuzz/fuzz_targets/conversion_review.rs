//! Subscriptions that the API server wants converted: no input panics, and nothing is lost but what a version lacks.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| outrigger_operator::fuzzing::conversion(body));
