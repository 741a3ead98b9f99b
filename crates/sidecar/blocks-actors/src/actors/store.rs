//! Hosting of actors while there is an actor state store, which hot reload can add, replace and remove.

use std::sync::{Arc, PoisonError, Weak};

use futures::future::BoxFuture;
use outrigger_runtime::components::ActorHost;

use super::host::HostedType;
use super::{Actors, LOG};

impl Actors {
    /// Hosts actors only while there is an actor state store.
    pub fn follow_store(self: &Arc<Self>) {
        let is_dormant = self.with.components.actor_store().is_none();
        self.change_types(|known| known.is_dormant = is_dormant);
        let host: Weak<Self> = Arc::downgrade(self);
        self.with.components.set_actor_host(host);
    }

    /// The same type without actors.
    fn again(&self, kind: &HostedType) -> HostedType {
        let mut again = self.hosted_type(&kind.name, kind.settings);
        let internal = kind.internal.as_ref();
        again.internal = internal.map(|internal| internal.again(self.ended.child_token()));
        again
    }

    /// Logs that registered types are not hosted.
    pub(super) fn log_dormant(&self) {
        let known = self.known_types.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_dormant {
            tracing::warn!(
                target: LOG,
                "No actor state store is configured: actor hosting disabled until one is configured"
            );
        }
    }
}

impl ActorHost for Actors {
    fn store_runs(&self) {
        self.change_types(|known| known.is_dormant = false);
    }

    fn store_ends(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let going = self.change_types(|known| known.sleep(|kind| self.again(kind)));
            going.iter().for_each(|kind| kind.end());
            self.end_types(going).await;
            self.log_dormant();
        })
    }
}
