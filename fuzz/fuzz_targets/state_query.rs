//! The JSON of a state query: no input panics, and what is accepted is no deeper than it may be.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| outrigger_blocks::state::fuzz_query(text));
