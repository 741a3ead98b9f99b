//! Schemas of Avro, values and JSON: no input panics, takes the stack or more memory than it may, and JSON that was encoded
//! and decoded is encoded alike.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| outrigger_components_kafka::fuzz_avro(input));
