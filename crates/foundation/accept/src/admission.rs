//! Admission of connections and eviction when there are too many.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::descriptors::descriptors;

/// Maximum number of busy connections skipped in the search for one to evict.
const SCAN_LENGTH: usize = 256;
/// Fraction (one in `PART`) of the connections to evict when the process is out of file descriptors.
const PART: usize = 16;

/// Time during which a new connection cannot be evicted, so that it can send its first bytes. Newcomers
/// from the same address may still evict it.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_millis(200);
/// Endpoints that answer from memory may use one in this many of the descriptors.
const ENDPOINT_PART: usize = 16;

/// Limits on the connections of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Open connections.
    pub connections: usize,
    /// Connections from one address (from one /64 network for IPv6).
    pub per_source: usize,
}

impl Limits {
    /// The same limits, capped at `most` connections and half of that per address.
    #[must_use]
    pub fn within(self, most: usize) -> Self {
        if self.connections <= most {
            return self;
        }
        Self {
            connections: most.max(1),
            per_source: self.per_source.min(most.div_ceil(2)).max(1),
        }
    }
}

/// The connections of a server; shared by all addresses that it listens on.
#[derive(Debug, Clone)]
pub struct Admission(Arc<Table>);

#[derive(Debug)]
struct Table {
    limits: Limits,
    first_word: Duration,
    /// Logical clock that orders uses; each admission advances it.
    turn: AtomicU64,
    open: Mutex<Open>,
}

/// Proven and unproven connections have separate queues, in order of use. A used connection is moved back
/// only when the queue is inspected, so a call takes no lock.
#[derive(Debug, Default)]
struct Open {
    seats: HashMap<u64, ConnectionEntry>,
    all: Lines,
    by_source: HashMap<IpAddr, Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    unproven: BTreeSet<Position>,
    proven: BTreeSet<Position>,
}

/// Why no connection can be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// All connections are busy.
    Busy,
    /// The connection to evict is too young; the duration is the rest of its grace time.
    Young(Duration),
}

/// Position in a queue: the last inspected use, and the connection's number.
type Position = (u64, u64);

#[derive(Debug)]
struct ConnectionEntry {
    turn: u64,
    since: Instant,
    source: Option<IpAddr>,
    proven: bool,
    /// Number of uses at the time it was queued.
    uses: u32,
    state: Arc<State>,
}

/// State shared by a connection and its server.
#[derive(Default)]
struct State {
    proven: AtomicBool,
    uses: AtomicU32,
    /// Logical time of its last use.
    used: AtomicU64,
    busy: Mutex<Option<Box<dyn Fn() -> bool + Send + Sync>>>,
    evicted: CancellationToken,
}

/// Permission for an open connection; returned on drop.
#[derive(Debug)]
pub struct Permit {
    table: Arc<Table>,
    number: u64,
    state: Arc<State>,
}

impl Admission {
    /// A server without connections.
    pub fn new(limits: Limits) -> Self {
        Self::with(limits, FIRST_BYTE_TIMEOUT)
    }

    fn with(limits: Limits, first_word: Duration) -> Self {
        Self(Arc::new(Table {
            limits,
            first_word,
            turn: AtomicU64::new(0),
            open: Mutex::default(),
        }))
    }

