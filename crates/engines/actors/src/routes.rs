//! Routing of calls by the placement table, also during a dissemination.
//!
//! Between `update` and `unlock` a host knows two tables. Actors that do not move keep running. Without handover,
//! calls of a moving actor wait for `unlock`; with handover, a host routes them to the actor's old host.
//!
//! The old host finishes the turns it has accepted, deactivates the actor, and forwards all later calls with
//! a [`Stamp`]. The stamp proves to the new host that the actor has ended on the old one. Without a stamp the
//! new host starts the actor only at `unlock`, which placement sends once every old host has deactivated all
//! actors that move away. So an actor is active on one host at a time, and waits only for its own
//! deactivation.

use std::collections::HashSet;
use std::sync::Arc;

use crate::ring::{Host, Tables};

/// Identifies a dissemination within the term of a placement leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The leader's term; 0 without handover.
    pub term: u64,
    /// Version of the dissemination.
    pub version: u64,
}

impl Stamp {
    /// Parses the wire text.
    pub fn parse(text: &str) -> Option<Self> {
        let (term, version) = text.split_once('-')?;
        Some(Self {
            term: term.parse().ok()?,
            version: version.parse().ok()?,
        })
    }
}

impl std::fmt::Display for Stamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.term, self.version)
    }
}

/// Origin of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This sidecar.
    Own,
    /// Another sidecar, which considers this one the actor's host.
    Peer,
    /// The old host of the actor, which has deactivated it in this dissemination.
    Handed(Stamp),
}

/// How to route a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// The actor lives on this host.
    Local,
    /// Send to this host, which has the actor or forwards to it.
    Remote(&'a Host),
    /// The actor moved away: once it has been deactivated here, forward the call with this stamp.
    Forward(&'a Host, Stamp),
    /// Unknown until the next step of the dissemination.
    Wait,
    /// The caller's table is stale; it must look the actor up again.
    Moved,
    /// No host has the type.
    NoHost,
}

/// A host's view of the placement table. Each step of a dissemination creates a new one.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// `host:port` of this host.
    own: Arc<str>,
    stamp: Stamp,
    tables: Arc<Tables>,
    /// The previous table, during a handover.
    before: Option<Arc<Tables>>,
    /// Hosts that can forward calls in this dissemination.
    alive: Arc<HashSet<Box<str>>>,
    /// All hosts have the table and have deactivated the actors that moved away.
    settled: bool,
}

impl Routes {
    /// The view of a host without a table.
    pub fn new(own: &str) -> Self {
        Self {
            own: own.into(),
            settled: true,
            ..Self::default()
        }
    }

    /// Installs a table without handover: this host has ended the actors that move away, and calls of moving
    /// actors wait until it is settled. `known`: the current table is the previous one.
    pub fn replaced(&self, tables: Tables, known: bool) -> Self {
        Self {
            own: Arc::clone(&self.own),
            tables: Arc::new(tables),
            before: known.then(|| Arc::clone(&self.tables)),
            ..Self::default()
        }
    }

