//! The frame reader: no input panics, and chunking does not affect parsing.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use outrigger_wire::invoke::{FrameError, FrameReader};

const MAX_MESSAGE: usize = 1 << 12;

fn read(chunks: impl Iterator<Item = Bytes>) -> (Vec<Bytes>, Result<(), FrameError>) {
    let mut reader = FrameReader::new(MAX_MESSAGE);
    let mut messages = Vec::new();
    for chunk in chunks {
        reader.push(chunk);
        loop {
            match reader.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Err(error)),
            }
        }
    }
    (messages, reader.finish())
}

fuzz_target!(|data: &[u8]| {
    let Some((&size, stream)) = data.split_first() else {
        return;
    };
    let stream = Bytes::copy_from_slice(stream);
    let size = usize::from(size).max(1);
    let cut = (0..stream.len())
        .step_by(size)
        .map(|at| stream.slice(at..(at + size).min(stream.len())));
    assert_eq!(read(cut), read(std::iter::once(stream.clone())));
});
