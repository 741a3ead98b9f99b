//! Limits on the memory and work that a peer can cause. Limits that depend on the use of a connection are
//! fields of [`Config`](crate::Config), and the values here are their defaults. Each public constant has a
//! row in `docs/reference/limits.md`.

use std::time::{Duration, Instant};

/// Bytes of one header list (a head, or trailers). Each field counts its name, its value and 32 (RFC 9113
/// section 6.5.2). A request with a larger list is answered with 431, or RESOURCE_EXHAUSTED on a gRPC
/// connection; a response with a larger list fails the call. The connection stays open.
pub const HEADER_LIST: u32 = 64 * 1024;

/// Fields of one list, whatever their size. Exceeding it has the effect of [`HEADER_LIST`].
pub const FIELDS: usize = 16_384;

/// Bytes of memory for the heads and trailers of all open streams of a connection. A list that exceeds it
/// is treated as above [`HEADER_LIST`].
pub const HEADER_MEMORY: usize = 16 * 1024 * 1024;

/// Bytes charged to [`HEADER_MEMORY`] per field in addition to its size: the overhead of a map entry.
pub(crate) const FIELD_MEMORY: usize = 128;

/// CONTINUATION frames after one HEADERS frame, in addition to those that half-full frames of a
/// maximum-size list would need. More end the connection with ENHANCE_YOUR_CALM.
pub const CONTINUATIONS: usize = 32;

/// Body bytes queued on all streams of a connection because the peer's windows are full. Above it, each
/// stream may queue one piece.
pub const SEND_BUFFERS: usize = 32 * 1024 * 1024;

/// Limit on queued pieces for connections with more than 256 streams, where pieces may be whole messages. A
/// server resets a stream whose piece does not fit with ENHANCE_YOUR_CALM.
pub const UNREAD: usize = 256 * 1024 * 1024;

/// Up to this many streams of a connection, [`MAX_UNREAD_FEW_STREAMS`] applies instead of [`UNREAD`].
pub(crate) const UNREAD_STREAMS: usize = 256;

/// [`UNREAD`] for connections with few streams: each may queue a message of the usual maximum size, 4 MiB,
/// behind the rest of another.
pub const MAX_UNREAD_FEW_STREAMS: usize = UNREAD_STREAMS * (4 * 1024 * 1024 + 256 * 1024);

/// Time without progress after which a stalled transfer is aborted.
///
/// - An incomplete frame or field block, or output that the peer does not read: the connection ends.
/// - A request body that a reader awaits, or a response for which the client opens no window: the stream
///   ends.
/// - A response body with a declared length: the stream ends.
///
/// Bodies on a gRPC listener and responses without a length are exempt, because such streams may be silent
/// for hours. Pings ([`KeepAlive`](crate::KeepAlive)) detect a dead peer. A reader that parses messages out
/// of such a body must bound the time for each started message.
pub const STALL: Duration = Duration::from_secs(60);

/// [`STALL`] while the clients of all connections together use more than half of the memory for unread
/// output. Applies to time without any output, and to time without 256 KiB of a response that waits for its
/// client. Includes gRPC.
pub const CROWDED_STALL: Duration = Duration::from_secs(10);

/// Bytes of a response that a client must read within [`CROWDED_STALL`].
pub(crate) const CROWDED_PROGRESS: usize = 256 * 1024;

/// Time without a stream after which a server closes a connection gracefully: it sends GOAWAY, and still
/// answers requests that the client sent before receiving it.
pub const IDLE: Duration = Duration::from_secs(600);