    /// Installs a table with handover. `known`: the current table is the previous one; otherwise this host
    /// had none in this term. `leaving`: hosts that no longer host any type and forward calls.
    pub fn handing_over<'l>(
        &self,
        stamp: Stamp,
        tables: Tables,
        known: bool,
        leaving: impl Iterator<Item = &'l str>,
    ) -> Self {
        let mut alive: HashSet<Box<str>> = tables.addresses().map(Box::from).collect();
        alive.extend(leaving.map(Box::from));
        Self {
            own: Arc::clone(&self.own),
            stamp,
            tables: Arc::new(tables),
            before: known.then(|| Arc::clone(&self.tables)),
            alive: Arc::new(alive),
            settled: false,
        }
    }

    /// All hosts have this table.
    pub fn settled(&self) -> Self {
        // With handover, late calls of peers are forwarded.
        let before = self.before.clone().filter(|_| self.stamp.term != 0);
        Self {
            settled: true,
            before,
            ..self.clone()
        }
    }

    /// The tables that lookups use.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Whether the table assigns an actor to this host.
    pub fn owns(&self, kind: &str, id: &str) -> bool {
        let owner = self.tables.owner(kind, id);
        owner.is_some_and(|owner| self.is_own(owner))
    }

    fn is_own(&self, host: &Host) -> bool {
        is_same(&host.address, &self.own)
    }

    /// Routes a call.
    pub fn route(&self, origin: Origin, kind: &str, id: &str) -> Route<'_> {
        if let Origin::Handed(stamp) = origin
            && stamp.term == self.stamp.term
            && stamp.version > self.stamp.version
        {
            return Route::Wait;
        }
        let Some(now) = self.tables.owner(kind, id) else {
            return Route::NoHost;
        };
        // Fast path: between disseminations one lookup suffices for most calls.
        match (self.settled, self.is_own(now), origin) {
            (true, true, _) => return Route::Local,
            (true, false, Origin::Own) => return Route::Remote(now),
            _ => {}
        }
        let was = self.before.as_ref().and_then(|before| before.owner(kind, id));
        let stays = was.is_some_and(|was| was.address == now.address);
        let hands_over = self.stamp.term != 0;
        let is_handed = hands_over && origin == Origin::Handed(self.stamp);
        let is_certain = self.settled || stays || is_handed;
        if self.is_own(now) {
            return match (is_certain, origin) {
                (true, _) => Route::Local,
                (false, Origin::Own) => self.old(was),
                (false, _) => Route::Wait,
            };
        }
        if hands_over && !stays && was.is_some_and(|was| self.is_own(was)) {
            return Route::Forward(now, self.stamp);
        }
        match origin {
            Origin::Own if is_certain => Route::Remote(now),
            Origin::Own => self.old(was),
            _ => Route::Moved,
        }
    }

    /// Routes to the old host, if it is alive.
    fn old<'a>(&self, was: Option<&'a Host>) -> Route<'a> {
        match was {
            Some(was) if self.alive.contains(&*was.address) => Route::Remote(was),
            _ => Route::Wait,
        }
    }
}

