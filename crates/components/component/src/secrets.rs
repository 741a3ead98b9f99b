//! Secret stores.

use std::collections::HashMap;

use async_trait::async_trait;

use crate::{Pairs, Result};

/// What a secret store can do. The names are shown in the metadata API.
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

/// A store of secrets by name. A secret is a map; one with a single value has it under its own name.
#[async_trait]
pub trait SecretStore: Send + Sync {
    /// The optional features that it supports.
    fn features(&self) -> &[Feature];

    /// A secret. Stores differ on absence: an error of kind `NotFound`, or an empty value.
    async fn get(&self, name: &str, metadata: &Pairs) -> Result<Pairs>;

    /// All secrets by name.
    async fn bulk_get(&self, metadata: &Pairs) -> Result<HashMap<String, Pairs>>;

    /// Whether the store answers.
    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    /// Ends what the store runs.
    async fn close(&self) {}
}