    /// For an auxiliary endpoint: limited to a fraction of the process's descriptors.
    pub fn of_endpoint(limits: Limits) -> Self {
        Self::new(limits.within(descriptors() / ENDPOINT_PART))
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// A permit for a new connection. Peers without an address are not limited per source. If none is left,
    /// evicts a connection: of the same source if that has too many, otherwise of any.
    ///
    /// # Errors
    /// Why none can be evicted.
    pub(crate) fn admit(&self, address: Option<IpAddr>) -> Result<Permit, Full> {
        let source = address.map(source);
        let mut open = self.0.open();
        let limits = self.0.limits;
        let of_source = source.and_then(|source| open.by_source.get(&source));
        let apart = limits.per_source < limits.connections;
        if apart && of_source.is_some_and(|lines| lines.len() >= limits.per_source) {
            open.evict(source, Duration::ZERO, &self.0.turn)?;
        }
        if open.all.len() >= limits.connections {
            open.evict(None, self.0.first_word, &self.0.turn)?;
        }
        let state = Arc::<State>::default();
        let number = self.0.turn.fetch_add(1, Ordering::Relaxed);
        let seat = ConnectionEntry {
            turn: number,
            since: Instant::now(),
            source,
            proven: false,
            uses: 0,
            state: Arc::clone(&state),
        };
        open.insert(number, seat);
        drop(open);
        Ok(Permit {
            table: Arc::clone(&self.0),
            number,
            state,
        })
    }

    /// Evicts a fraction of the connections, because the process is out of descriptors.
    pub(crate) fn make_room(&self) {
        let mut open = self.0.open();
        for _ in 0..open.all.len().div_ceil(PART) {
            if open.evict(None, self.0.first_word, &self.0.turn).is_err() {
                return;
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let open = self.0.open();
        let of_sources: usize = open.by_source.values().map(Lines::len).sum();
        assert_eq!((of_sources, open.seats.len()), (open.all.len(), open.all.len()));
        of_sources
    }
}

impl Permit {
    /// Marks the peer as proven: it has authenticated, or completed a request. Unproven connections are
    /// evicted first; proven ones in order of their last use, which is now.
    pub fn prove(&self) {
        let turn = self.table.turn.load(Ordering::Relaxed);
        let uses = self.state.uses.load(Ordering::Relaxed).wrapping_add(1);
        self.state.used.store(turn, Ordering::Relaxed);
        self.state.uses.store(uses, Ordering::Relaxed);
        if !self.state.proven.load(Ordering::Relaxed) {
            self.state.proven.store(true, Ordering::Relaxed);
            self.table.open().requeue(self.number, turn);
        }
    }

    /// Whether the peer is proven.
    pub fn is_proven(&self) -> bool {
        self.state.proven.load(Ordering::Relaxed)
    }

    /// While `busy` returns true, the connection is not evicted.
    pub fn keep_while(&self, busy: impl Fn() -> bool + Send + Sync + 'static) {
        *self.state.busy() = Some(Box::new(busy));
    }

    /// Completes when the connection is evicted.
    pub async fn evicted(&self) {
        self.state.evicted.cancelled().await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.table.open().remove(self.number);
    }
}

impl State {
    fn busy(&self) -> MutexGuard<'_, Option<Box<dyn Fn() -> bool + Send + Sync>>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_busy(&self) -> bool {
        self.busy().as_ref().is_some_and(|busy| busy())
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("proven", &self.proven)
            .field("uses", &self.uses)
            .finish_non_exhaustive()
    }
}

impl Table {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn len(&self) -> usize {
        self.unproven.len() + self.proven.len()
    }

    fn of(&mut self, seat: &ConnectionEntry) -> &mut BTreeSet<Position> {
        match seat.proven {
            true => &mut self.proven,
            false => &mut self.unproven,
        }
    }
}

impl Open {
    /// Inserts a connection at its position in its queue.
    fn insert(&mut self, number: u64, seat: ConnectionEntry) {
        let position = (seat.turn, number);
        self.all.of(&seat).insert(position);
        if let Some(source) = seat.source {
            self.by_source
                .entry(source)
                .or_default()
                .of(&seat)
                .insert(position);
        }
        self.seats.insert(number, seat);
    }

    fn remove(&mut self, number: u64) -> Option<ConnectionEntry> {
        let seat = self.seats.remove(&number)?;
        let position = (seat.turn, number);
        self.all.of(&seat).remove(&position);
        if let Some(source) = seat.source
            && let Some(lines) = self.by_source.get_mut(&source)
        {
            lines.of(&seat).remove(&position);
            if lines.len() == 0 {
                self.by_source.remove(&source);
            }
        }
        Some(seat)
    }

    /// Moves a connection that was used or proven at `turn` to its new position. An evicted connection is
    /// not inserted again.
    fn requeue(&mut self, number: u64, turn: u64) {
        if let Some(mut seat) = self.remove(number) {
            seat.turn = turn;
            seat.uses = seat.state.uses.load(Ordering::Relaxed);
            seat.proven = seat.state.proven.load(Ordering::Relaxed);
            self.insert(number, seat);
        }
    }

    fn lines(&self, source: Option<IpAddr>) -> Option<&Lines> {
        match source {
            Some(source) => self.by_source.get(&source),
            None => Some(&self.all),
        }
    }

    /// Evicts a connection, of this source or of any. Unproven connections may hold half of the places, so
    /// a crowd of them takes no place of the others, and a new connection has at least `first_word` to
    /// prove itself.
    fn evict(&mut self, source: Option<IpAddr>, first_word: Duration, turn: &AtomicU64) -> Result<(), Full> {
        let lines = self.lines(source).ok_or(Full::Busy)?;
        let oldest = lines.unproven.first().map(|(_, number)| *number);
        let many = lines.unproven.len() * 2 >= lines.len();
        let number = match oldest {
            Some(oldest) if many => oldest,
            oldest => self.idle(source, turn).or(oldest).ok_or(Full::Busy)?,
        };
        if let Some(seat) = self.seats.get(&number).filter(|seat| !seat.proven) {
            let left = first_word.saturating_sub(seat.since.elapsed());
            if !left.is_zero() {
                return Err(Full::Young(left));
            }
        }
        if let Some(seat) = self.remove(number) {
            seat.state.evicted.cancel();
        }
        Ok(())
    }

    /// The least recently used proven connection.
    fn idle(&mut self, source: Option<IpAddr>, turn: &AtomicU64) -> Option<u64> {
        for _ in 0..SCAN_LENGTH {
            let (position, number) = *self.lines(source)?.proven.first()?;
            let seat = self.seats.get(&number)?;
            if seat.uses != seat.state.uses.load(Ordering::Relaxed) {
                // Among connections last used at the same turn, inspected ones go last.
                let used = seat.state.used.load(Ordering::Relaxed);
                self.requeue(number, used.max(position + 1));
            } else if seat.state.is_busy() {
                // Behind all others, even if none was admitted since.
                let last = turn.fetch_add(1, Ordering::Relaxed) + 1;
                self.requeue(number, last);
            } else {
                return Some(number);
            }
        }
        None
    }
}

/// IPv6 addresses are grouped by network.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & (u128::MAX << 64);
            Ipv6Addr::from_bits(network).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests;
