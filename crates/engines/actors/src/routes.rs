//! The way of a call by the table of placement, also while a new table is on its way through the fleet.
//!
//! In a round with handover nobody stops what does not move. Between `update` and `unlock` a host knows two tables, and
//! sends calls of an actor that moves to its old host. That host lets the turns end that it has taken in, ends the actor,
//! and passes on all further calls with a [`Stamp`]: the proof for the new host that the actor has ended. Without it the
//! new host begins only when placement says `unlock`, which it does when every old host has ended all that moves away.
//! So an actor is in one place at a time, and waits for its own end only.

use std::collections::HashSet;
use std::sync::Arc;

use crate::ring::{Host, Tables};

/// A round of one term of a leader of placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The term; 0 where nothing is handed over.
    pub term: u64,
    /// The round.
    pub version: u64,
}

impl Stamp {
    /// From the text that it has on the wire.
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

/// Where a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This sidecar.
    Own,
    /// Another one, which takes this for the actor's host.
    Peer,
    /// The old host of the actor, which has ended it in this round.
    Handed(Stamp),
}

/// What to do with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'a> {
    /// The actor lives here.
    Local,
    /// It lives there, or its host knows where.
    Remote(&'a Host),
    /// It lived here: when it has ended, pass the call on with this stamp.
    Forward(&'a Host, Stamp),
    /// This is known with the next step of the round.
    Wait,
    /// The caller is wrong; it has to look again.
    Moved,
    /// Nobody hosts the type.
    NoHost,
}

/// What a host knows of the table. A new one is made for each step of a round.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// `host:port` of this host.
    own: Arc<str>,
    stamp: Stamp,
    tables: Arc<Tables>,
    /// The one before, where actors are handed over.
    before: Option<Arc<Tables>>,
    /// Hosts that can be asked in this round.
    alive: Arc<HashSet<Box<str>>>,
    /// All hosts have the table, and have ended what moved away.
    settled: bool,
}

impl Routes {
    /// Of a host that has no table yet.
    pub fn new(own: &str) -> Self {
        Self {
            own: own.into(),
            settled: true,
            ..Self::default()
        }
    }

    /// All calls stood still when this table came: nothing is handed over.
    pub fn replaced(&self, tables: Tables) -> Self {
        Self {
            own: Arc::clone(&self.own),
            tables: Arc::new(tables),
            settled: true,
            ..Self::default()
        }
    }

    /// A table by which actors are handed over. `known`: the table of now is the one before; otherwise this host had none
    /// in this term. `leaving`: hosts that host nothing any more, and pass on calls.
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
        Self {
            settled: true,
            ..self.clone()
        }
    }

    /// The placement tables that look-ups go by.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Whether an actor is this host's by the table.
    pub fn owns(&self, kind: &str, id: &str) -> bool {
        let owner = self.tables.owner(kind, id);
        owner.is_some_and(|owner| self.is_own(owner))
    }

    fn is_own(&self, host: &Host) -> bool {
        is_same(&host.address, &self.own)
    }

    /// The way of a call.
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
        // Between two rounds one look is enough for most calls.
        match (self.settled, self.is_own(now), origin) {
            (true, true, _) => return Route::Local,
            (true, false, Origin::Own) => return Route::Remote(now),
            _ => {}
        }
        let was = self.before.as_ref().and_then(|before| before.owner(kind, id));
        let stays = was.is_some_and(|was| was.address == now.address);
        let is_certain = self.settled || stays || origin == Origin::Handed(self.stamp);
        if self.is_own(now) {
            return match (is_certain, origin) {
                (true, _) => Route::Local,
                (false, Origin::Own) => self.old(was),
                (false, _) => Route::Wait,
            };
        }
        if !stays && was.is_some_and(|was| self.is_own(was)) {
            return Route::Forward(now, self.stamp);
        }
        match origin {
            Origin::Own if is_certain => Route::Remote(now),
            Origin::Own => self.old(was),
            _ => Route::Moved,
        }
    }

    /// By way of the old host, if it is there.
    fn old<'a>(&self, was: Option<&'a Host>) -> Route<'a> {
        match was {
            Some(was) if self.alive.contains(&*was.address) => Route::Remote(was),
            _ => Route::Wait,
        }
    }
}

/// Whether two addresses are of the same server: on one machine, ports tell them apart.
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

    /// An actor that `TWO` takes from `ONE`, and one that stays with `ONE`.
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
    fn what_moves_goes_by_way_of_its_old_host_and_what_stays_goes_on() {
        let (moves, stays) = actors();
        let none: [&str; 0] = [];
        let round = |own: &str, known: bool| {
            let before = Routes::new(own).replaced(tables(&[ONE]));
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
        assert_eq!(to(&old.route(Origin::Peer, "T", &moves)), TWO, "for who is late");
        assert_eq!(new.route(Origin::Peer, "T", &stays), Route::Moved);
    }

    #[test]
    fn what_a_dead_host_had_waits_and_what_one_that_leaves_had_does_not() {
        let (moves, _) = actors();
        let before = Routes::new(CALLER).replaced(tables(&[ONE, TWO]));
        let round =
            |leaving: &[&str]| before.handing_over(stamp(2), tables(&[ONE]), true, leaving.iter().copied());
        assert_eq!(round(&[]).route(Origin::Own, "T", &moves), Route::Wait);
        assert_eq!(to(&round(&[TWO]).route(Origin::Own, "T", &moves)), TWO);
        let leaving = Routes::new(TWO).replaced(tables(&[ONE, TWO]));
        let leaving = leaving.handing_over(stamp(2), tables(&[ONE]), true, [TWO].into_iter());
        assert!(matches!(
            leaving.route(Origin::Own, "T", &moves),
            Route::Forward(..)
        ));
        assert!(!leaving.owns("T", &moves));
    }

    #[test]
    fn without_handover_who_is_wrong_is_told_so() {
        let (moves, stays) = actors();
        let routes = Routes::new(ONE)
            .replaced(tables(&[ONE]))
            .replaced(tables(&[ONE, TWO]));
        assert_eq!(routes.route(Origin::Peer, "T", &moves), Route::Moved);
        assert_eq!(routes.route(Origin::Handed(stamp(2)), "T", &stays), Route::Local);
        assert_eq!(to(&routes.route(Origin::Own, "T", &moves)), TWO);
        assert_eq!(routes.route(Origin::Own, "U", "1"), Route::NoHost);
    }

    #[test]
    fn a_stamp_is_a_text() {
        assert_eq!(Stamp::parse(&stamp(12).to_string()), Some(stamp(12)));
        for wrong in ["", "7", "7-", "-1", "7-x", "7-1-2"] {
            assert_eq!(Stamp::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_address_on_this_machine_has_several_names() {
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
