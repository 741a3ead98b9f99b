//! Redis and compatible servers: `state.redis`, `lock.redis`, `configuration.redis`, `bindings.redis` and
//! `pubsub.redis` in Dapr's layouts.
//!
//! One multiplexed connection carries all commands, to a single server, a cluster, or a master found through
//! sentinels.

mod answers;
mod binding;
mod broker;
mod cluster;
mod configuration;
mod link;
mod lock;
mod script;
mod server;
mod settings;
mod state;
mod tls;

use std::sync::Arc;

use outrigger_component::{
    Catalog, ConfigurationStore, Entry, LockStore, OutputBinding, PubSub, StateStore, catalog::Version,
};

/// Adds the components of this crate.
pub fn add(catalog: &mut Catalog) {
    catalog
        .state
        .add(Entry::new(&["redis"], Version::Only, |setup| async move {
            let store = state::open(&setup.metadata).await?;
            Ok(Arc::new(store) as Arc<dyn StateStore>)
        }));
    catalog
        .lock
        .add(Entry::new(&["redis"], Version::Only, |setup| async move {
            let store = lock::open(&setup.metadata).await?;
            Ok(Arc::new(store) as Arc<dyn LockStore>)
        }));
    catalog
        .configuration
        .add(Entry::new(&["redis"], Version::Only, |setup| async move {
            let store = configuration::open(&setup.metadata).await?;
            Ok(Arc::new(store) as Arc<dyn ConfigurationStore>)
        }));
    catalog
        .output_bindings
        .add(Entry::new(&["redis"], Version::Only, |setup| async move {
            let binding = binding::open(&setup.metadata).await?;
            Ok(Arc::new(binding) as Arc<dyn OutputBinding>)
        }));
    catalog
        .pubsub
        .add(Entry::new(&["redis"], Version::Only, |setup| async move {
            let broker = broker::open(&setup).await?;
            Ok(Arc::new(broker) as Arc<dyn PubSub>)
        }));
}
