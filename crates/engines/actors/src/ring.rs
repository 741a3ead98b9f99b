//! The consistent-hash ring that maps an actor to its host. Every sidecar computes it from the placement
//! table and must get the same result as Dapr: hash, point names and search direction are the contract's.

use std::collections::HashMap;
use std::sync::Arc;

use blake2::{Blake2b512, Digest};

/// Maximum points of one host on a ring; the contract's default is 100.
pub const MAX_REPLICATION: u32 = 10_000;
/// Maximum points of a ring.
pub const MAX_POINTS: usize = 1 << 22;

/// A sidecar that hosts actors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    /// Address of its internal server, `host:port`; also its name on the ring.
    pub address: Arc<str>,
    /// The app of the sidecar.
    pub app_id: Arc<str>,
}

/// Why a placement table is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The table has too many points.
    #[error(
        "the table of placement has {hosts} hosts with {replication} points each for actor type {kind}, more than \
         {MAX_POINTS} points in all; reduce --replicationFactor of placement"
    )]
    TooLarge {
        /// Actor type.
        kind: String,
        /// Number of hosts of the actor type.
        hosts: usize,
        /// Points of each host.
        replication: u32,
    },
    /// The replication factor is out of range.
    #[error(
        "the replication factor {0} of placement is not between 1 and {MAX_REPLICATION}; correct --replicationFactor"
    )]
    Replication(i64),
}

