//! Why a body could not be read, kept for whoever sees only that sending it failed.

use std::sync::{Arc, OnceLock};

use super::Body;

/// The failure of a body that is being sent. A connection reports it as its own, which would speak against the peer: a
/// call that failed by its own body is not repeated, and nobody is blamed.
#[derive(Clone, Default)]
pub struct Failure(Option<Arc<OnceLock<String>>>);

impl Failure {
    /// Watches a body; one that is in memory cannot fail.
    pub fn watch(body: &mut Body) -> Self {
        if matches!(body, Body::Empty | Body::Full(_) | Body::Trailed(_)) {
            return Self(None);
        }
        let noted = Arc::<OnceLock<String>>::default();
        let failed = Arc::clone(&noted);
        *body = std::mem::take(body).inspect(move |next| {
            if let Some(Err(error)) = &next {
                failed.get_or_init(|| crate::error::chain(error.as_ref()));
            }
            next
        });
        Self(Some(noted))
    }

    /// Why the body failed, if it did.
    pub fn reason(&self) -> Option<&str> {
        self.0.as_ref()?.get().map(String::as_str)
    }
}
