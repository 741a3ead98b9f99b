//! Selection of the placement replica to ask next.

use std::net::SocketAddr;

use tokio::time::timeout;

use super::outage::{Outage, SEARCH_TIMEOUT};

/// The placement replicas: listed addresses, or the addresses that one name resolves to.
pub(super) struct Replicas<'p> {
    listed: &'p [String],
    by_name: bool,
    /// Number of requests so far.
    turn: usize,
    /// By name: the last address asked.
    last: Option<SocketAddr>,
    /// By name, during an outage: addresses to ask.
    known: Vec<Known>,
}

struct Known {
    address: SocketAddr,
    /// It denied leading in this outage, or nothing listened there.
    denied: bool,
}

/// The replica to ask.
pub(super) struct Replica<'p> {
    /// `host:port` to connect to.
    pub(super) address: String,
    /// `host:port` as listed.
    pub(super) listed: &'p str,
}

impl<'p> Replicas<'p> {
    /// `by_name`: the first address resolves to all replicas.
    pub(super) fn new(listed: &'p [String], by_name: bool) -> Self {
        Self {
            listed,
            by_name,
            turn: 0,
            last: None,
            known: Vec::new(),
        }
    }

    /// Requests until all replicas have been asked.
    pub(super) fn tour(&self) -> usize {
        match self.by_name {
            true => self.known.len().max(1),
            false => self.listed.len().max(1),
        }
    }

    /// Whether to pause, outside of an outage: all listed replicas have been asked. By name, one address is
    /// asked per pause.
    pub(super) fn all_asked(&self) -> bool {
        self.by_name || self.turn.is_multiple_of(self.tour())
    }

    /// Selects the next replica.
    ///
    /// # Errors
    /// If there is no address or the name cannot be resolved.
    pub(super) async fn next(&mut self, outage: Option<&Outage>) -> Result<Replica<'p>, String> {
        let turn = self.turn;
        self.turn += 1;
        let listed = match self.by_name {
            true => self.listed.first(),
            false => self.listed.get(turn % self.listed.len().max(1)),
        };
        let listed = listed.ok_or("no address is known")?;
        let address = match self.by_name {
            true => self.resolve_next(listed, turn, outage).await?.to_string(),
            false => listed.clone(),
        };
        Ok(Replica { address, listed })
    }

    /// Selects an address of the name.
    async fn resolve_next(
        &mut self,
        name: &str,
        turn: usize,
        outage: Option<&Outage>,
    ) -> Result<SocketAddr, String> {
        let asked = match outage {
            None => {
                let found = resolved(name).await?;
                found.get(turn % found.len().max(1)).copied()
            }
            Some(outage) => {
                if outage.asked == 0 {
                    let found = timeout(SEARCH_TIMEOUT, resolved(name)).await;
                    self.renew(&found.map_err(|_| format!("{name}: no answer from the DNS server"))??);
                }
                self.known.get(outage.asked).map(|known| known.address)
            }
        };
        self.last = asked;
        asked.ok_or_else(|| format!("{name} has no addresses"))
    }

    /// The stream of the last replica was lost: it is asked first.
    pub(super) fn begin_outage(&mut self) {
        self.known.clear();
        if let Some(leader) = self.last {
            self.add(leader);
        }
    }

    fn add(&mut self, address: SocketAddr) {
        if self.known.iter().all(|known| known.address != address) {
            let denied = false;
            self.known.push(Known { address, denied });
        }
    }

    /// Updates the resolved addresses. An earlier address, in particular the last leader's, is kept until it
    /// has denied leading.
    fn renew(&mut self, found: &[SocketAddr]) {
        self.known
            .retain(|known| !known.denied || found.contains(&known.address));
        for address in found {
            self.add(*address);
        }
    }

    /// The replica just asked does not lead.
    pub(super) fn denied(&mut self, outage: &Outage) {
        if let Some(known) = self.known.get_mut(outage.asked) {
            known.denied = true;
        }
    }
}

/// All addresses of a name.
async fn resolved(name: &str) -> Result<Vec<SocketAddr>, String> {
    let found = tokio::net::lookup_host(name).await;
    Ok(found.map_err(|error| format!("{name}: {error}"))?.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &[String] = &[];

    fn pods(last: &[u8]) -> Vec<SocketAddr> {
        let address = |&last| SocketAddr::from(([10, 0, 0, last], 50_005));
        last.iter().map(address).collect()
    }

    /// In an outage, after the leader at `leader` was lost.
    fn without(leader: u8) -> Replicas<'static> {
        let mut replicas = Replicas::new(NAME, true);
        replicas.last = pods(&[leader]).pop();
        replicas.begin_outage();
        replicas
    }

    fn to_ask(replicas: &Replicas<'_>) -> Vec<u8> {
        let last = |known: &Known| match known.address {
            SocketAddr::V4(address) => address.ip().octets()[3],
            SocketAddr::V6(_) => panic!("no pod of this test"),
        };
        replicas.known.iter().map(last).collect()
    }

    fn asked(asked: usize) -> Outage {
        let is_proven = false;
        Outage { asked, is_proven }
    }

    #[test]
    fn asks_all_addresses_lost_leader_first() {
        let mut replicas = without(2);
        replicas.renew(&pods(&[1, 2, 3]));
        assert_eq!((to_ask(&replicas), replicas.tour()), (vec![2, 1, 3], 3));
        replicas.renew(&pods(&[3, 2, 1]));
        assert_eq!(
            to_ask(&replicas),
            [2, 1, 3],
            "in whatever order the name tells them"
        );
    }

    #[test]
    fn asks_removed_address_until_denied() {
        let mut replicas = without(2);
        replicas.renew(&pods(&[1, 3]));
        assert_eq!(to_ask(&replicas), [2, 1, 3], "it may lead");
        replicas.renew(&pods(&[1, 3, 4]));
        assert_eq!(to_ask(&replicas), [2, 1, 3, 4], "still");
        replicas.denied(&asked(0));
        replicas.renew(&pods(&[1, 2, 4]));
        assert_eq!(to_ask(&replicas), [2, 1, 3, 4], "it is back, and 3 said nothing");
        replicas.denied(&asked(2));
        replicas.renew(&pods(&[1, 4]));
        assert_eq!(to_ask(&replicas), [1, 4]);
    }

    #[test]
    fn new_outage_forgets_denials() {
        let mut replicas = without(2);
        replicas.renew(&pods(&[1, 2, 3]));
        for (number, asked) in [0, 1, 2].map(asked).iter().enumerate() {
            replicas.denied(asked);
            replicas.last = Some(replicas.known[number].address);
        }
        // 3 leads by then and is lost.
        replicas.begin_outage();
        replicas.renew(&pods(&[1]));
        assert_eq!(to_ask(&replicas), [3, 1]);
    }

    #[tokio::test]
    async fn asks_listed_replicas_in_turn() {
        let listed = ["a:1", "b:1"].map(str::to_owned);
        let mut replicas = Replicas::new(&listed, false);
        for address in ["a:1", "b:1", "a:1"] {
            let next = replicas.next(Some(&asked(0))).await.map_err(drop);
            assert_eq!(next.map(|next| next.address), Ok(address.to_owned()));
        }
        let none = Replicas::new(&[], false).next(None).await.map(|_| ());
        assert_eq!(none.unwrap_err(), "no address is known");
    }
}
