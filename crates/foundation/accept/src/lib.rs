//! Accepting connections from untrusted peers: how many, from which addresses, which are evicted first, and
//! their time limits. Every listener of every process accepts through this crate.
//!
//! The number of connections follows from the descriptors available to the process, whose limit is raised
//! to the maximum. Connections are in two queues: unproven ones, which hold at most half of the places, and
//! proven ones in order of last use. A call costs a counter increment and no lock; a queue is reordered
//! only on eviction. Busy connections (an HTTP/1.1 exchange, open HTTP/2 streams) are skipped.

pub mod address;
mod admission;
pub mod budget;
mod descriptors;
mod handshake;
mod http1;
mod keep_alive;
mod listen;
mod throttle;

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use admission::Full;
pub use admission::{Admission, Limits, Permit};
pub use descriptors::{descriptors, is_out_of_descriptors, raise_descriptors};
pub use handshake::handshake;
pub use http1::{finish, finish_http1, http1, serve_http1};
pub use keep_alive::{keep_alive, probe};
pub use listen::{BindError, BindErrors, ENDPOINT_LIMITS, Listen, Ports, Server};
pub use throttle::LogThrottle;

const LOG: &str = "dapr.accept";
/// Pause after a failed accept: the usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Grace period of a proven connection on eviction.
const EVICTED_GRACE: Duration = Duration::from_secs(1);

/// A listening socket.
pub trait Accept: Send + Sync {
    /// A connection.
    type Stream: Send + 'static;
    /// The address of a peer.
    type Peer: Copy + Debug + Send + 'static;

    /// The next connection. Cancel safe.
    ///
    /// # Errors
    /// Of the operating system.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;

    /// The address that per-source limits apply to, if meaningful for this kind of peer.
    fn source(peer: Self::Peer) -> Option<IpAddr>;

    /// The listen address for logs.
    fn describe(&self) -> String;
}

impl Accept for TcpListener {
    type Stream = TcpStream;
    type Peer = SocketAddr;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.accept().await?;
        // Only a hint to the kernel.
        let _ = stream.set_nodelay(true);
        Ok((stream, peer))
    }

    fn source(peer: SocketAddr) -> Option<IpAddr> {
        Some(peer.ip())
    }

    fn describe(&self) -> String {
        self.local_addr()
            .map_or_else(|error| error.to_string(), |address| address.to_string())
    }
}

/// An accepted connection.
#[derive(Debug)]
pub struct Accepted<S = TcpStream, P = SocketAddr> {
    /// The connection.
    pub stream: S,
    /// Address of the peer.
    pub peer: P,
    /// Its permit; the connection is counted until this is dropped.
    pub permit: Arc<Permit>,
    /// Cancelled when the server shuts down or evicts the connection, which ends soon after.
    pub drain: CancellationToken,
}

/// Passes connections to `handle` until cancelled, then waits for the open ones; `handle` must end a
/// connection some time after [`Accepted::drain`] is cancelled. An evicted connection is dropped,
/// immediately if unproven.
pub async fn serve<A, F, C>(listener: A, admission: Admission, drain: CancellationToken, handle: F)
where
    A: Accept,
    F: Fn(Accepted<A::Stream, A::Peer>) -> C,
    C: Future<Output = ()> + Send + 'static,
{
    let connections = TaskTracker::new();
    let (mut failures, mut refusals) = (LogThrottle::default(), LogThrottle::default());
    while let Some(accepted) = drain.run_until_cancelled(listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(times) = failures.happened() {
                    tracing::warn!(
                        target: LOG,
                        "cannot accept a connection on {}: {error} ({times} times since this was last logged)",
                        listener.describe()
                    );
                }
                let pause = after_failure(&error, &admission);
                let _stopped = drain.run_until_cancelled(tokio::time::sleep(pause)).await;
                continue;
            }
        };
        let Some(permit) = permit(&admission, A::source(peer), &drain).await else {
            if let Some(times) = refusals.happened() {
                tracing::warn!(
                    target: LOG,
                    "refused {times} connections on {}: it has as many as allowed, {} at a time ({} from one \
                     address); let clients open fewer, or raise the limit of open files (ulimit -n)",
                    listener.describe(), admission.limits().connections, admission.limits().per_source
                );
            }
            continue;
        };
        let (permit, ending) = (Arc::new(permit), drain.child_token());
        // Boxed: a value moved into a task twice takes its space twice.
        let connection = Box::pin(handle(Accepted {
            stream,
            peer,
            permit: Arc::clone(&permit),
            drain: ending.clone(),
        }));
        connections.spawn(until_evicted(connection, peer, permit, ending));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Waits for a permit for a connection; `None` if all are busy or the server shuts down.
async fn permit(admission: &Admission, source: Option<IpAddr>, drain: &CancellationToken) -> Option<Permit> {
    loop {
        match admission.admit(source) {
            Ok(permit) => return Some(permit),
            Err(Full::Busy) => return None,
            Err(Full::Young(left)) => drain.run_until_cancelled(tokio::time::sleep(left)).await?,
        }
    }
}

/// Drives a connection until it ends or is evicted.
async fn until_evicted(
    mut connection: Pin<Box<impl Future<Output = ()>>>,
    peer: impl Debug,
    permit: Arc<Permit>,
    ending: CancellationToken,
) {
    tokio::select! {
        () = &mut connection => return,
        () = permit.evicted() => {}
    }
    tracing::debug!(target: LOG, "closed the connection of {peer:?} to make room for new ones");
    if permit.is_proven() {
        ending.cancel();
        let _cut_off = tokio::time::timeout(EVICTED_GRACE, connection).await;
    }
}

/// Pause before the next accept.
fn after_failure(error: &io::Error, admission: &Admission) -> Duration {
    // The peer left before it was accepted.
    if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EINTR)) {
        return Duration::ZERO;
    }
    // Peers must not block others by taking all descriptors.
    if is_out_of_descriptors(error) {
        admission.make_room();
    }
    ACCEPT_PAUSE
}
