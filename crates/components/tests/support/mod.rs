//! What the tests of several backends need.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub(crate) mod proxy;
pub(crate) mod server;
pub(crate) mod tls;

use std::sync::Arc;

use outrigger_component::{
    Catalog, ConfigurationStore, Conversation, CryptoProvider, InputBinding, LockStore, Metadata, Middleware,
    OutputBinding, Result, SecretStore, Setup, StateStore,
};
use outrigger_components::builtin;

fn setup(properties: &[(&str, &str)]) -> Setup {
    let owned = properties
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Setup {
        metadata: Metadata::new("under-test", owned).unwrap(),
        app_id: "app".to_owned(),
    }
}

macro_rules! builder {
    ($name:ident, $section:ident, $store:ident) => {
        pub(crate) async fn $name(
            kind: &str,
            version: &str,
            properties: &[(&str, &str)],
        ) -> Result<Arc<dyn $store>> {
            let catalog: Catalog = builtin();
            let entry = catalog.$section.find(kind, version).unwrap();
            entry.build(setup(properties)).await
        }
    };
}

builder!(state, state, StateStore);
builder!(secrets, secrets, SecretStore);
builder!(configuration, configuration, ConfigurationStore);
builder!(lock, lock, LockStore);
builder!(input, input_bindings, InputBinding);
builder!(output, output_bindings, OutputBinding);
builder!(crypto, crypto, CryptoProvider);
builder!(conversation, conversation, Conversation);
builder!(middleware, middleware, Middleware);
