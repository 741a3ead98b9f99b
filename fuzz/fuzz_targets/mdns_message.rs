//! Multicast DNS packets, as decoded by the resolver.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| outrigger_discovery::fuzz_message(bytes));
