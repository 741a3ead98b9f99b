//! Free ports on loopback for servers of tests and measurements that listen later.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

/// Below the ephemeral ports, which could be taken before the server listens.
const PORTS: RangeInclusive<u16> = 10_240..=32_767;

/// A free port, different each time in this process.
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        // A new `RandomState` is a random number.
        let random = RandomState::new().hash_one(()).to_le_bytes();
        let port = u16::from_le_bytes([random[0], random[1]]);
        let is_new =
            PORTS.contains(&port) && GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port);
        if is_new && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Several free ports, all different.
pub fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_distinct_and_not_ephemeral() {
        let ports: [u16; 100] = free_ports();
        let distinct: BTreeSet<u16> = ports.into_iter().collect();
        assert_eq!(distinct.len(), ports.len());
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
    }

    #[test]
    fn skips_ports_in_use() {
        let held: Vec<_> = (0..20)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).unwrap())
            .collect();
        let taken: BTreeSet<u16> = held
            .iter()
            .map(|held| held.local_addr().unwrap().port())
            .collect();
        assert!(free_ports::<100>().iter().all(|port| !taken.contains(port)));
    }
}
