//! HTTPEndpoint resources: resolves their secrets and environment references before use.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use outrigger_blocks::invoke::EndpointSpec;
use outrigger_blocks::secrets::Secrets;
use outrigger_resources::{HttpEndpoint, NameValue, env_ref};
use outrigger_runtime::components::{SecretStores, fill_secrets, log_missing};

use super::{Env, LOG};
use crate::reload::Resolve;

/// Timeout for the secrets of one endpoint.
const SECRETS_TIMEOUT: Duration = Duration::from_secs(5);

/// Resolves endpoints, those present at start and later ones.
pub(super) struct EndpointResolver {
    /// Prefixes of the variables that resources may read.
    pub(super) env_keys: String,
    pub(super) env: Env,
    pub(super) secrets: Arc<Secrets>,
}

impl EndpointResolver {
    /// The resolver as a function.
    pub(super) fn into_resolve(self) -> Resolve {
        let resolver = Arc::new(self);
        Arc::new(move |endpoint| {
            let resolver = Arc::clone(&resolver);
            async move { resolver.one(endpoint).await }.boxed()
        })
    }

    async fn one(&self, mut endpoint: HttpEndpoint) -> EndpointSpec {
        let count = endpoint.headers.len();
        let mut items = std::mem::take(&mut endpoint.headers);
        let tls = endpoint.tls.take().unwrap_or_default();
        items.extend(tls.documents().cloned());
        self.fill(&mut items, &endpoint).await;
        let documents = items.split_off(count);
        let document = |wanted: &Option<NameValue>| {
            let name = &wanted.as_ref()?.name;
            let found = documents.iter().find(|item| item.name == *name);
            found
                .and_then(|item| item.value.clone())
                .filter(|text| !text.is_empty())
        };
        EndpointSpec {
            headers: items
                .into_iter()
                .filter_map(|h| Some((h.name, h.value?)))
                .collect(),
            root_ca: document(&tls.root_ca),
            client: document(&tls.certificate).zip(document(&tls.private_key)),
            name: endpoint.name,
            base_url: endpoint.base_url,
        }
    }

    /// Inserts the values of secrets and variables; logs missing ones.
    async fn fill(&self, items: &mut [NameValue], endpoint: &HttpEndpoint) {
        let named = endpoint.secret_store.as_str();
        let store = self.secrets.component(named);
        let filling = fill_secrets(items, &endpoint.namespace, named, store.as_deref());
        match tokio::time::timeout(SECRETS_TIMEOUT, filling).await {
            Ok(missing) => log_missing(&missing, &endpoint.source, "http endpoint", &endpoint.name),
            Err(_) => tracing::error!(
                target: LOG,
                "{}: http endpoint {}: {named} did not answer within {SECRETS_TIMEOUT:?}; the endpoint is used without the \
                 missing secrets",
                endpoint.source,
                endpoint.name
            ),
        }
        for unresolved in env_ref::resolve(items, &self.env_keys, |name| (self.env)(name)) {
            tracing::warn!(
                target: LOG,
                "{}: http endpoint {}: {unresolved}",
                endpoint.source,
                endpoint.name
            );
        }
    }
}
