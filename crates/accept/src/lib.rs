//! Accepting connections from anybody: how many, from whom, who goes first, and for how long. For the servers that
//! are not the data path: the authority, metrics, health, profiling.

pub mod address;
mod admission;
mod handshake;
pub mod health;
mod http1;
mod keep_alive;
mod listen;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use admission::Admission;
pub use admission::{Limits, Place};
pub use handshake::handshake;
pub use http1::{finish, http1, serve_http1};
pub use keep_alive::keep_alive;
pub use listen::{BindError, ENDPOINT_LIMITS, Listen, Server, serve_metrics};

const LOG: &str = "dapr.accept";
/// Pause after a failed accept: the usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A connection that was taken in.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: TcpStream,
    /// The peer.
    pub peer: SocketAddr,
    /// Its place among the others.
    pub place: Arc<Place>,
    /// Cancelled when the server ends: the connection ends soon after.
    pub drain: CancellationToken,
}

/// Hands connections to `handle` until told to stop, then waits for those that are open; `handle` ends a connection
/// some time after [`Accepted::drain`] is cancelled. A connection that has to make room for another is dropped.
pub async fn serve<F, C>(listener: TcpListener, limits: Limits, drain: CancellationToken, handle: F)
where
    F: Fn(Accepted) -> C,
    C: Future<Output = ()> + Send + 'static,
{
    let admission = Admission::new(limits);
    let connections = TaskTracker::new();
    if let Err(error) = keep_alive(&listener) {
        tracing::debug!(target: LOG, "peers that vanish will be noticed late: {error}");
    }
    while let Some(accepted) = drain.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => {
                // Only a hint to the kernel.
                let _ = stream.set_nodelay(true);
                let place = Arc::new(admission.admit(peer.ip()));
                let connection = handle(Accepted {
                    stream,
                    peer,
                    place: Arc::clone(&place),
                    drain: drain.clone(),
                });
                connections.spawn(async move {
                    tokio::select! {
                        () = connection => {}
                        () = place.evicted() => {
                            tracing::debug!(target: LOG, "closed the connection of {peer}: others need its place");
                        }
                    }
                });
            }
            Err(error) => {
                // Peers must not keep others out by taking all descriptors either.
                if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
                    admission.make_room();
                }
                pause(&error).await;
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn pause(error: &io::Error) {
    tracing::warn!(target: LOG, "cannot accept a connection: {error}");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}
