//! Shared tools for tests of components: opening catalog components, real servers, broken connections,
//! certificates. For tests only: its functions panic where a test would fail.
#![allow(clippy::unwrap_used, reason = "tests")]

pub mod proxy;
pub mod registry;
pub mod server;
pub mod tls;

use std::sync::Arc;

use outrigger_component::{
    Catalog, ConfigurationStore, Conversation, CryptoProvider, InputBinding, LockStore, Metadata, Middleware,
    OutputBinding, Pairs, PubSub, Result, SecretStore, Setup, StateStore,
    bindings::{Invoke, Invoked},
};

/// The configuration of a component named `under-test`, for the app `app`.
pub fn setup(properties: &[(&str, &str)]) -> Setup {
    setup_for("app", properties)
}

/// The same for another app.
pub fn setup_for(app_id: &str, properties: &[(&str, &str)]) -> Setup {
    let owned = properties
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Setup {
        metadata: Metadata::new("under-test", owned).unwrap(),
        app_id: app_id.to_owned(),
    }
}

/// The components that a crate adds to the catalog.
pub struct Components(pub Catalog);

impl Components {
    /// The components added by `add`.
    pub fn of(add: fn(&mut Catalog)) -> Self {
        let mut catalog = Catalog::empty();
        add(&mut catalog);
        Self(catalog)
    }
}

macro_rules! openers {
    ($($name:ident: $section:ident, $store:ident;)*) => {
        impl Components {
            $(
                /// Opens a component of type `kind`.
                ///
                /// # Errors
                /// Those of the component.
                pub async fn $name(
                    self,
                    kind: &str,
                    version: &str,
                    properties: &[(&str, &str)],
                ) -> Result<Arc<dyn $store>> {
                    let entry = self.0.$section.find(kind, version).unwrap();
                    entry.build(setup(properties)).await
                }
            )*
        }
    };
}

openers! {
    state: state, StateStore;
    secrets: secrets, SecretStore;
    configuration: configuration, ConfigurationStore;
    lock: lock, LockStore;
    input: input_bindings, InputBinding;
    output: output_bindings, OutputBinding;
    crypto: crypto, CryptoProvider;
    conversation: conversation, Conversation;
    middleware: middleware, Middleware;
    pubsub: pubsub, PubSub;
}

/// The properties named in a component's startup error, one per mistake; empty if it names none.
pub fn named<T: ?Sized>(opened: Result<Arc<T>>) -> Vec<String> {
    let error = opened.err().unwrap();
    let each = error.each();
    each.map(|(_, property)| property.unwrap_or_default().to_owned())
        .collect()
}

/// A call of an output binding.
pub fn call(operation: &str, metadata: &[(&str, &str)], data: &str) -> Invoke {
    let metadata: Pairs = metadata
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Invoke {
        operation: operation.to_owned(),
        data: data.to_owned().into(),
        metadata,
    }
}

/// The response of an output binding, which must be UTF-8.
pub fn text(answer: Option<Invoked>) -> String {
    String::from_utf8(answer.unwrap().data.to_vec()).unwrap()
}
