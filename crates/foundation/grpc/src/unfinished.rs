//! Memory accounting for incomplete requests. Flow control does not bound them: data taken off a connection
//! returns its window, although the request is not usable yet.
//!
//! Each connection has a limit, and so has the process. Above half of the process limit, each connection
//! may hold only its fair share of that half, so that a few large holders do not block the others. Only
//! received bytes count, not declared lengths, and a request that is complete when first inspected counts
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

/// Limits in bytes of incomplete requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Per connection.
    pub connection: usize,
    /// For all connections of the process.
    pub process: usize,
}

/// Bytes held by all connections of a process. Shared by all servers in it.
#[derive(Debug, Default)]
pub struct UnfinishedMemory {
    bytes: AtomicUsize,
    /// Connections that hold any. Updated after the bytes, so it may be briefly negative.
    connections: AtomicIsize,
}

impl UnfinishedMemory {
    /// Nothing held.
    pub const fn new() -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            connections: AtomicIsize::new(0),
        }
    }

    /// The fair share of `of` bytes for each connection that holds any.
    fn share(&self, of: usize) -> usize {
        let connections = self.connections.load(Ordering::Relaxed);
        of / usize::try_from(connections).unwrap_or_default().max(1)
    }
}

/// The incomplete requests of a connection.
#[derive(Debug)]
pub struct Unfinished {
    bytes: AtomicUsize,
    bounds: Bounds,
    memory: &'static UnfinishedMemory,
}

/// A request fails because too many bytes are incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooMuchUnfinished {
    /// On its connection.
    #[error("the connection has more than {0} bytes of unfinished requests")]
    OnConnection(usize),
    /// On all connections, while this one has more than its share.
    #[error(
        "the connections of this process have more bytes of unfinished requests than they may have, {0}: try again, with less at \
         once"
    )]
    InProcess(usize),
}

impl Unfinished {
    /// For a connection that holds nothing yet.
    pub fn new(bounds: Bounds, memory: &'static UnfinishedMemory) -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(0),
            bounds,
            memory,
        })
    }

    /// Starts a request, with nothing held.
    pub fn begin(self: Arc<Self>) -> UnfinishedRequest {
        UnfinishedRequest {
            connection: self,
            bytes: 0,
        }
    }

    fn add(&self, bytes: usize) -> Result<(), TooMuchUnfinished> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before == 0 {
            self.memory.connections.fetch_add(1, Ordering::Relaxed);
        }
        let held = before + bytes;
        let all = self.memory.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let Bounds { connection, process } = self.bounds;
        let half = process / 2;
        if held > connection {
            return Err(TooMuchUnfinished::OnConnection(connection));
        }
        if all > process || (all > half && held > self.memory.share(half)) {
            return Err(TooMuchUnfinished::InProcess(process));
        }
        Ok(())
    }

    fn remove(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if before == bytes {
            self.memory.connections.fetch_sub(1, Ordering::Relaxed);
        }
        self.memory.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The bytes held of one request; released on drop.
#[derive(Debug)]
pub struct UnfinishedRequest {
    connection: Arc<Unfinished>,
    bytes: usize,
}

impl UnfinishedRequest {
    /// Sets the number of held bytes.
    ///
    /// # Errors
    /// If there is no room. The count becomes zero, because the reader must drop the request.
    pub fn hold(&mut self, bytes: usize) -> Result<(), TooMuchUnfinished> {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes < before {
            self.connection.remove(before - bytes);
        } else if bytes > before {
            let room = self.connection.add(bytes - before);
            if room.is_err() {
                self.release();
            }
            return room;
        }
        Ok(())
    }

    /// Sets the count to zero.
    pub fn release(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes > 0 {
            self.connection.remove(bytes);
        }
    }

    /// Its connection.
    pub fn connection(&self) -> &Arc<Unfinished> {
        &self.connection
    }
}

impl Drop for UnfinishedRequest {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        connection: 100,
        process: 400,
    };

    fn memory() -> &'static UnfinishedMemory {
        Box::leak(Box::new(UnfinishedMemory::new()))
    }

    fn held(memory: &UnfinishedMemory) -> (usize, isize) {
        (
            memory.bytes.load(Ordering::Relaxed),
            memory.connections.load(Ordering::Relaxed),
        )
    }

    #[test]
    fn counts_until_released() {
        let memory = memory();
        let connection = Unfinished::new(BOUNDS, memory);
        let mut one = Arc::clone(&connection).begin();
        let mut other = Arc::clone(&connection).begin();
        assert_eq!(held(memory), (0, 0));
        one.hold(40).unwrap();
        other.hold(60).unwrap();
        assert_eq!(held(memory), (100, 1));
        assert_eq!(one.hold(41), Err(TooMuchUnfinished::OnConnection(100)));
        assert_eq!(held(memory), (60, 1), "a rejected request must hold nothing");
        one.hold(40).unwrap();
        one.hold(0).unwrap();
        assert_eq!(held(memory), (60, 1), "a message is whole, and another may come");
        one.hold(10).unwrap();
        drop(other);
        assert_eq!(held(memory), (10, 1));
        one.release();
        assert_eq!(held(memory), (0, 0));
        drop(one);
        assert_eq!(held(memory), (0, 0));
        assert_eq!(connection.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn request_may_use_connection_limit() {
        let mut alone = Unfinished::new(BOUNDS, memory()).begin();
        alone.hold(BOUNDS.connection).unwrap();
        assert!(alone.hold(BOUNDS.connection + 1).is_err());
    }

    #[test]
    fn large_holders_leave_fair_share() {
        let memory = memory();
        let begin = || Unfinished::new(BOUNDS, memory).begin();
        let mut large = [begin(), begin()];
        for request in &mut large {
            request.hold(100).unwrap();
        }
        // Half of the process limit: the share of three is 66.
        let mut third = begin();
        third.hold(66).unwrap();
        assert_eq!(third.hold(67), Err(TooMuchUnfinished::InProcess(400)));
        assert_eq!(large[0].hold(99), Ok(()), "bytes already held must stay");
        assert_eq!(large[0].hold(100), Ok(()), "there is room again");
        third.hold(66).unwrap();
        assert_eq!(large[0].hold(101), Err(TooMuchUnfinished::OnConnection(100)));
        assert_eq!(held(memory), (166, 2));
    }

    #[test]
    fn process_limit_applies() {
        let memory = memory();
        let bounds = Bounds {
            connection: 100,
            process: 100,
        };
        let mut requests: Vec<_> = (0..100)
            .map(|_| Unfinished::new(bounds, memory).begin())
            .collect();
        for request in &mut requests {
            let _refused = request.hold(1);
        }
        let (bytes, _) = held(memory);
        assert!((50..=100).contains(&bytes), "{bytes}");
        drop(requests);
        assert_eq!(held(memory), (0, 0));
    }
}
