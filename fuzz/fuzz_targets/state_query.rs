//! The JSON of a state query: no input panics, and the depth of accepted queries is limited.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| outrigger_blocks::state::fuzz_query(text));
