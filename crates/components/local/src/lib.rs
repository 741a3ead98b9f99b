//! Components without a client library: `state.in-memory`, `pubsub.in-memory`, `bindings.cron`,
//! `bindings.localstorage`, and secrets from a file and from the environment.

#[cfg(feature = "in-memory")]
mod broker;
#[cfg(feature = "cron")]
mod cron;
#[cfg(feature = "in-memory")]
mod in_memory;
#[cfg(feature = "local-secrets")]
mod local_env;
#[cfg(feature = "local-secrets")]
mod local_file;
#[cfg(feature = "local-storage")]
mod local_storage;

use outrigger_component::Catalog;

/// Adds the components enabled by features.
pub fn add(catalog: &mut Catalog) {
    #[cfg(feature = "cron")]
    cron::add(catalog);
    #[cfg(feature = "in-memory")]
    in_memory::add(catalog);
    #[cfg(feature = "in-memory")]
    broker::add(catalog);
    #[cfg(feature = "local-secrets")]
    local_env::add(catalog);
    #[cfg(feature = "local-secrets")]
    local_file::add(catalog);
    #[cfg(feature = "local-storage")]
    local_storage::add(catalog);
}
