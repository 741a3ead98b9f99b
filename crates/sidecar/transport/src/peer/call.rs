//! A call to another app: pick one of its sidecars, send, and evict a sidecar whose connection failed.

use std::future::Future;
use std::sync::Arc;

use http::{Request, Response};

use super::{Instance, PeerError, Peers};
use crate::body::{Body, Failure};

/// Why a call to one instance failed.
#[derive(Debug)]
pub struct Failed<E> {
    /// The error returned to the caller.
    pub error: E,
    /// Whether the connection failed. If so, the address of the instance is resolved again.
    pub connection: bool,
}

impl Peers {
    /// Calls an instance of an app. `unresolved` makes the error if no instance is known.
    ///
    /// # Errors
    /// The error of `send` or `unresolved`.
    pub async fn call<T, E, F>(
        &self,
        (app_id, namespace): (&str, &str),
        unresolved: impl FnOnce(PeerError) -> Failed<E>,
        send: impl FnOnce(Arc<Instance>) -> F,
    ) -> Result<T, Failed<E>>
    where
        F: Future<Output = Result<T, Failed<E>>>,
    {
        let picked = self.pick(app_id, namespace).await.map_err(unresolved)?;
        let result = send(Arc::clone(&picked.instance)).await;
        if result.as_ref().is_err_and(|failed| failed.connection) {
            self.failed(&picked);
        }
        result
    }

    /// Sends a request to an instance of an app. If its connection fails and the instance provably has not
    /// processed the request, the next of `requests` goes to another instance, once. `failure` is that of the
    /// request body.
    ///
    /// # Errors
    /// [`PeerError`]; [`PeerError::Spent`] if there is no request to send.
    pub async fn send(
        &self,
        (app_id, namespace): (&str, &str),
        mut requests: impl FnMut() -> Option<Request<Body>>,
        failure: &Failure,
    ) -> Result<Response<Body>, PeerError> {
        let mut request = requests().ok_or(PeerError::Spent)?;
        let mut is_last = false;
        loop {
            let picked = self.pick(app_id, namespace).await?;
            let error = match picked.instance.send(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let is_lost = failure.reason().is_none() && error.is_unavailable();
            if is_lost {
                self.failed(&picked);
            }
            let again = !is_last && is_lost && error.is_repeatable();
            request = again.then(&mut requests).flatten().ok_or(error)?;
            is_last = true;
        }
    }
}
