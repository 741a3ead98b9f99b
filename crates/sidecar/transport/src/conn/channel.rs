//! Generated gRPC clients over pooled connections, used for the services of the control plane.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use tower::Service;

use super::{DialError, H2Pool, SendError};
use crate::body::Body;

/// The transport of generated clients. Connections are opened on demand and reopened after failures. They
/// close when a certificate of either end expires or when the peer vanishes, as connections to other sidecars
/// do.
#[derive(Clone)]
pub struct Channel(Arc<H2Pool>);

impl Channel {
    /// Sends through the connections of `pool`.
    pub fn new(pool: H2Pool) -> Self {
        Self(Arc::new(pool))
    }

    /// Opens a connection if there is none for the next request.
    ///
    /// # Errors
    /// [`DialError`] if none could be opened.
    pub async fn connect(&self) -> Result<(), DialError> {
        self.0.connect().await
    }
}

impl Service<Request<tonic::body::Body>> for Channel {
    type Response = Response<Body>;
    type Error = SendError;
    type Future = BoxFuture<'static, Result<Response<Body>, SendError>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let pool = Arc::clone(&self.0);
        async move { pool.send(request.map(Body::stream)).await }.boxed()
    }
}
