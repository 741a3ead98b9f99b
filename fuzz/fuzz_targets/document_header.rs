//! The header of an encrypted document: no input panics, chunking does not change what is read, and a manifest that is
//! accepted survives its own encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, document) = input;
    outrigger_blocks::crypto::fuzz_document_header(document, usize::from(size).max(1));
});
