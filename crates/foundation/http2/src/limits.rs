//! What a peer may make us hold and do: every number here is a limit that an operator can meet. Those that depend on the
//! use of a connection are fields of [`Config`](crate::Config), these their defaults. Each public one has a row in
//! `docs/reference/limits.md`.

use std::time::{Duration, Instant};

/// Bytes of one list of fields (a head, or trailers), each field counted as its name, its value and 32 (RFC 9113
/// section 6.5.2). A longer one is not looked at: its request is answered with 431, or RESOURCE_EXHAUSTED where the
/// connection is for gRPC; its response is an error of the call. The connection goes on.
pub const HEADER_LIST: u32 = 64 * 1024;

/// Fields of one list, whatever their size; exceeded, as [`HEADER_LIST`].
pub const FIELDS: usize = 16_384;

/// Bytes of memory for the heads and trailers of all streams of a connection that are not over; exceeded by a list, as
/// [`HEADER_LIST`].
pub const HEADER_MEMORY: usize = 16 * 1024 * 1024;

/// Bytes that a field is charged to [`HEADER_MEMORY`] in addition to its size: what a map takes for it.
pub(crate) const FIELD_MEMORY: usize = 128;

/// CONTINUATION frames behind one HEADERS frame, in addition to those that a list of the largest size fills by half.
/// More end the connection with ENHANCE_YOUR_CALM.
pub const CONTINUATIONS: usize = 32;

/// Bytes of bodies that wait for the peer to make room on all streams of a connection. Beyond it, a stream has one
/// piece waiting at a time.
pub const SEND_BUFFERS: usize = 32 * 1024 * 1024;

/// The same where those pieces are large, as whole messages are, and there are more than 256 streams: a stream of a
/// server whose piece does not fit is reset with ENHANCE_YOUR_CALM.
pub const UNREAD: usize = 256 * 1024 * 1024;

/// Streams of a connection for which [`MAX_UNREAD_FEW_STREAMS`] holds in place of [`UNREAD`].
pub(crate) const UNREAD_STREAMS: usize = 256;

/// [`UNREAD`] where there are few streams: each may have a message of the usual largest size, 4 MiB, behind what is sent of
/// another.
pub const MAX_UNREAD_FEW_STREAMS: usize = UNREAD_STREAMS * (4 * 1024 * 1024 + 256 * 1024);

/// Time without a byte, where one is due: then what waits for it is given up.
///
/// - A frame or a list of fields that has begun, and output of ours that the peer does not read: the connection ends.
/// - A request's body that somebody waits to read, and an answer's for which the client makes no room: the stream ends.
/// - The body of a response that has announced its length: the stream ends.
///
/// Bodies on a listener of gRPC are exempt, and those of responses without a length: streams of either kind may rightly be
/// silent for hours. What guards against a peer that is gone are the pings ([`KeepAlive`](crate::KeepAlive)); who takes
/// messages out of such a body sees to it that what has begun goes on.
pub const STALL: Duration = Duration::from_secs(60);

/// The same while the clients of all connections together leave more than half of what they may unread: time without a byte of
/// output, and without 256 KiB of an answer that waits for its client, gRPC's too.
pub const CROWDED_STALL: Duration = Duration::from_secs(10);

/// What a client reads of an answer within [`CROWDED_STALL`], bytes: who reads less holds it for too long.
pub(crate) const CROWDED_PROGRESS: usize = 256 * 1024;

/// Time without a stream after which a server ends a connection, in order: GOAWAY, and what the client began before it
/// knew is still answered.
pub const IDLE: Duration = Duration::from_secs(600);

/// The budget of unproductive frames: what a peer may do at once that costs us more than it, or nothing to it. Exceeded,
/// the connection ends with ENHANCE_YOUR_CALM.
///
/// Counted are streams that are reset before their answer (rapid reset), frames for which we reset a stream, lists of
/// fields that are refused, SETTINGS, empty DATA, and, where they let nothing out, WINDOW_UPDATE, PING, GOAWAY, PRIORITY
/// and frames of unknown kinds or of streams that are over. A change of INITIAL_WINDOW_SIZE counts one more for every 16
/// streams. Frames that stand in proportion to streams begun and DATA sent are free: three for each stream, three for
/// each frame of DATA, and one more for every 2 KiB of it.
///
/// An app whose calls all run into their deadlines stays below; one that does nothing else does not.
pub const UNPRODUCTIVE_FRAMES: u32 = 10_000;

/// What comes back of [`UNPRODUCTIVE_FRAMES`] in a second.
pub const UNPRODUCTIVE_FRAMES_PER_SECOND: u32 = 2_000;

/// Streams that are looked at for one unproductive frame.
pub(crate) const STREAMS_PER_FRAME: usize = 16;

/// Frames after which a connection lets others have their turn, except that what was read at once (32 KiB) is taken
/// whole.
pub(crate) const FRAMES_PER_TURN: usize = 1024;

/// Requests that are handed over in one turn of a connection.
pub(crate) const REQUESTS_PER_TURN: usize = 128;

/// Frames that a stream, or a frame of DATA, makes free.
const CREDIT: u32 = 3;
/// Bytes of DATA that make one more free.
const CREDIT_BYTES: usize = 2048;
/// Free frames that can be saved.
const MAX_CREDIT: u32 = 20_000;

/// Counts what a peer makes us do for nothing.
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
    /// Takes `cost` frames; false when there are not so many.
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

    /// A stream was begun.
    pub(crate) fn credit_stream(&mut self) {
        self.credit = (self.credit + CREDIT).min(MAX_CREDIT);
    }

    /// DATA was sent.
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
        // A slow machine gets something back meanwhile.
        let most = MAX_CREDIT + UNPRODUCTIVE_FRAMES * 10;
        assert!(!(0..most).all(|_| budget.charge_frame()));
    }
}
