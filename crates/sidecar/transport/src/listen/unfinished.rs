//! How much of requests a sidecar keeps that have begun and not ended.

use std::sync::Arc;

use outrigger_grpc::unfinished::{Bounds, Unfinished, UnfinishedMemory};

use super::Options;

/// Bytes of requests that have begun and not ended, on one connection: a sidecar has 100 calls on one to another, an SDK all of an
/// app's, and each may be as large as a message usually can be.
const MAX_UNFINISHED_OF_CONNECTION: usize = 512 << 20;
/// The same, on all connections of a process.
const MAX_UNFINISHED: usize = 1 << 30;

/// What all connections of the process keep.
static MEMORY: UnfinishedMemory = UnfinishedMemory::new();

/// The bounds where bodies have at most so many bytes: two of the largest fit on a connection, however large they are. None
/// where bodies have no limit.
pub fn unfinished_bounds(max_body: Option<usize>) -> Bounds {
    let two = max_body.map_or(usize::MAX, |limit| limit.saturating_mul(2));
    Bounds {
        connection: MAX_UNFINISHED_OF_CONNECTION.max(two),
        process: MAX_UNFINISHED.max(two.saturating_mul(2)),
    }
}

/// The unfinished requests of a new connection.
pub(super) fn unfinished(options: &Options) -> Arc<Unfinished> {
    Unfinished::new(options.unfinished, &MEMORY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_the_largest_bodies_fit_on_a_connection() {
        let bounds = |max_body| {
            let Bounds { connection, process } = unfinished_bounds(max_body);
            (connection, process)
        };
        assert_eq!(bounds(Some(4 << 20)), (512 << 20, 1 << 30));
        assert_eq!(bounds(Some(1 << 30)), (2 << 30, 4 << 30));
        assert_eq!(bounds(None), (usize::MAX, usize::MAX));
    }
}
