//! Entry points of the fuzz targets for heads and body ends.

use super::chunks::Chunks;
use super::head;

/// The end of a chunked body that arrives in pieces of `step` bytes; `None` if it is incomplete.
///
/// # Errors
/// Why the body is refused.
pub fn fuzz_body_end(bytes: &[u8], step: usize) -> Result<Option<usize>, &'static str> {
    let (mut chunks, mut taken) = (Chunks::default(), 0);
    for piece in bytes.chunks(step) {
        taken += chunks.follow(piece)?;
        if chunks.ended() {
            return Ok(Some(taken));
        }
    }
    Ok(None)
}

/// The first head that arrives in pieces of `step` bytes, as hyper receives it; `None` if it is incomplete.
pub fn fuzz_head(bytes: &[u8], step: usize) -> Option<Vec<u8>> {
    let (mut seen, mut there) = (0, 0);
    while there < bytes.len() {
        there = bytes.len().min(there.saturating_add(step));
        if let Some(end) = head::end(&bytes[..there], seen) {
            let head = &bytes[..end];
            return Some(head::escaped(head).unwrap_or_else(|| head.to_vec()));
        }
        seen = there;
    }
    None
}
