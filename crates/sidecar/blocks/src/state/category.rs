//! Opens state stores from Component resources, with key prefix and encryption.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_component::state::Feature;
use outrigger_resources::NameValue;
use outrigger_resources::value::truthy;
use outrigger_runtime::components::{
    Category, DEFAULT_NAMESPACE, OpenError, Opened, Opening, Properties, Step,
};

use super::outbox::Settings;
use super::{Cipher, Keys, NamedKey, State};

const LOG: &str = "dapr.runtime.processor";

impl Category for State {
    fn name(&self) -> &'static str {
        "state"
    }

    fn open<'a>(self: Arc<Self>, opening: &'a Opening<'_>) -> BoxFuture<'a, Result<Opened, OpenError>> {
        Box::pin(async move {
            let entry = opening.find(&opening.catalog().state)?;
            let properties = opening.properties().await?;
            let cipher = cipher(&properties).map_err(|error| opening.failed(Step::Create, error))?;
            let name = opening.name().to_owned();
            if cipher.is_some() {
                tracing::info!(target: LOG, "Automatic encryption enabled for state store {name}");
            }
            let namespace = opening.namespace().filter(|namespace| !namespace.is_empty());
            let outbox = Settings::read(
                &properties,
                namespace.unwrap_or(DEFAULT_NAMESPACE),
                opening.app_id(),
            );
            let for_actors = is_for_actors(&properties);
            let setup = opening.setup(properties)?;
            let prefix = setup.metadata.text(&["keyPrefix"]);
            let keys = Keys::parse(prefix, &name, opening.app_id(), opening.namespace())
                .map_err(|error| opening.bad_key_prefix(error))?;
            let store = opening.build(&entry, setup).await?;
            if for_actors && let Some(why) = store.splits_transactions() {
                tracing::warn!(
                    target: LOG,
                    "state store {name} keeps actors and workflows, but a crash may leave a change of several keys \
                     half stored: {why}"
                );
            }
            let (closing, hidden) = (Arc::clone(&store), opening.hidden());
            Ok(Opened::new(capabilities(store.features())).part(
                move || self.insert(&name, store, keys, cipher, outbox, hidden),
                async move { closing.close().await },
            ))
        })
    }
}

/// The capabilities of a store in the metadata API.
fn capabilities(features: &[Feature]) -> Vec<&'static str> {
    let mut names: Vec<_> = features.iter().map(|feature| feature.name()).collect();
    let has = |feature| features.contains(&feature);
    if has(Feature::Etag) && has(Feature::Transactional) {
        names.push("ACTOR");
    }
    names
}

/// Whether this is the actor state store.
fn is_for_actors(properties: &Properties) -> bool {
    let marks = |item: &&NameValue| item.name.eq_ignore_ascii_case("actorStateStore");
    let mark = properties.items.iter().find(marks);
    mark.is_some_and(|item| truthy(item.text()))
}

/// The cipher of a state store, if it has a primary key. A configured key that cannot be read is an error,
/// because values would otherwise be written unencrypted.
fn cipher(properties: &Properties) -> Result<Option<Cipher>, String> {
    let primary = encryption_key(properties, "primaryEncryptionKey")?;
    let secondary = encryption_key(properties, "secondaryEncryptionKey")?;
    Ok(primary.map(|primary| Cipher::new(primary, secondary)))
}

fn encryption_key(properties: &Properties, name: &str) -> Result<Option<NamedKey>, String> {
    let Some(item) = properties.items.iter().find(|item| item.name == name) else {
        return Ok(None);
    };
    let failed = |cause: &dyn fmt::Display| format!("failed to extract encryption key: {name}: {cause}");
    let Some(secret) = &item.secret else {
        return Err(failed(
            &"the key must come from a secret; use secretKeyRef instead of value",
        ));
    };
    if let Some(cause) = properties.cause(name) {
        return Err(failed(&cause));
    }
    NamedKey::parse(&secret.name, item.text())
        .map(Some)
        .map_err(|error| failed(&error))
}
