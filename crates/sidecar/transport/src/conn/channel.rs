//! Generated gRPC clients over kept connections: how services of the control plane are asked.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use tower::Service;

use super::{DialError, H2Pool, SendError};
use crate::body::Body;

/// What a generated client sends its requests through. Connections are made when they are needed, and made again. They
/// end as those to other sidecars do: when a certificate of either end expires, and when the other end has vanished.
#[derive(Clone)]
pub struct Channel(Arc<H2Pool>);

impl Channel {
    /// Sends through the connections of `pool`.
    pub fn new(pool: H2Pool) -> Self {
        Self(Arc::new(pool))
    }

    /// Makes sure that there is a connection for the next request.
    ///
    /// # Errors
    /// [`DialError`] when none could be made.
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
