//! The interface of blocks to components of a category: open, register, remove, close.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use outrigger_component::SecretStore;

use super::LOG;
use super::open::{OpenError, Opening};
use crate::registry::Registration;

/// A category of components, implemented by the block that uses them.
pub trait Category: Send + Sync {
    /// Prefix of `spec.type`: `state`.
    fn name(&self) -> &'static str;

    /// Starts a component; it is ready when this returns.
    ///
    /// # Errors
    /// Why it failed.
    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>>;
}

/// Lookup of secret stores for components.
pub trait SecretStores: Send + Sync {
    /// The running store with this name.
    fn component(&self, name: &str) -> Option<Arc<dyn SecretStore>>;
}

/// A ready component that is not registered yet.
pub struct Opened {
    /// Its capabilities in the metadata API.
    pub(super) capabilities: Vec<&'static str>,
    parts: Vec<Part>,
}

/// The part of a component for one block. Most components have one; a binding may have input and output.
struct Part {
    register: Box<dyn FnOnce() -> Registration + Send>,
    close: BoxFuture<'static, ()>,
}

impl Opened {
    /// A component without parts; see [`Opened::part`].
    pub fn new(capabilities: Vec<&'static str>) -> Self {
        Self {
            capabilities,
            parts: Vec::new(),
        }
    }

    /// Adds a part: `register` adds or replaces it in its block, `close` closes it.
    #[must_use]
    pub fn part(
        mut self,
        register: impl FnOnce() -> Registration + Send + 'static,
        close: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        self.parts.push(Part {
            register: Box::new(register),
            close: Box::pin(close),
        });
        self
    }

    /// Registers all parts.
    pub(super) fn register(self) -> Vec<RegisteredPart> {
        let registered = self.parts.into_iter().map(|part| RegisteredPart {
            registration: (part.register)(),
            close: part.close,
        });
        registered.collect()
    }

    /// Closes a component that was not registered.
    pub(super) async fn close(self) {
        join_all(self.parts.into_iter().map(|part| part.close)).await;
    }
}

/// A registered part.
pub(super) struct RegisteredPart {
    registration: Registration,
    close: BoxFuture<'static, ()>,
}

impl RegisteredPart {
    /// Removes the part at once, unless it has been replaced. The returned future waits until it is unused,
    /// at most `limit`, and closes it.
    pub(super) fn end(self, log_name: String, limit: Duration) -> impl Future<Output = ()> + Send {
        let users = self.registration.withdraw();
        async move {
            if !users.wait_until_released(limit).await && !limit.is_zero() {
                tracing::warn!(
                    target: LOG,
                    "component {log_name} closed with calls in flight after {limit:?}"
                );
            }
            self.close.await;
        }
    }
}
