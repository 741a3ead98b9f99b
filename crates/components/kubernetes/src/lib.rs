//! Kubernetes: `secretstores.kubernetes` and `configuration.kubernetes`.

mod configuration;
mod secrets;

use outrigger_component::Catalog;

/// Adds `secretstores.kubernetes` and `configuration.kubernetes` to the catalog.
pub fn add(catalog: &mut Catalog) {
    configuration::add(catalog);
    secrets::add(catalog);
}
