//! A call of another app: pick one of its sidecars, send, forget the one that does not answer, try another.

use std::future::Future;
use std::sync::Arc;

use super::{Instance, PeerError, Peers};

/// How a call of one instance failed.
#[derive(Debug)]
pub struct Failed<E> {
    /// The error to answer the caller with.
    pub error: E,
    /// It is the connection's fault: the instance's address is looked for again.
    pub connection: bool,
    /// Whether the same call may be sent to another instance.
    pub repeatable: bool,
}

/// Why no instance answered.
#[derive(Debug)]
pub enum CallError<E> {
    /// The address of the app is not known.
    Unresolved(PeerError),
    /// The last that was called failed.
    Failed(Failed<E>),
}

impl Peers {
    /// Calls an instance of an app; one whose connection failed is replaced up to `replacements` times, at once. Each
    /// `send` takes `state` and gives it back.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call<S, T, E, F>(
        &self,
        (app_id, namespace): (&str, &str),
        replacements: u32,
        mut state: S,
        mut send: impl FnMut(S, Arc<Instance>) -> F,
    ) -> Result<T, CallError<E>>
    where
        F: Future<Output = (S, Result<T, Failed<E>>)>,
    {
        let mut left = replacements;
        loop {
            let picked = self.pick(app_id, namespace).await;
            let picked = picked.map_err(CallError::Unresolved)?;
            let (given_back, result) = send(state, Arc::clone(&picked.instance)).await;
            state = given_back;
            let failed = match result {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            if failed.connection {
                self.failed(&picked);
            }
            if left == 0 || !failed.connection || !failed.repeatable {
                return Err(CallError::Failed(failed));
            }
            left -= 1;
        }
    }
}
