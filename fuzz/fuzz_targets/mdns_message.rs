//! Packets from the local network, as the multicast DNS resolver reads them.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| outrigger_discovery::fuzz_message(bytes));
