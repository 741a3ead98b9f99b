//! The JSON bodies of state requests: no input panics, and values stay parts of the body.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| outrigger_sidecar::fuzzing::state_bodies(body));