/// Burst of unproductive frames allowed: frames that cost this side more than the peer, or cost the peer
/// nothing. If exceeded, the connection ends with ENHANCE_YOUR_CALM.
///
/// Charges apply to streams reset before their response (rapid reset), frames for which we reset a stream,
/// refused header lists, SETTINGS, and empty DATA. WINDOW_UPDATE, PING, GOAWAY, PRIORITY, and frames of
/// unknown types or for closed streams are charged if they allow no output. A change of INITIAL_WINDOW_SIZE
/// is charged one more per 16 streams. Frames in proportion to streams and DATA are free: three per stream,
/// three per DATA frame, and one more per 2 KiB of DATA.
///
/// An app whose calls all exceed their deadlines stays below the limit; a client that only resets streams
/// does not.
pub const UNPRODUCTIVE_FRAMES: u32 = 10_000;

/// Refill rate of [`UNPRODUCTIVE_FRAMES`].
pub const UNPRODUCTIVE_FRAMES_PER_SECOND: u32 = 2_000;

/// Streams visited for the price of one unproductive frame.
pub(crate) const STREAMS_PER_FRAME: usize = 16;

/// Frames after which a connection yields. The data of one read (32 KiB) is always processed completely.
pub(crate) const FRAMES_PER_TURN: usize = 1024;

/// Requests dispatched in one turn of a connection.
pub(crate) const REQUESTS_PER_TURN: usize = 128;

/// Free frames per stream, and per DATA frame.
const CREDIT: u32 = 3;
/// Bytes of DATA that earn one more free frame.
const CREDIT_BYTES: usize = 2048;
/// Maximum of accumulated free frames.
const MAX_CREDIT: u32 = 20_000;

/// Token bucket for unproductive frames.
pub(crate) struct Budget {
    remaining: u32,
    credit: u32,
    since: Option<Instant>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            remaining: UNPRODUCTIVE_FRAMES,
            credit: 0,
            since: None,
        }
    }
}

impl Budget {
    /// Takes `cost` frames; false if fewer are left.
    pub(crate) fn charge(&mut self, cost: u32) -> bool {
        let now = Instant::now();
        let seconds = self.since.map_or(0, |since| now.duration_since(since).as_secs());
        if seconds > 0 {
            let more = u32::try_from(seconds)
                .unwrap_or(u32::MAX)
                .saturating_mul(UNPRODUCTIVE_FRAMES_PER_SECOND);
            self.remaining = self.remaining.saturating_add(more).min(UNPRODUCTIVE_FRAMES);
        }
        if seconds > 0 || self.since.is_none() {
            self.since = Some(now);
        }
        match self.remaining.checked_sub(cost) {
            Some(remaining) => {
                self.remaining = remaining;
                true
            }
            None => false,
        }
    }

    /// Takes one frame of a kind that may be free.
    pub(crate) fn charge_frame(&mut self) -> bool {
        match self.credit.checked_sub(1) {
            Some(credit) => {
                self.credit = credit;
                true
            }
            None => self.charge(1),
        }
    }

    /// Credits a new stream.
    pub(crate) fn credit_stream(&mut self) {
        self.credit = (self.credit + CREDIT).min(MAX_CREDIT);
    }

    /// Credits sent DATA.
    pub(crate) fn credit_data(&mut self, bytes: usize) {
        let more = CREDIT.saturating_add(u32::try_from(bytes / CREDIT_BYTES).unwrap_or(MAX_CREDIT));
        self.credit = self.credit.saturating_add(more).min(MAX_CREDIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proportional_frames_are_free() {
        let mut budget = Budget::default();
        for _ in 0..100_000 {
            budget.credit_data(16 * 1024);
            assert!((0..11).all(|_| budget.charge_frame()));
        }
        for _ in 0..100_000 {
            budget.credit_stream();
            assert!((0..3).all(|_| budget.charge_frame()));
        }
        assert!((0..UNPRODUCTIVE_FRAMES).all(|_| budget.charge_frame()));
    }

    #[test]
    fn free_frames_are_capped() {
        let mut budget = Budget::default();
        for _ in 0..100_000 {
            budget.credit_stream();
        }
        // A slow machine gets a refill during the test.
        let most = MAX_CREDIT + UNPRODUCTIVE_FRAMES * 10;
        assert!(!(0..most).all(|_| budget.charge_frame()));
    }
}
