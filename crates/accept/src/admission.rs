//! Which connections stay when there are too many.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// How many connections a server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Of these, from one address (of IPv6 addresses, from one /64 network).
    pub per_source: usize,
}

/// The connections of a server.
#[derive(Debug, Clone)]
pub(crate) struct Admission(Arc<Table>);

#[derive(Debug)]
struct Table {
    limits: Limits,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    by_rank: BTreeMap<Rank, (IpAddr, CancellationToken)>,
    by_source: HashMap<IpAddr, BTreeSet<Rank>>,
}

/// Who goes first: those that proved nothing, the oldest of them at the front; then those that were used longest ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    proven: bool,
    turn: u64,
}

/// The place of one connection among those of its server; free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    table: Arc<Table>,
    source: IpAddr,
    rank: Mutex<Rank>,
    evicted: CancellationToken,
}

impl Admission {
    pub(crate) fn new(limits: Limits) -> Self {
        Self(Arc::new(Table {
            limits,
            open: Mutex::default(),
        }))
    }

    /// A place for a new connection. Where there is none left, the first in rank has to go: of the same source when
    /// that has too many, else of all.
    pub(crate) fn admit(&self, address: IpAddr) -> Place {
        let source = source(address);
        let mut open = self.0.open();
        let of_source = open.by_source.get(&source);
        let limits = self.0.limits;
        let first = match of_source {
            Some(ranks) if ranks.len() >= limits.per_source => ranks.first().copied(),
            _ if open.by_rank.len() >= limits.connections => open.by_rank.keys().next().copied(),
            _ => None,
        };
        if let Some((_, evicted)) = first.and_then(|rank| open.remove(rank)) {
            evicted.cancel();
        }
        let evicted = CancellationToken::new();
        let rank = open.insert(false, source, evicted.clone());
        drop(open);
        Place {
            table: Arc::clone(&self.0),
            source,
            rank: Mutex::new(rank),
            evicted,
        }
    }

    /// The first in rank has to go: the process can hold no more connections.
    pub(crate) fn make_room(&self) {
        let mut open = self.0.open();
        let first = open.by_rank.keys().next().copied();
        if let Some((_, evicted)) = first.and_then(|rank| open.remove(rank)) {
            evicted.cancel();
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        let open = self.0.open();
        let of_sources: usize = open.by_source.values().map(BTreeSet::len).sum();
        assert_eq!(of_sources, open.by_rank.len());
        of_sources
    }
}

impl Place {
    /// The peer did what only those do who mean well: from now on others go first, and this one by when it was last
    /// used, which is now.
    pub fn prove(&self) {
        let mut rank = self.rank.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = self.table.open();
        // An evicted connection keeps no place.
        if let Some((source, evicted)) = open.remove(*rank) {
            *rank = open.insert(true, source, evicted);
        }
    }

    /// Completes when the connection has to make room for another.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let rank = *self.rank.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = self.table.open();
        let of_this = open
            .by_rank
            .get(&rank)
            .is_some_and(|(source, _)| *source == self.source);
        if of_this {
            open.remove(rank);
        }
    }
}

impl Table {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn insert(&mut self, proven: bool, source: IpAddr, evicted: CancellationToken) -> Rank {
        let rank = Rank {
            proven,
            turn: self.next,
        };
        self.next += 1;
        self.by_rank.insert(rank, (source, evicted));
        self.by_source.entry(source).or_default().insert(rank);
        rank
    }

    fn remove(&mut self, rank: Rank) -> Option<(IpAddr, CancellationToken)> {
        let (source, evicted) = self.by_rank.remove(&rank)?;
        if let Some(ranks) = self.by_source.get_mut(&source) {
            ranks.remove(&rank);
            if ranks.is_empty() {
                self.by_source.remove(&source);
            }
        }
        Some((source, evicted))
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
        Admission::new(Limits {
            connections,
            per_source,
        })
    }

    fn gone(place: &Place) -> bool {
        place.evicted.is_cancelled()
    }

    #[test]
    fn when_full_the_oldest_that_proved_nothing_goes() {
        let admission = admission(3, 3);
        let places = [1, 2, 3].map(|last| admission.admit(from(last)));
        places[0].prove();
        let _fourth = admission.admit(from(4));
        assert_eq!(places.each_ref().map(gone), [false, true, false]);
        let _fifth = admission.admit(from(5));
        assert_eq!(places.each_ref().map(gone), [false, true, true]);
        assert_eq!(admission.len(), 3);
        drop(places);
        assert_eq!(admission.len(), 2, "a place is given back once");
    }

    #[test]
    fn without_descriptors_the_oldest_goes_too() {
        let admission = admission(100, 100);
        let places = [1, 2].map(|last| admission.admit(from(last)));
        places[0].prove();
        admission.make_room();
        assert_eq!(places.each_ref().map(gone), [false, true]);
        admission.make_room();
        assert_eq!(places.each_ref().map(gone), [true, true]);
        admission.make_room();
        assert_eq!(admission.len(), 0);
    }

    #[test]
    fn when_all_are_proven_the_one_unused_for_longest_goes() {
        let admission = admission(2, 2);
        let places = [1, 2].map(|last| admission.admit(from(last)));
        places[0].prove();
        places[1].prove();
        places[0].prove();
        let _third = admission.admit(from(3));
        assert_eq!(places.each_ref().map(gone), [false, true]);
        places[1].prove();
        assert_eq!(admission.len(), 2, "an evicted connection does not come back");
    }

    #[test]
    fn one_source_cannot_take_the_places_of_others() {
        let admission = admission(100, 2);
        let other = admission.admit(from(1));
        let many: Vec<_> = (0..50).map(|_| admission.admit(from(2))).collect();
        assert!(!gone(&other));
        assert_eq!(many.iter().filter(|place| !gone(place)).count(), 2);
        let networks =
            ["fd00::1", "fd00::2", "fd00::3", "fd00:0:0:1::1"].map(|ip| admission.admit(ip.parse().unwrap()));
        assert_eq!(networks.each_ref().map(gone), [true, false, false, false]);
        let mapped =
            ["10.0.0.9", "::ffff:10.0.0.9", "10.0.0.9"].map(|ip| admission.admit(ip.parse().unwrap()));
        assert_eq!(mapped.each_ref().map(gone), [true, false, false]);
    }
}
