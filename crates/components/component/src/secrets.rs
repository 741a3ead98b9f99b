//! Secret stores.

use std::collections::HashMap;

use async_trait::async_trait;

use crate::{Pairs, Result};

/// Optional features of a secret store, as listed by the metadata API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// A secret may have several keys.
    MultipleKeyValues,
}

impl Feature {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::MultipleKeyValues => "MULTIPLE_KEY_VALUES_PER_SECRET",
        }
    }
}

/// A store of secrets by name. A secret is a map; a single value is stored under the secret's own name.
#[async_trait]
pub trait SecretStore: Send + Sync {
    /// Supported optional features.
    fn features(&self) -> &[Feature];

    /// A secret. If it does not exist, stores return either `NotFound` or an empty value.
    async fn get(&self, name: &str, metadata: &Pairs) -> Result<Pairs>;

    /// All secrets by name.
    async fn bulk_get(&self, metadata: &Pairs) -> Result<HashMap<String, Pairs>>;

    /// Checks that the store responds.
    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    /// Stops the store's tasks.
    async fn close(&self) {}
}
