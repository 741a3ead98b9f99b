//! PostgreSQL and compatible servers: `state.postgresql` v1 and v2 and `configuration.postgresql`, in Dapr's
//! layouts; `bindings.postgresql`.

mod binding;
mod cell;
mod configuration;
mod connector;
mod frames;
mod layout;
mod listener;
mod migration;
mod pool;
mod query;
mod session;
mod settings;
mod state;
mod sweep;

use std::sync::Arc;

use outrigger_component::{Catalog, ConfigurationStore, Entry, OutputBinding, StateStore, catalog::Version};

use self::layout::Generation;

/// Adds the components of this crate.
pub fn add(catalog: &mut Catalog) {
    for (generation, name, default) in [(Generation::V1, "v1", true), (Generation::V2, "v2", false)] {
        let version = Version::Named { name, default };
        catalog.state.add(Entry::new(
            &["postgresql", "postgres"],
            version,
            move |setup| async move {
                let store = state::open(&setup.metadata, generation).await?;
                Ok(Arc::new(store) as Arc<dyn StateStore>)
            },
        ));
    }
    catalog.configuration.add(Entry::new(
        &["postgresql", "postgres"],
        Version::Only,
        |setup| async move {
            let store = configuration::open(&setup.metadata).await?;
            Ok(Arc::new(store) as Arc<dyn ConfigurationStore>)
        },
    ));
    catalog.output_bindings.add(Entry::new(
        &["postgresql", "postgres"],
        Version::Only,
        |setup| async move {
            let binding = binding::open(&setup.metadata).await?;
            Ok(Arc::new(binding) as Arc<dyn OutputBinding>)
        },
    ));
}
