//! The header of an encrypted document: no input panics, chunking does not affect parsing, and an accepted
//! manifest survives a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, document) = input;
    outrigger_blocks::crypto::fuzz_document_header(document, usize::from(size).max(1));
});
