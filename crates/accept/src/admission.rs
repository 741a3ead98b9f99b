//! Which connections stay when there are too many.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::descriptors::descriptors;

/// Connections in use that are passed over in the search for one that can go.
const LOOKS: usize = 256;
/// Of the connections, this part goes when the process has no descriptors left.
const PART: usize = 16;

/// The time that a newcomer has to say something, however many others come: until then nobody takes its place, except
/// from its own machine.
const FIRST_WORD: Duration = Duration::from_millis(200);
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
    open: Mutex<Open>,
}

/// Connections that proved nothing wait in one line, the others in another. Those that are used move back in theirs,
/// though not before it is looked at: a call costs no lock.
#[derive(Debug, Default)]
struct Open {
    turn: u64,
    seats: HashMap<u64, Seat>,
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

/// When a connection came to its position, and its number.
type Position = (u64, u64);

#[derive(Debug)]
struct Seat {
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
        Self::with(limits, FIRST_WORD)
    }

    fn with(limits: Limits, first_word: Duration) -> Self {
        Self(Arc::new(Table {
            limits,
            first_word,
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
            open.evict(source, Duration::ZERO)?;
        }
        if open.all.len() >= limits.connections {
            open.evict(None, self.0.first_word)?;
        }
        let state = Arc::<State>::default();
        let number = open.turn;
        let seat = Seat {
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
            if open.evict(None, self.0.first_word).is_err() {
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
        let uses = self.state.uses.load(Ordering::Relaxed).wrapping_add(1);
        self.state.uses.store(uses, Ordering::Relaxed);
        if !self.state.proven.load(Ordering::Relaxed) {
            self.state.proven.store(true, Ordering::Relaxed);
            self.table.open().requeue(self.number);
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

    fn of(&mut self, seat: &Seat) -> &mut BTreeSet<Position> {
        match seat.proven {
            true => &mut self.proven,
            false => &mut self.unproven,
        }
    }
}

impl Open {
    /// Takes a seat to the end of its line.
    fn insert(&mut self, number: u64, mut seat: Seat) {
        seat.turn = self.turn;
        self.turn += 1;
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

    fn remove(&mut self, number: u64) -> Option<Seat> {
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

    /// A connection that was used, or proved something, goes to the end of its line. One that was evicted does not
    /// come back.
    fn requeue(&mut self, number: u64) {
        if let Some(mut seat) = self.remove(number) {
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
    fn evict(&mut self, source: Option<IpAddr>, first_word: Duration) -> Result<(), Full> {
        let lines = self.lines(source).ok_or(Full::Busy)?;
        let oldest = lines.unproven.first().map(|(_, number)| *number);
        let many = lines.unproven.len() * 2 >= lines.len();
        let number = match oldest {
            Some(oldest) if many => oldest,
            oldest => self.idle(source).or(oldest).ok_or(Full::Busy)?,
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
    fn idle(&mut self, source: Option<IpAddr>) -> Option<u64> {
        for _ in 0..LOOKS {
            let (_, number) = *self.lines(source)?.proven.first()?;
            let seat = self.seats.get(&number)?;
            if seat.uses == seat.state.uses.load(Ordering::Relaxed) && !seat.state.is_busy() {
                return Some(number);
            }
            self.requeue(number);
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
mod tests {
    use super::*;

    fn from(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn admission(connections: usize, per_source: usize) -> Admission {
        let limits = Limits {
            connections,
            per_source,
        };
        Admission::with(limits, Duration::ZERO)
    }

    fn admit(admission: &Admission, address: IpAddr) -> Permit {
        admission.admit(Some(address)).unwrap()
    }

    fn gone(permit: &Permit) -> bool {
        permit.state.evicted.is_cancelled()
    }

    #[test]
    fn when_full_the_oldest_that_proved_nothing_goes() {
        let admission = admission(3, 3);
        let permits = [1, 2, 3].map(|last| admit(&admission, from(last)));
        permits[0].prove();
        let _fourth = admit(&admission, from(4));
        assert_eq!(permits.each_ref().map(gone), [false, true, false]);
        let _fifth = admit(&admission, from(5));
        assert_eq!(permits.each_ref().map(gone), [false, true, true]);
        assert_eq!(admission.len(), 3);
        drop(permits);
        assert_eq!(admission.len(), 2, "a permit is given back once");
    }

    #[test]
    fn without_descriptors_the_oldest_goes_too() {
        let admission = admission(100, 100);
        let permits = [1, 2].map(|last| admit(&admission, from(last)));
        permits[0].prove();
        admission.make_room();
        assert_eq!(permits.each_ref().map(gone), [false, true]);
        admission.make_room();
        assert_eq!(permits.each_ref().map(gone), [true, true]);
        admission.make_room();
        assert_eq!(admission.len(), 0);
    }

    #[test]
    fn when_all_are_proven_the_one_unused_for_longest_goes() {
        let admission = admission(2, 2);
        let permits = [1, 2].map(|last| admit(&admission, from(last)));
        permits[0].prove();
        permits[1].prove();
        permits[0].prove();
        let _third = admit(&admission, from(3));
        assert_eq!(permits.each_ref().map(gone), [false, true]);
        permits[1].prove();
        assert_eq!(admission.len(), 2, "an evicted connection does not come back");
    }

    #[test]
    fn those_in_use_stay_and_keep_newcomers_out() {
        let admission = admission(3, 3);
        let busy = Arc::new(AtomicBool::new(true));
        let permits = [1, 2, 3].map(|last| {
            let (permit, busy) = (admit(&admission, from(last)), Arc::clone(&busy));
            permit.keep_while(move || busy.load(Ordering::Relaxed));
            permit.prove();
            permit
        });
        assert_eq!(admission.admit(Some(from(4))).unwrap_err(), Full::Busy);
        admission.make_room();
        assert_eq!(permits.each_ref().map(gone), [false; 3]);
        busy.store(false, Ordering::Relaxed);
        let _fourth = admit(&admission, from(4));
        assert_eq!(permits.iter().filter(|permit| gone(permit)).count(), 1);
    }

    #[test]
    fn a_crowd_that_asks_once_leaves_newcomers_their_time() {
        let admission = admission(100, 100);
        let crowd: Vec<_> = (0..100)
            .map(|_| {
                let permit = admit(&admission, from(1));
                permit.prove();
                permit
            })
            .collect();
        let honest = admit(&admission, from(2));
        let more: Vec<_> = (0..40)
            .map(|_| {
                let permit = admit(&admission, from(1));
                permit.prove();
                permit
            })
            .collect();
        assert!(!gone(&honest));
        assert_eq!(crowd.iter().filter(|permit| gone(permit)).count(), 41);
        assert!(crowd[..41].iter().all(gone), "the oldest first");
        assert!(!more.iter().any(gone));
    }

    #[tokio::test(start_paused = true)]
    async fn a_newcomer_has_its_time_except_against_its_own_machine() {
        let limits = Limits {
            connections: 4,
            per_source: 2,
        };
        let admission = Admission::new(limits);
        let first = admit(&admission, from(1));
        tokio::time::advance(FIRST_WORD / 2).await;
        let others = [1, 2, 2].map(|last| admit(&admission, from(last)));
        let left = admission.admit(Some(from(3))).unwrap_err();
        assert_eq!(left, Full::Young(FIRST_WORD / 2));
        let _again = admit(&admission, from(2));
        assert_eq!(others.each_ref().map(gone), [false, true, false]);
        tokio::time::advance(FIRST_WORD / 2).await;
        let _late = admit(&admission, from(3));
        assert!(gone(&first));
    }

    #[test]
    fn a_crowd_that_says_nothing_takes_no_place_of_others() {
        let admission = admission(100, 100);
        let used: Vec<_> = (0..50)
            .map(|_| {
                let permit = admit(&admission, from(1));
                permit.prove();
                permit
            })
            .collect();
        let crowd: Vec<_> = (0..500).map(|_| admission.admit(None)).collect();
        assert!(!used.iter().any(gone));
        assert_eq!(crowd.iter().flatten().filter(|permit| !gone(permit)).count(), 50);
    }

    #[test]
    fn one_source_cannot_take_the_places_of_others() {
        let admission = admission(100, 2);
        let other = admit(&admission, from(1));
        let many: Vec<_> = (0..50).map(|_| admit(&admission, from(2))).collect();
        assert!(!gone(&other));
        assert_eq!(many.iter().filter(|permit| !gone(permit)).count(), 2);
        let networks = ["fd00::1", "fd00::2", "fd00::3", "fd00:0:0:1::1"]
            .map(|ip| admit(&admission, ip.parse().unwrap()));
        assert_eq!(networks.each_ref().map(gone), [true, false, false, false]);
        let mapped =
            ["10.0.0.9", "::ffff:10.0.0.9", "10.0.0.9"].map(|ip| admit(&admission, ip.parse().unwrap()));
        assert_eq!(mapped.each_ref().map(gone), [true, false, false]);
    }

    #[test]
    fn limits_are_made_to_fit() {
        let limits = Limits {
            connections: 4096,
            per_source: 512,
        };
        assert_eq!(limits.within(5000), limits);
        let fit = |most| {
            let fit = limits.within(most);
            (fit.connections, fit.per_source)
        };
        assert_eq!([fit(2000), fit(100), fit(0)], [(2000, 512), (100, 50), (1, 1)]);
    }
}
