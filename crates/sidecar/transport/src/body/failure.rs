//! Records why reading a body failed, for callers that only see that sending it failed.

use std::sync::{Arc, OnceLock};

use super::{Body, BoxError};

/// Why a body could not be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub struct Reason {
    text: String,
    malformed: bool,
}

impl Reason {
    /// Extracts the reason from a body error.
    pub fn of(error: &BoxError) -> Self {
        Self {
            text: crate::error::chain(error.as_ref()),
            malformed: crate::error::is_malformed(error.as_ref()),
        }
    }

    /// Whether the sender violated the protocol.
    pub fn is_malformed(&self) -> bool {
        self.malformed
    }
}

/// The failure of an outgoing body. The connection reports it as a connection error, which would count
/// against the peer. With this record the call is neither retried nor counted.
#[derive(Clone, Default)]
pub struct Failure(Option<Arc<OnceLock<Reason>>>);

impl Failure {
    /// Watches a body. A body in memory cannot fail.
    pub fn watch(body: &mut Body) -> Self {
        if body.is_whole() {
            return Self(None);
        }
        let noted = Arc::<OnceLock<Reason>>::default();
        let failed = Arc::clone(&noted);
        *body = std::mem::take(body).inspect(move |next| {
            if let Some(Err(error)) = &next {
                failed.get_or_init(|| Reason::of(error));
            }
            next
        });
        Self(Some(noted))
    }

    /// Why the body failed, if it did.
    pub fn reason(&self) -> Option<&Reason> {
        self.0.as_ref()?.get()
    }
}