/// The position of a text on every ring: the first eight bytes of its BLAKE2b-512, little-endian.
pub fn place(text: &str) -> u64 {
    let digest = Blake2b512::digest(text.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

/// The hosts of one actor type, each at many points.
#[derive(Debug, Default)]
pub struct Ring {
    /// Sorted by position; the second number is an index into `hosts`.
    points: Box<[(u64, u32)]>,
    hosts: Box<[Host]>,
}

impl Ring {
    /// Builds a ring with `replication` points for each host. If two hosts collide, the greater address wins.
    #[expect(clippy::cast_possible_truncation, reason = "MAX_POINTS is far below 2^32")]
    fn new(mut hosts: Vec<Host>, replication: u32) -> Self {
        hosts.sort_unstable();
        hosts.dedup_by(|a, b| a.address == b.address);
        let mut points = Vec::with_capacity(hosts.len() * replication as usize);
        let mut name = String::new();
        for (index, host) in hosts.iter().enumerate() {
            for replica in 0..replication {
                use std::fmt::Write;
                name.clear();
                let _written = write!(name, "{}{replica}", host.address);
                points.push((place(&name), index as u32));
            }
        }
        points.sort_unstable();
        // Of equal positions the last wins.
        points.reverse();
        points.dedup_by_key(|(place, _)| *place);
        points.reverse();
        Self {
            points: points.into(),
            hosts: hosts.into(),
        }
    }

    /// Whether every actor has the same host on both rings.
    fn is_same(&self, other: &Self) -> bool {
        self.points.len() == other.points.len() && self.hosts == other.hosts
    }

    /// The host of an actor id; `None` on an empty ring.
    pub fn owner(&self, id: &str) -> Option<&Host> {
        let place = place(id);
        let next = self.points.partition_point(|(point, _)| *point < place);
        let (_, host) = self.points.get(next).or_else(|| self.points.first())?;
        self.hosts.get(*host as usize)
    }
}

/// The placement table: a ring for each actor type. Types with the same hosts share a ring.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    rings: HashMap<Box<str>, Arc<Ring>>,
}

impl Tables {
    /// Builds the rings from the hosts of each type and the replication factor.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn new(
        entries: impl IntoIterator<Item = (String, Vec<Host>)>,
        replication: i64,
    ) -> Result<Self, TableError> {
        let points = u32::try_from(replication)
            .ok()
            .filter(|points| (1..=MAX_REPLICATION).contains(points))
            .ok_or(TableError::Replication(replication))?;
        let mut known: HashMap<Vec<Host>, Arc<Ring>> = HashMap::new();
        let mut rings = HashMap::new();
        for (kind, mut hosts) in entries {
            if hosts.len().saturating_mul(points as usize) > MAX_POINTS {
                return Err(TableError::TooLarge {
                    kind,
                    hosts: hosts.len(),
                    replication: points,
                });
            }
            hosts.sort_unstable();
            let ring = known
                .entry(hosts)
                .or_insert_with_key(|hosts| Arc::new(Ring::new(hosts.clone(), points)));
            rings.insert(kind.into_boxed_str(), Arc::clone(ring));
        }
        Ok(Self { rings })
    }

    /// Whether a host with this address hosts any type.
    pub fn name(&self, address: &str) -> bool {
        self.addresses().any(|host| host == address)
    }

    /// The addresses of all hosts; a host of several rings is repeated.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        let hosts = self.rings.values().flat_map(|ring| &ring.hosts);
        hosts.map(|host| &*host.address)
    }

    /// Whether another table has other hosts of this type.
    pub fn differ(&self, other: &Self, kind: &str) -> bool {
        match (self.rings.get(kind), other.rings.get(kind)) {
            (Some(ring), Some(other)) => !Arc::ptr_eq(ring, other) && !ring.is_same(other),
            (ring, other) => ring.is_some() || other.is_some(),
        }
    }

    /// The host of an actor; `None` if no host has its type.
    pub fn owner(&self, kind: &str, id: &str) -> Option<&Host> {
        self.rings.get(kind)?.owner(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(addresses: &[&str]) -> Vec<Host> {
        let host = |address: &&str| Host {
            address: (*address).into(),
            app_id: "app".into(),
        };
        addresses.iter().map(host).collect()
    }

    const THREE: [&str; 3] = ["10.0.0.1:50002", "10.0.0.2:50002", "10.0.0.3:50002"];

    fn three() -> Tables {
        Tables::new([("T".to_owned(), hosts(&THREE))], 100).unwrap()
    }

    /// Expected values computed with another implementation of BLAKE2b and of the search.
    #[test]
    fn matches_contract_places_and_owners() {
        for (text, expected) in [
            ("10.0.0.1:500020", 7120362376346592644),
            ("10.0.0.1:5000299", 8251988567651704418),
            ("myactorid", 16879008664447412800),
            ("1", 11971653999726161180),
            ("", 241225442164632184),
        ] {
            assert_eq!(place(text), expected, "{text}");
        }
        let tables = three();
        for (id, expected) in [
            ("myactorid", 0),
            ("1", 2),
            ("2", 2),
            ("3", 1),
            ("order-17", 2),
            ("ü", 0),
        ] {
            assert_eq!(&*tables.owner("T", id).unwrap().address, THREE[expected], "{id}");
        }
        let mut shares = HashMap::new();
        for id in 0..10_000 {
            let owner = tables.owner("T", &id.to_string()).unwrap();
            *shares.entry(&*owner.address).or_insert(0) += 1;
        }
        assert_eq!(THREE.map(|host| shares[host]), [3442, 3369, 3189]);
    }

    #[test]
    fn removed_host_moves_only_its_actors() {
        let (all, two) = (
            three(),
            Tables::new([("T".to_owned(), hosts(&THREE[..2]))], 100).unwrap(),
        );
        for id in 0..2_000 {
            let id = id.to_string();
            let before = all.owner("T", &id).unwrap();
            if *before.address != *THREE[2] {
                assert_eq!(two.owner("T", &id), Some(before), "{id}");
            }
        }
    }

    #[test]
    fn host_without_types_owns_nothing() {
        let tables = Tables::new([("T".to_owned(), Vec::new())], 100).unwrap();
        assert_eq!(tables.owner("T", "1"), None);
        assert_eq!(three().owner("U", "1"), None);
    }

    #[test]
    fn types_with_the_same_hosts_share_a_ring() {
        let mut reversed = hosts(&THREE);
        reversed.reverse();
        let tables = Tables::new([("T".to_owned(), hosts(&THREE)), ("U".to_owned(), reversed)], 100);
        let tables = tables.unwrap();
        assert!(Arc::ptr_eq(&tables.rings["T"], &tables.rings["U"]));
        assert!(tables.name(THREE[1]) && !tables.name("10.0.0.4:50002"));
    }

    #[test]
    fn compares_types_by_hosts_and_points() {
        let of = |types: &[(&str, &[&str])], replication| {
            let entries = types.iter().map(|(kind, all)| ((*kind).to_owned(), hosts(all)));
            Tables::new(entries.collect::<Vec<_>>(), replication).unwrap()
        };
        let before = of(&[("T", &THREE), ("U", &THREE[..1])], 100);
        let mut reversed = THREE;
        reversed.reverse();
        let after = of(&[("T", &reversed), ("U", &THREE[..2]), ("V", &THREE)], 100);
        let differ = |kind| (before.differ(&after, kind), after.differ(&before, kind));
        assert_eq!(
            ["T", "U", "V", "W"].map(differ),
            [false, true, true, false].map(|is| (is, is))
        );
        assert!(before.differ(&of(&[("T", &THREE)], 99), "T"), "fewer points");
        assert!(before.differ(&Tables::default(), "T"), "no host is left");
    }

    #[test]
    fn rejects_oversized_table() {
        for replication in [0, -1, 10_001] {
            let refused = Tables::new([("T".to_owned(), hosts(&THREE))], replication);
            assert_eq!(refused.unwrap_err(), TableError::Replication(replication));
        }
        let many = (0..420).map(|n| format!("h{n}:1")).collect::<Vec<_>>();
        let many = many.iter().map(String::as_str).collect::<Vec<_>>();
        let refused = Tables::new([("T".to_owned(), hosts(&many))], 10_000);
        assert!(matches!(refused, Err(TableError::TooLarge { hosts: 420, .. })));
    }
}
