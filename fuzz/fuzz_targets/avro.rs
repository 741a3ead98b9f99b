//! Avro schemas, values and JSON: no input panics, overflows the stack or exceeds the memory limit, and
//! encoded JSON survives a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| outrigger_components_kafka::fuzz_avro(input));
