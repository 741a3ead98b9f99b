//! Test support: sidecars that run for the length of a test, apps, clients and timeouts.

pub mod app;
pub mod client;
pub mod control;
pub mod fleet;
pub mod grpc;
pub mod net;
pub mod node;
pub mod placement;
pub mod relay;
pub mod worker;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use outrigger_transport::body::{Body, BoxError};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

pub use app::App;
pub use client::{Answer, get, post, request};
pub use control::{Control, Replicas};
pub use net::{Net, Plan};
pub use node::{Node, Process};
pub use placement::Placement;
pub use relay::Relay;

/// Deadline for expected events; reached only on failure.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits for `future`; panics instead of hanging.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.expect("it hangs")
}

/// Waits until a condition holds.
pub async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
    within(async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// A body that the test sends piece by piece. It ends when the sender is dropped, and breaks off on an error.
pub fn fed() -> (mpsc::Sender<Result<Bytes, BoxError>>, Body) {
    let (sender, receiver) = mpsc::channel::<Result<Bytes, BoxError>>(1);
    let frames = ReceiverStream::new(receiver).map(|piece| piece.map(Frame::data));
    (sender, Body::stream(StreamBody::new(frames)))
}
