//! Where heads and bodies end, for the fuzz targets.

use super::chunks::Chunks;
use super::head;

/// Where a chunked body ends that comes in pieces of `step` bytes; `None` where it goes on.
///
/// # Errors
/// Why it is refused.
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

/// The first head of what comes in pieces of `step` bytes, as hyper is given it; `None` where it goes on.
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
