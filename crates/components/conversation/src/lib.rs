//! `conversation.*`: large language models over the two protocols of their providers.

mod anthropic;
mod cache;
mod echo;
mod openai;
mod remote;

use outrigger_component::Catalog;

/// Adds the components of this crate.
pub fn add(catalog: &mut Catalog) {
    echo::add(catalog);
    openai::add(catalog);
    anthropic::add(catalog);
}
