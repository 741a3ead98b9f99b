//! Kubernetes: `secretstores.kubernetes`.

mod secrets;

use outrigger_component::Catalog;

/// Adds `secretstores.kubernetes` to the catalog.
pub fn add(catalog: &mut Catalog) {
    secrets::add(catalog);
}
