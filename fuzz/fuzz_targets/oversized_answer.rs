//! Extraction of the IDs from an oversized worker response: no input panics, chunking does not affect the
//! result, and the result matches the content.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, answer) = input;
    outrigger_api::grpc::fuzz_oversized(answer, usize::from(size).max(1));
});
