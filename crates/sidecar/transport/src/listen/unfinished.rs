//! Limits on buffered incomplete requests.

use std::sync::Arc;

use outrigger_grpc::unfinished::{Bounds, Unfinished, UnfinishedMemory};

use super::Options;

/// Bytes of incomplete requests on one connection. A sidecar sends 100 calls over one connection and an SDK
/// all calls of an app, and each may be as large as a typical message limit.
const MAX_UNFINISHED_OF_CONNECTION: usize = 512 << 20;
/// Bytes of incomplete requests on all connections of a process.
const MAX_UNFINISHED: usize = 1 << 30;

/// Bytes that all connections of the process buffer.
static MEMORY: UnfinishedMemory = UnfinishedMemory::new();

/// The limits for bodies of at most `max_body` bytes: two of the largest always fit on a connection. No limit
/// if bodies have none.
pub fn unfinished_bounds(max_body: Option<usize>) -> Bounds {
    let two = max_body.map_or(usize::MAX, |limit| limit.saturating_mul(2));
    Bounds {
        connection: MAX_UNFINISHED_OF_CONNECTION.max(two),
        process: MAX_UNFINISHED.max(two.saturating_mul(2)),
    }
}

/// The accounting of a new connection.
pub(super) fn unfinished(options: &Options) -> Arc<Unfinished> {
    Unfinished::new(options.unfinished, &MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fits_two_largest_bodies() {
        let bounds = |max_body| {
            let Bounds { connection, process } = unfinished_bounds(max_body);
            (connection, process)
        };
        assert_eq!(bounds(Some(4 << 20)), (512 << 20, 1 << 30));
        assert_eq!(bounds(Some(1 << 30)), (2 << 30, 4 << 30));
        assert_eq!(bounds(None), (usize::MAX, usize::MAX));
    }
}
