//! Why a body could not be read, kept for whoever sees only that sending it failed.

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
    /// The reason in an error of a body.
    pub fn of(error: &BoxError) -> Self {
        Self {
            text: crate::error::chain(error.as_ref()),
            malformed: crate::error::is_malformed(error.as_ref()),
        }
    }

    /// Whether its sender did not keep to the protocol.
    pub fn is_malformed(&self) -> bool {
        self.malformed
    }
}

/// The failure of a body that is being sent. A connection reports it as its own, which would speak against the peer: a
/// call that failed by its own body is not repeated, and nobody is blamed.
#[derive(Clone, Default)]
pub struct Failure(Option<Arc<OnceLock<Reason>>>);

impl Failure {
    /// Watches a body; one that is in memory cannot fail.
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
