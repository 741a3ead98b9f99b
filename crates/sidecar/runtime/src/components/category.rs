//! What a block does for a category of components: open one, put it in, take it out, close it.

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
    /// What `spec.type` begins with: `state`.
    fn name(&self) -> &'static str;

    /// Starts a component: when this returns, it works.
    ///
    /// # Errors
    /// Why it does not.
    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>>;
}

/// Where components find the stores of their own secrets.
pub trait SecretStores: Send + Sync {
    /// The store of this name that works now.
    fn component(&self, name: &str) -> Option<Arc<dyn SecretStore>>;
}

/// A component that works and that no block has yet.
pub struct Opened {
    /// What the metadata API says it can do.
    pub(super) capabilities: Vec<&'static str>,
    parts: Vec<Part>,
}

/// What a component is for one block. Most are one thing; a binding may be an input and an output.
struct Part {
    register: Box<dyn FnOnce() -> Registration + Send>,
    close: BoxFuture<'static, ()>,
}

impl Opened {
    /// With nothing yet for a block; see [`Opened::part`].
    pub fn new(capabilities: Vec<&'static str>) -> Self {
        Self {
            capabilities,
            parts: Vec::new(),
        }
    }

    /// Adds what `register` puts into the block, in the place of one with the same name, and `close` ends.
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

    /// Puts the component into its block.
    pub(super) fn register(self) -> Vec<RegisteredPart> {
        let registered = self.parts.into_iter().map(|part| RegisteredPart {
            registration: (part.register)(),
            close: part.close,
        });
        registered.collect()
    }

    /// Closes a component that no block got.
    pub(super) async fn close(self) {
        join_all(self.parts.into_iter().map(|part| part.close)).await;
    }
}

/// What a component is in its block.
pub(super) struct RegisteredPart {
    registration: Registration,
    close: BoxFuture<'static, ()>,
}

impl RegisteredPart {
    /// Takes it out at once, unless another stands in its place by now. What comes back waits until nobody uses it any
    /// more, for `limit` at most, and closes it.
    pub(super) fn end(self, log_name: String, limit: Duration) -> impl Future<Output = ()> + Send {
        let users = self.registration.withdraw();
        async move {
            if !users.wait_until_released(limit).await && !limit.is_zero() {
                tracing::warn!(
                    target: LOG,
                    "component {log_name} is closed while calls still use it: they took longer than {limit:?}"
                );
            }
            self.close.await;
        }
    }
}
