//! Limits how long a peer may stay connected: briefly without a certificate, and while active after it got
//! one.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use outrigger_accept::Permit;
use outrigger_accept::budget::{self, OpenStreams};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use super::owner;

/// Deadline for obtaining a certificate, regardless of other calls.
const UNAUTHENTICATED_TIMEOUT: Duration = Duration::from_secs(30);
/// After a certificate was issued: an idle connection is closed after this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Serializes lookups of a connection's owner.
static LOOKUPS: Semaphore = Semaphore::const_new(1);

/// The lifetime of one connection.
#[derive(Debug)]
pub(crate) struct Lifetime {
    begun: Instant,
    permit: Arc<Permit>,
    /// Both ends of a connection within this machine: the peer's, then ours.
    local: Option<(SocketAddr, SocketAddr)>,
    used: Mutex<Usage>,
}

#[derive(Debug)]
struct Usage {
    /// Number of calls in flight.
    calls: usize,
    /// Their share of the limit over all connections.
    open_streams: OpenStreams,
    last: Instant,
    authenticated: bool,
}

impl Usage {
    fn set_calls(&mut self, calls: usize) {
        self.calls = calls;
        self.open_streams.count(calls);
    }
}

/// A call in flight.
#[derive(Debug)]
pub(crate) struct Call(Arc<Lifetime>);

impl Lifetime {
    /// Starts the lifetime. `peer` and `local` are the ends of the connection.
    pub(crate) fn new(permit: Arc<Permit>, peer: SocketAddr, local: Option<SocketAddr>) -> Self {
        let begun = Instant::now();
        let is_local = |local: &SocketAddr| {
            let ip = peer.ip().to_canonical();
            ip.is_loopback() || local.ip().to_canonical() == ip
        };
        Self {
            begun,
            permit,
            local: local.filter(is_local).map(|local| (peer, local)),
            used: Mutex::new(Usage {
                calls: 0,
                open_streams: OpenStreams::new(Some(&budget::CALLS)),
                last: begun,
                authenticated: false,
            }),
        }
    }

    /// Whether the peer is a local process of sentry's user or of root.
    pub(crate) async fn is_own_user(&self) -> bool {
        let Some((peer, local)) = self.local else {
            return false;
        };
        // One lookup at a time: the system's table may be long.
        let _turn = LOOKUPS.acquire().await;
        let looking = tokio::task::spawn_blocking(move || owner::is_own(peer, local));
        looking.await.unwrap_or(false)
    }

    /// Begins a call; it lasts until the result is dropped. `None` if all connections together have too many
    /// calls.
    pub(crate) fn call(self: &Arc<Self>) -> Option<Call> {
        let mut used = self.used();
        let calls = used.calls;
        if !used.open_streams.has_room(calls) {
            return None;
        }
        used.set_calls(calls + 1);
        Some(Call(Arc::clone(self)))
    }

    /// Records that the peer got a certificate.
    pub(crate) fn authenticated(&self) {
        self.used().authenticated = true;
        self.permit.prove();
    }

    /// Completes when the connection has to end.
    pub(crate) async fn expired(&self) {
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
            (false, _) => self.begun + UNAUTHENTICATED_TIMEOUT,
            (true, 0) => used.last + IDLE_TIMEOUT,
            // Calls have their own timeout.
            (true, _) => now + IDLE_TIMEOUT,
        }
    }

    fn used(&self) -> MutexGuard<'_, Usage> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut used = self.0.used();
        let calls = used.calls - 1;
        used.set_calls(calls);
        used.last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lifetime of a connection from `peer`; without `peer`, of the accepted connection.
    async fn lifetime(peer: Option<&str>) -> (Arc<Lifetime>, tokio::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (send, mut permits) = tokio::sync::mpsc::channel(1);
        let stop = tokio_util::sync::CancellationToken::new();
        let admission = outrigger_accept::Admission::new(outrigger_accept::ENDPOINT_LIMITS);
        tokio::spawn(outrigger_accept::serve(
            listener,
            admission,
            stop,
            move |accepted| {
                let send = send.clone();
                async move {
                    send.send((accepted.permit, accepted.peer)).await.unwrap();
                    accepted.drain.cancelled().await;
                }
            },
        ));
        let client = tokio::net::TcpStream::connect(address).await.unwrap();
        let (permit, accepted) = permits.recv().await.unwrap();
        let peer = peer.map_or(accepted, |peer| {
            SocketAddr::new(peer.parse().unwrap(), accepted.port())
        });
        (Arc::new(Lifetime::new(permit, peer, Some(address))), client)
    }

    #[tokio::test]
    async fn refused_requests_extend_no_lifetime() {
        let (lifetime, _client) = lifetime(Some("10.0.0.1")).await;
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
        lifetime.expired().await;
        asking.abort();
        let lasted = begun.elapsed();
        assert!(
            lasted <= UNAUTHENTICATED_TIMEOUT + Duration::from_secs(1),
            "{lasted:?}"
        );
    }

    #[tokio::test]
    async fn active_authenticated_peer_stays() {
        let (lifetime, _client) = lifetime(Some("10.0.0.1")).await;
        tokio::time::pause();
        lifetime.authenticated();
        let call = lifetime.call();
        assert!(
            tokio::time::timeout(UNAUTHENTICATED_TIMEOUT * 20, lifetime.expired())
                .await
                .is_err()
        );
        drop(call);
        let ended = Instant::now();
        lifetime.expired().await;
        assert!(ended.elapsed() >= IDLE_TIMEOUT);
    }

    #[tokio::test]
    async fn recognizes_processes_of_own_user() {
        let (own, _client) = lifetime(None).await;
        assert!(own.is_own_user().await);
        for elsewhere in ["10.0.0.1", "127.0.0.9", "::1"] {
            let (lifetime, _client) = lifetime(Some(elsewhere)).await;
            assert!(!lifetime.is_own_user().await, "{elsewhere}");
        }
    }
}
