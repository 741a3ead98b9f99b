//! Which connections stay when there are too many.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::descriptors::descriptors;

/// Connections in use that are passed over in the search for one that can go.
const SCAN_LENGTH: usize = 256;
/// Of the connections, this part goes when the process has no descriptors left.
const PART: usize = 16;

/// The time that a newcomer has to say something, however many others come: until then nobody takes its place, except
/// from its own machine.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_millis(200);
/// Endpoints that answer from memory may take this part of the descriptors.
const ENDPOINT_PART: usize = 16;

/// How many connections a server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Of these, from one address (of IPv6 addresses, from one /64 network).
    pub per_source: usize,
}

impl Limits {
    /// The same, with at most `most` connections, and at most half of so many from one address.
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

/// The connections of a server; one value for all addresses that it listens on.
#[derive(Debug, Clone)]
pub struct Admission(Arc<Table>);

#[derive(Debug)]
struct Table {
    limits: Limits,
    first_word: Duration,
    /// The time by which uses are ordered: it goes on with each admission.
    turn: AtomicU64,
    open: Mutex<Open>,
}

/// Connections that proved nothing wait in one line, the others in another. Those that are used move back in theirs,
/// though not before it is looked at: a call costs no lock.
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

/// Why nobody can be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// All connections are in use.
    Busy,
    /// The one that has to go has had too little time; so much is left.
    Young(Duration),
}

/// The turn of a connection's last use, as far as that was looked at, and its number.
type Position = (u64, u64);

#[derive(Debug)]
struct ConnectionEntry {
    turn: u64,
    since: Instant,
    source: Option<IpAddr>,
    proven: bool,
    /// How often it had been used when it came to its position.
    uses: u32,
    state: Arc<State>,
}

/// What a connection and its server know of each other.
#[derive(Default)]
struct State {
    proven: AtomicBool,
    uses: AtomicU32,
    /// The turn of its last use.
    used: AtomicU64,
    busy: Mutex<Option<Box<dyn Fn() -> bool + Send + Sync>>>,
    evicted: CancellationToken,
}

/// What lets one connection stay open among those of its server; given back when this is dropped.
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

    /// The same for an endpoint beside a server: it takes no more than a part of the descriptors of the process.
    pub fn of_endpoint(limits: Limits) -> Self {
        Self::new(limits.within(descriptors() / ENDPOINT_PART))
    }

    /// How many connections there may be.
    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// A permit for a new connection; peers without an address are told apart by nothing. Where there is none left,
    /// another connection has to go: of the same source when that has too many, else of all.
    ///
    /// # Errors
    /// Why none can go.
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

    /// A part of the connections has to go: the process can hold no more.
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
    /// The peer did what only those do who mean well: it has proved who it is, or completed a request. From now on
    /// others go first, and this one by when it was last used, which is now.
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

    /// Whether the peer has proved anything.
    pub fn is_proven(&self) -> bool {
        self.state.proven.load(Ordering::Relaxed)
    }

    /// As long as `busy` is true, others go first whatever happens.
    pub fn keep_while(&self, busy: impl Fn() -> bool + Send + Sync + 'static) {
        *self.state.busy() = Some(Box::new(busy));
    }

    /// Completes when the connection has to make room for another.
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
    /// Puts a seat at its position in its line.
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

    /// A connection that was used, or proved something, goes to where those stand that were used at this turn. One that was
    /// evicted does not come back.
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

    /// Ends a connection, of this source or of all. Those that proved nothing have half of the places: so a crowd of
    /// them takes no place of the others, and a newcomer among those who were used once has its time to prove itself;
    /// `first_word` at least.
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

    /// Of those that proved something, the one that has not been used for longest.
    fn idle(&mut self, source: Option<IpAddr>, turn: &AtomicU64) -> Option<u64> {
        for _ in 0..SCAN_LENGTH {
            let (position, number) = *self.lines(source)?.proven.first()?;
            let seat = self.seats.get(&number)?;
            if seat.uses != seat.state.uses.load(Ordering::Relaxed) {
                // Of those that were last used at one turn the ones that were looked at go after the others.
                let used = seat.state.used.load(Ordering::Relaxed);
                self.requeue(number, used.max(position + 1));
            } else if seat.state.is_busy() {
                // Behind all others, also where nobody was admitted since.
                let last = turn.fetch_add(1, Ordering::Relaxed) + 1;
                self.requeue(number, last);
            } else {
                return Some(number);
            }
        }
        None
    }
}

/// Whoever has an IPv6 address has the network it is in.
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
