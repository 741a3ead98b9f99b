//! Accepting connections from anybody: how many, from whom, who goes first, and for how long. Every listener of every
//! process accepts through this crate.
//!
//! How many connections a server keeps follows from the descriptors that the process may have, and it takes all that it
//! may have. Connections stand in two lines: those that proved nothing yet, which hold half of the places at most, and
//! the others, by when they were last used. A call costs a counter there and no lock: a line is put right when somebody
//! has to go. What is busy says so itself (the exchange of HTTP/1.1, the streams of HTTP/2) and is passed over.

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
/// Time for a connection that was of use to end in order, when others need its place.
const EVICTED_GRACE: Duration = Duration::from_secs(1);

/// A socket that accepts connections.
pub trait Accept: Send + Sync {
    /// A connection.
    type Stream: Send + 'static;
    /// The address of a peer.
    type Peer: Copy + Debug + Send + 'static;

    /// The next connection. Dropped before it is ready, it has accepted nothing.
    ///
    /// # Errors
    /// What the system says.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Self::Peer)>> + Send;

    /// The address of a peer, by which those are counted that come from one machine; nothing where that is meaningless.
    fn source(peer: Self::Peer) -> Option<IpAddr>;

    /// Where it listens, for logs.
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

/// A connection that was taken in.
#[derive(Debug)]
pub struct Accepted<S = TcpStream, P = SocketAddr> {
    /// The connection.
    pub stream: S,
    /// Where the peer connects from.
    pub peer: P,
    /// Its permit; the connection counts until that is dropped.
    pub permit: Arc<Permit>,
    /// Cancelled when the server ends, or others need the place: the connection ends soon after.
    pub drain: CancellationToken,
}

/// Hands connections to `handle` until told to stop, then waits for those that are open; `handle` ends a connection
/// some time after [`Accepted::drain`] is cancelled. A connection that has to make room for another is dropped, at once
/// if its peer has proved nothing.
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
        // What is moved into a task twice takes its room twice.
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

/// A permit for a connection, as soon as somebody can go; nothing when all are in use, or the server ends.
async fn permit(admission: &Admission, source: Option<IpAddr>, drain: &CancellationToken) -> Option<Permit> {
    loop {
        match admission.admit(source) {
            Ok(permit) => return Some(permit),
            Err(Full::Busy) => return None,
            Err(Full::Young(left)) => drain.run_until_cancelled(tokio::time::sleep(left)).await?,
        }
    }
}

/// Drives a connection until it ends, or others need its place.
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

/// How long to wait until the next attempt.
fn after_failure(error: &io::Error, admission: &Admission) -> Duration {
    // One peer left before its turn.
    if matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EINTR)) {
        return Duration::ZERO;
    }
    // Peers must not keep others out by taking all descriptors.
    if is_out_of_descriptors(error) {
        admission.make_room();
    }
    ACCEPT_PAUSE
}
