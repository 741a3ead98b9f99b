//! An answer of a worker that is too large, looked through for what it answers: no input panics, chunking does not change what
//! is found, and what is found is what is there.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, answer) = input;
    outrigger_api::grpc::fuzz_oversized(answer, usize::from(size).max(1));
});
