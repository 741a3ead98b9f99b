//! The properties of a component: secrets looked up, environment references and templates filled in.

use outrigger_component::{Pairs, SecretStore};
use outrigger_resources::{Component, NameValue, env_ref};
use uuid::Uuid;

use super::{Context, LOG};

/// The items of `spec.metadata` with every value in place. An item whose value cannot be found stays without one.
///
/// # Errors
/// What is wrong with a template.
pub(super) async fn resolve(
    component: &Component,
    secrets: Option<&dyn SecretStore>,
    context: &Context,
) -> Result<Vec<NameValue>, String> {
    let mut items = component.metadata.clone();
    match secrets {
        Some(store) => fill_secrets(&mut items, component, store).await,
        None if items.iter().any(|item| item.secret.is_some()) => tracing::warn!(
            target: LOG,
            "component {} has a secretKeyRef but names no secret store; set auth.secretStore",
            component.log_name()
        ),
        None => {}
    }
    for refused in env_ref::resolve(&mut items, &context.env_keys, |name| (context.env)(name)) {
        tracing::warn!(
            target: LOG,
            "component {}: environment variable {refused:?} may not be read by resources",
            component.log_name()
        );
    }
    for item in &mut items {
        if let Some(value) = &mut item.value
            && value.contains('{')
        {
            *value = expand(value, context)?;
        }
    }
    Ok(items)
}

async fn fill_secrets(items: &mut [NameValue], component: &Component, store: &dyn SecretStore) {
    let metadata = Pairs::from([("namespace".to_owned(), component.namespace.clone())]);
    for item in items {
        let Some(secret) = &item.secret else { continue };
        match store.get(&secret.name, &metadata).await {
            Ok(mut found) => match found.remove(secret.field()) {
                Some(value) => item.value = Some(value),
                None => tracing::error!(
                    target: LOG,
                    "component {}: the secret {} of {} has no field {}, so {} stays without value",
                    component.log_name(),
                    secret.name,
                    component.secret_store,
                    secret.field(),
                    item.name
                ),
            },
            Err(error) => tracing::error!(
                target: LOG,
                "component {}: error getting secret {} from {}, so {} stays without value: {error}",
                component.log_name(),
                secret.name,
                component.secret_store,
                item.name
            ),
        }
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
            context.namespace.as_deref().unwrap_or_default(),
            context.app_id
        )
    };
    if value.contains("{namespace}") {
        value = value.replace("{namespace}", &namespace());
    }
    Ok(value.replace("{appID}", &context.app_id))
}