/// Whether two addresses are the same server: on one machine, ports differ.
pub fn is_same(target: &str, own: &str) -> bool {
    if target == own {
        return true;
    }
    let split = |address: &str| {
        let (host, port) = address.rsplit_once(':')?;
        Some((is_loopback(host), port.to_owned()))
    };
    match (split(target), split(own)) {
        (Some((true, target)), Some((true, own))) => target == own,
        _ => false,
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let ip = bare.parse::<std::net::IpAddr>();
    ip.map_or_else(|_| bare.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "10.0.0.1:50002";
    const TWO: &str = "10.0.0.2:50002";
    const CALLER: &str = "10.0.0.9:50002";

    fn tables(addresses: &[&str]) -> Tables {
        let hosts = addresses.iter().map(|&address| Host {
            address: address.into(),
            app_id: "app".into(),
        });
        Tables::new([("T".to_owned(), hosts.collect())], 100).unwrap()
    }

    fn stamp(version: u64) -> Stamp {
        Stamp { term: 7, version }
    }

    /// An actor that moves from `ONE` to `TWO`, and one that stays on `ONE`.
    fn actors() -> (String, String) {
        let both = tables(&[ONE, TWO]);
        let at = |address: &str| {
            let mut ids = (0..).map(|n: u32| n.to_string());
            ids.find(|id| &*both.owner("T", id).unwrap().address == address)
                .unwrap()
        };
        (at(TWO), at(ONE))
    }

    fn to<'a>(way: &Route<'a>) -> &'a str {
        match way {
            Route::Remote(host) | Route::Forward(host, _) => &host.address,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn routes_moving_actors_through_old_host() {
        let (moves, stays) = actors();
        let none: [&str; 0] = [];
        let round = |own: &str, known: bool| {
            let before = Routes::new(own).replaced(tables(&[ONE]), false);
            before.handing_over(stamp(2), tables(&[ONE, TWO]), known, none.into_iter())
        };
        let (old, new, caller) = (round(ONE, true), round(TWO, false), round(CALLER, true));
        let handed = Origin::Handed(stamp(2));
        assert_eq!(old.route(Origin::Peer, "T", &stays), Route::Local);
        assert_eq!(to(&caller.route(Origin::Own, "T", &stays)), ONE);
        assert_eq!(to(&caller.route(Origin::Own, "T", &moves)), ONE);
        for origin in [Origin::Own, Origin::Peer] {
            let way = old.route(origin, "T", &moves);
            assert!(
                matches!(way, Route::Forward(host, by) if &*host.address == TWO && by == stamp(2)),
                "{way:?}"
            );
            assert_eq!(new.route(origin, "T", &moves), Route::Wait);
        }
        assert_eq!(new.route(handed, "T", &moves), Route::Local);
        assert_eq!(new.route(Origin::Handed(stamp(3)), "T", &moves), Route::Wait);
        let other = Origin::Handed(Stamp { term: 8, version: 2 });
        assert_eq!(new.route(other, "T", &moves), Route::Wait, "of another leader");
        let (old, new, caller) = (old.settled(), new.settled(), caller.settled());
        assert_eq!(to(&caller.route(Origin::Own, "T", &moves)), TWO);
        assert_eq!(new.route(Origin::Peer, "T", &moves), Route::Local);
        assert_eq!(to(&old.route(Origin::Peer, "T", &moves)), TWO, "for late callers");
        assert_eq!(new.route(Origin::Peer, "T", &stays), Route::Moved);
    }

    #[test]
    fn actors_of_dead_host_wait_for_unlock() {
        let (moves, _) = actors();
        let before = Routes::new(CALLER).replaced(tables(&[ONE, TWO]), false);
        let round =
            |leaving: &[&str]| before.handing_over(stamp(2), tables(&[ONE]), true, leaving.iter().copied());
        assert_eq!(round(&[]).route(Origin::Own, "T", &moves), Route::Wait);
        assert_eq!(to(&round(&[TWO]).route(Origin::Own, "T", &moves)), TWO);
        let leaving = Routes::new(TWO).replaced(tables(&[ONE, TWO]), false);
        let leaving = leaving.handing_over(stamp(2), tables(&[ONE]), true, [TWO].into_iter());
        assert!(matches!(
            leaving.route(Origin::Own, "T", &moves),
            Route::Forward(..)
        ));
        assert!(!leaving.owns("T", &moves));
    }

    #[test]
    fn rejects_stale_caller_without_handover() {
        let (moves, stays) = actors();
        let before = Routes::new(ONE).replaced(tables(&[ONE]), false).settled();
        let routes = before.replaced(tables(&[ONE, TWO]), true).settled();
        assert_eq!(routes.route(Origin::Peer, "T", &moves), Route::Moved);
        assert_eq!(routes.route(Origin::Handed(stamp(2)), "T", &stays), Route::Local);
        assert_eq!(to(&routes.route(Origin::Own, "T", &moves)), TWO);
        assert_eq!(routes.route(Origin::Own, "U", "1"), Route::NoHost);
    }

    /// Invariant: without handover, no host starts an actor that moved to it before the unlock.
    #[test]
    fn moving_actors_wait_for_unlock() {
        let (moves, stays) = actors();
        let round = |own: &str, known| {
            let before = Routes::new(own).replaced(tables(&[ONE]), false).settled();
            before.replaced(tables(&[ONE, TWO]), known)
        };
        let (old, new, caller) = (round(ONE, true), round(TWO, true), round(CALLER, true));
        for origin in [Origin::Own, Origin::Peer, Origin::Handed(Stamp::default())] {
            assert_eq!(new.route(origin, "T", &moves), Route::Wait, "{origin:?}");
            assert_eq!(old.route(origin, "T", &stays), Route::Local, "{origin:?}");
            assert_eq!(new.settled().route(origin, "T", &moves), Route::Local);
        }
        assert_eq!(old.route(Origin::Own, "T", &moves), Route::Wait);
        assert_eq!(old.route(Origin::Peer, "T", &moves), Route::Moved);
        assert_eq!(caller.route(Origin::Own, "T", &moves), Route::Wait);
        assert_eq!(to(&caller.route(Origin::Own, "T", &stays)), ONE);
        // After a lost stream nothing is certain.
        assert_eq!(round(ONE, false).route(Origin::Own, "T", &stays), Route::Wait);
    }

    #[test]
    fn stamp_round_trips_as_text() {
        assert_eq!(Stamp::parse(&stamp(12).to_string()), Some(stamp(12)));
        for wrong in ["", "7", "7-", "-1", "7-x", "7-1-2"] {
            assert_eq!(Stamp::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn recognizes_local_address_aliases() {
        for (target, own, same) in [
            ("10.0.0.1:1", "10.0.0.1:1", true),
            ("10.0.0.1:1", "10.0.0.1:2", false),
            ("localhost:1", "127.0.0.1:1", true),
            ("[::1]:1", "127.0.0.1:1", true),
            ("localhost:2", "127.0.0.1:1", false),
            ("localhost:1", "10.0.0.1:1", false),
        ] {
            assert_eq!(is_same(target, own), same, "{target} {own}");
        }
    }
}
