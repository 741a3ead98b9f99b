//! SQLite: `state.sqlite` in Dapr's layout, and the embedded `lock.sqlite`, `configuration.sqlite` and
//! `pubsub.sqlite`.
//!
//! Several sidecars may share a file, with WAL, a busy timeout and immediate transactions. One thread commits
//! queued writes in batches; two threads read.

mod broker;
mod configuration;
mod lock;
mod migration;
mod pool;
mod settings;
mod state;
mod sweep;

use std::sync::Arc;

use outrigger_component::{
    Catalog, ConfigurationStore, Entry, LockStore, PubSub, StateStore, catalog::Version,
};

/// Adds the components of this crate.
pub fn add(catalog: &mut Catalog) {
    catalog.state.add(Entry::new(
        &["sqlite", "sqlite3"],
        Version::Only,
        |setup| async move {
            let store = state::open(&setup.metadata).await?;
            Ok(Arc::new(store) as Arc<dyn StateStore>)
        },
    ));
    catalog
        .lock
        .add(Entry::new(&["sqlite"], Version::Only, |setup| async move {
            let store = lock::open(&setup.metadata).await?;
            Ok(Arc::new(store) as Arc<dyn LockStore>)
        }));
    catalog
        .configuration
        .add(Entry::new(&["sqlite"], Version::Only, |setup| async move {
            let store = configuration::open(&setup.metadata).await?;
            Ok(Arc::new(store) as Arc<dyn ConfigurationStore>)
        }));
    catalog
        .pubsub
        .add(Entry::new(&["sqlite"], Version::Only, |setup| async move {
            let broker = broker::open(&setup).await?;
            Ok(Arc::new(broker) as Arc<dyn PubSub>)
        }));
}
