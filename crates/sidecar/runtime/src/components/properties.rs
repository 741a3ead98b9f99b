//! The properties of components and endpoints, with secrets, environment references and templates resolved.

use std::collections::BTreeMap;

use outrigger_component::{Pairs, SecretStore};
use outrigger_resources::{Component, NameValue, SecretKeyRef, Source, env_ref};
use uuid::Uuid;

use super::{Context, DEFAULT_NAMESPACE, LOG};

/// The items of `spec.metadata`.
pub struct Properties {
    /// All items; unresolved ones have no value.
    pub items: Vec<NameValue>,
    /// Items whose secret was not found.
    pub(super) missing: Vec<MissingSecret>,
}

/// An item whose secret was not found.
pub struct MissingSecret {
    item: String,
    cause: String,
}

impl MissingSecret {
    /// Why it is missing.
    pub fn cause(&self) -> &str {
        &self.cause
    }
}

impl Properties {
    /// Properties that are complete and have no secret references.
    pub fn found(items: Vec<NameValue>) -> Self {
        Self {
            items,
            missing: Vec::new(),
        }
    }

    /// Why an item has no value, if its secret is missing.
    pub fn cause(&self, name: &str) -> Option<&str> {
        let missing = self.missing.iter().find(|missing| missing.item == name);
        missing.map(|missing| missing.cause.as_str())
    }
}

/// Resolves the properties of a component; unresolved ones are logged.
///
/// # Errors
/// An invalid template.
pub(super) async fn resolve(
    component: &Component,
    secrets: Option<&dyn SecretStore>,
    context: &Context,
) -> Result<Properties, String> {
    let mut items = component.metadata.clone();
    let named = component.secret_store.as_str();
    let missing = fill_secrets(&mut items, &component.namespace, named, secrets).await;
    log_missing(&missing, &component.source, "component", &component.log_name());
    for unresolved in env_ref::resolve(&mut items, &context.env_keys, |name| (context.env)(name)) {
        tracing::warn!(
            target: LOG,
            "{}: component {}: {unresolved}",
            component.source.of(&unresolved.item),
            component.log_name()
        );
    }
    for text in repeated(component) {
        tracing::warn!(target: LOG, "{text}");
    }
    for item in &mut items {
        if let Some(value) = &mut item.value
            && value.contains('{')
        {
            *value = expand(value, context)?;
        }
    }
    Ok(Properties { items, missing })
}

/// Warnings about properties with the same name.
fn repeated(component: &Component) -> Vec<String> {
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for item in &component.metadata {
        *times.entry(&item.name).or_default() += 1;
    }
    let repeated = times.into_iter().filter(|(_, times)| *times > 1);
    repeated
        .map(|(name, times)| {
            format!(
                "{}: component {}: property {name} is set {times} times, and the last one, here, wins; remove the \
                 others",
                component.source.of(name),
                component.log_name()
            )
        })
        .collect()
}

/// Looks up the secrets of a resource's items in `store`, which the resource calls `named`. If it names no
/// store, items that came with a value are not missing: the operator of a cluster resolves secrets itself.
pub async fn fill_secrets(
    items: &mut [NameValue],
    namespace: &str,
    named: &str,
    store: Option<&dyn SecretStore>,
) -> Vec<MissingSecret> {
    let metadata = Pairs::from([("namespace".to_owned(), namespace.to_owned())]);
    let mut missing = Vec::new();
    for item in items {
        let Some(secret) = &item.secret else { continue };
        if named.is_empty() && item.value.as_ref().is_some_and(|value| !value.is_empty()) {
            continue;
        }
        match look_up(secret, &metadata, named, store).await {
            Ok(value) => item.value = Some(value),
            Err(cause) => missing.push(MissingSecret {
                item: item.name.clone(),
                cause,
            }),
        }
    }
    missing
}

async fn look_up(
    secret: &SecretKeyRef,
    metadata: &Pairs,
    named: &str,
    store: Option<&dyn SecretStore>,
) -> Result<String, String> {
    let (name, field) = (&secret.name, secret.field());
    let Some(store) = store else {
        return Err(match named {
            "" => format!(
                "it has a secretKeyRef, but no secret store is named; set auth.secretStore, or in a cluster create \
                 the secret {name} with the field {field}"
            ),
            _ => format!(
                "it references a secret store that isn't loaded: {named}; add that store, or correct \
                 auth.secretStore"
            ),
        });
    };
    let found = store.get(name, metadata).await;
    let mut found = found.map_err(|error| {
        format!(
            "error getting secret {name} from {named}: {error}; check that the store can be reached and has this \
             secret"
        )
    })?;
    let value = found.remove(field).filter(|value| !value.is_empty());
    value.ok_or_else(|| {
        format!(
            "the secret {name} of {named} has no field {field} or an empty one; fill it, or correct secretKeyRef.key"
        )
    })
}

/// Logs the items of a resource without a value, with the resource's file and line.
pub fn log_missing(missing: &[MissingSecret], place: &Source, kind: &str, resource: &str) {
    for MissingSecret { item, cause } in missing {
        tracing::error!(
            target: LOG,
            "{place}: {kind} {resource}: {item} is left without the value of its secret: {cause}"
        );
    }
}

fn expand(value: &str, context: &Context) -> Result<String, String> {
    let mut value = value.to_owned();
    while value.contains("{uuid}") {
        value = value.replacen("{uuid}", &Uuid::new_v4().to_string(), 1);
    }
    if value.contains("{podName}") {
        let pod = (context.env)("POD_NAME").filter(|pod| !pod.is_empty());
        let pod =
            pod.ok_or("{podName} is used but the variable POD_NAME is not set; set it or write the name")?;
        value = value.replace("{podName}", &pod);
    }
    let namespace = || {
        format!(
            "{}.{}",
            context.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE),
            context.app_id
        )
    };
    if value.contains("{namespace}") {
        value = value.replace("{namespace}", &namespace());
    }
    Ok(value.replace("{appID}", &context.app_id))
}

#[cfg(test)]
mod tests {
    use outrigger_resources::load::text;

    use super::*;

    #[test]
    fn warns_about_repeated_property() {
        let yaml = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: s\nspec:\n  type: state.redis\n  \
                    version: v1\n  metadata:\n  - name: redisHost\n    value: a\n  - name: redisDB\n    value: b\n  \
                    - name: redisHost\n    value: c\n";
        let component = text(yaml, "app").unwrap().components.remove(0);
        assert_eq!(
            repeated(&component),
            [
                ":13: component s (state.redis/v1): property redisHost is set 2 times, and the last one, here, wins; \
                 remove the others"
            ]
        );
        assert_eq!(component.property("redisHost"), Some("c"));
    }
}
