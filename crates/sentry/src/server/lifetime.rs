//! How long a peer may stay connected: those who never got a certificate not for long, the others while they use it.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outrigger_accept::Place;
use tokio::time::{Instant, sleep_until};

/// Time a connection has to obtain a certificate, whatever else it asks.
const UNAUTHENTICATED: Duration = Duration::from_secs(30);
/// After a certificate was issued: a connection on which nothing is asked for this long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// The time of one connection.
#[derive(Debug)]
pub(crate) struct Lifetime {
    begun: Instant,
    place: Arc<Place>,
    is_local: bool,
    used: Mutex<Used>,
}

#[derive(Debug)]
struct Used {
    /// Calls in flight.
    calls: u32,
    last: Instant,
    authenticated: bool,
}

/// A call in flight.
#[derive(Debug)]
pub(crate) struct Call(Arc<Lifetime>);

impl Lifetime {
    /// Begins now. `peer` and `local` are the ends of the connection.
    pub(crate) fn new(place: Arc<Place>, peer: IpAddr, local: Option<IpAddr>) -> Self {
        let begun = Instant::now();
        let peer = peer.to_canonical();
        Self {
            begun,
            place,
            is_local: peer.is_loopback() || local.is_some_and(|local| local.to_canonical() == peer),
            used: Mutex::new(Used {
                calls: 0,
                last: begun,
                authenticated: false,
            }),
        }
    }

    /// Whether the peer is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }

    /// A call begins; it lasts until what is returned is dropped.
    pub(crate) fn call(self: &Arc<Self>) -> Call {
        self.used().calls += 1;
        Call(Arc::clone(self))
    }

    /// The peer was given a certificate.
    pub(crate) fn authenticated(&self) {
        self.used().authenticated = true;
        self.place.prove();
    }

    /// Completes when the connection has to end.
    pub(crate) async fn over(&self) {
        loop {
            let now = Instant::now();
            let end = self.end(now);
            if end <= now {
                return;
            }
            sleep_until(end).await;
        }
    }

    fn end(&self, now: Instant) -> Instant {
        let used = self.used();
        match (used.authenticated, used.calls) {
            (false, _) => self.begun + UNAUTHENTICATED,
            (true, 0) => used.last + IDLE,
            // Calls have a time limit of their own.
            (true, _) => now + IDLE,
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut used = self.0.used();
        used.calls -= 1;
        used.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lifetime(peer: &str, local: &str) -> Arc<Lifetime> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (send, mut places) = tokio::sync::mpsc::channel(1);
        let stop = tokio_util::sync::CancellationToken::new();
        let limits = outrigger_accept::ENDPOINT_LIMITS;
        tokio::spawn(outrigger_accept::serve(listener, limits, stop, move |accepted| {
            let send = send.clone();
            async move { send.send(accepted.place).await.unwrap() }
        }));
        let _client = tokio::net::TcpStream::connect(address).await.unwrap();
        let place = places.recv().await.unwrap();
        Arc::new(Lifetime::new(place, peer.parse().unwrap(), local.parse().ok()))
    }

    #[tokio::test]
    async fn requests_that_are_refused_gain_no_time() {
        let lifetime = lifetime("10.0.0.1", "10.0.0.2").await;
        tokio::time::pause();
        let begun = Instant::now();
        let asking = tokio::spawn({
            let lifetime = Arc::clone(&lifetime);
            async move {
                loop {
                    let _call = lifetime.call();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        });
        lifetime.over().await;
        asking.abort();
        let lasted = begun.elapsed();
        assert!(lasted <= UNAUTHENTICATED + Duration::from_secs(1), "{lasted:?}");
    }

    #[tokio::test]
    async fn a_peer_with_a_certificate_stays_while_it_asks() {
        let lifetime = lifetime("10.0.0.1", "10.0.0.2").await;
        tokio::time::pause();
        lifetime.authenticated();
        let call = lifetime.call();
        assert!(
            tokio::time::timeout(UNAUTHENTICATED * 20, lifetime.over())
                .await
                .is_err()
        );
        drop(call);
        let ended = Instant::now();
        lifetime.over().await;
        assert!(ended.elapsed() >= IDLE);
    }

    #[tokio::test]
    async fn peers_on_this_machine_are_known() {
        for (peer, local, expected) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("::ffff:127.0.0.9", "::ffff:127.0.0.1", true),
            ("::1", "::1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("10.0.0.1", "", false),
        ] {
            assert_eq!(lifetime(peer, local).await.is_local(), expected, "{peer} {local}");
        }
    }
}
