//! HTTP endpoints and MCP servers: resolves their secrets and environment references before use.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use outrigger_blocks::invoke::EndpointSpec;
use outrigger_blocks::secrets::Secrets;
use outrigger_identity::Identity;
use outrigger_mcp::{McpServers, Surroundings};
use outrigger_resources::{HttpEndpoint, McpServer, NameValue, SecretKeyRef, Source, env_ref};
use outrigger_runtime::components::{SecretStores, fill_secrets, log_missing};
use tokio::sync::mpsc::Receiver;
use tokio_util::task::TaskTracker;

use super::{Env, LOG};
use crate::operator::CLUSTER_SECRETS;
use crate::reload::Resolve;

/// Timeout for the secrets of one resource.
const SECRETS_TIMEOUT: Duration = Duration::from_secs(5);

/// Resolves resources, those present at start and later ones.
pub(super) struct EndpointResolver {
    /// Prefixes of the variables that resources may read.
    pub(super) env_keys: String,
    pub(super) env: Env,
    pub(super) secrets: Arc<Secrets>,
}

impl EndpointResolver {
    /// Resolves HTTP endpoints.
    pub(super) fn endpoints(self: &Arc<Self>) -> Resolve {
        let resolver = Arc::clone(self);
        Arc::new(move |endpoint| {
            let resolver = Arc::clone(&resolver);
            async move { resolver.endpoint(endpoint).await }.boxed()
        })
    }

    /// No MCP servers yet. The receiver gets the failure that must end the sidecar.
    pub(super) fn mcp_servers(
        self: &Arc<Self>,
        identity: Option<Identity>,
        kubernetes: bool,
        max_body: Option<usize>,
    ) -> (Arc<McpServers>, Receiver<String>) {
        let (resolver, secrets) = (Arc::clone(self), Arc::clone(&self.secrets));
        McpServers::new(Surroundings {
            resolve: Arc::new(move |server| {
                let resolver = Arc::clone(&resolver);
                async move { resolver.mcp_server(server).await }.boxed()
            }),
            secret: Arc::new(move |store, namespace, secret| {
                secret_of(Arc::clone(&secrets), store, namespace, secret).boxed()
            }),
            identity,
            kubernetes,
            max_output: max_body.map_or(usize::MAX, |max_body| max_body / 4 * 3),
            tasks: TaskTracker::new(),
        })
    }

    async fn mcp_server(&self, mut server: McpServer) -> McpServer {
        let store = server.endpoint.secret_store().to_owned();
        let of = Owner {
            kind: "MCPServer",
            name: &server.name,
            namespace: &server.namespace,
            store: &store,
            source: &server.source,
        };
        self.fill(server.endpoint.items_mut(), &of).await;
        server
    }

    async fn endpoint(&self, mut endpoint: HttpEndpoint) -> EndpointSpec {
        let count = endpoint.headers.len();
        let mut items = std::mem::take(&mut endpoint.headers);
        let tls = endpoint.tls.take().unwrap_or_default();
        items.extend(tls.documents().cloned());
        let of = Owner {
            kind: "http endpoint",
            name: &endpoint.name,
            namespace: &endpoint.namespace,
            store: &endpoint.secret_store,
            source: &endpoint.source,
        };
        self.fill(&mut items, &of).await;
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
    async fn fill(&self, items: &mut [NameValue], of: &Owner<'_>) {
        let Owner {
            kind,
            name,
            namespace,
            store,
            source,
        } = of;
        let opened = self.secrets.component(store);
        let filling = fill_secrets(items, namespace, store, opened.as_deref());
        match tokio::time::timeout(SECRETS_TIMEOUT, filling).await {
            Ok(missing) => log_missing(&missing, source, kind, name),
            Err(_) => tracing::error!(
                target: LOG,
                "{source}: {kind} {name}: {store} did not answer within {SECRETS_TIMEOUT:?}; the {kind} is used without \
                 the missing secrets"
            ),
        }
        for unresolved in env_ref::resolve(items, &self.env_keys, |name| (self.env)(name)) {
            tracing::warn!(target: LOG, "{source}: {kind} {name}: {unresolved}");
        }
    }
}

/// The resource that items belong to.
struct Owner<'a> {
    kind: &'static str,
    name: &'a str,
    namespace: &'a str,
    /// The store of its secrets; may be empty.
    store: &'a str,
    source: &'a Source,
}

/// The secret of an OAuth 2.0 client. Without a named store it is a secret of the cluster.
async fn secret_of(
    secrets: Arc<Secrets>,
    store: String,
    namespace: String,
    secret: SecretKeyRef,
) -> Result<String, String> {
    let store = if store.is_empty() { CLUSTER_SECRETS } else { &store };
    let mut item = [NameValue {
        secret: Some(secret),
        ..NameValue::default()
    }];
    let opened = secrets.component(store);
    let filling = fill_secrets(&mut item, &namespace, store, opened.as_deref());
    match tokio::time::timeout(SECRETS_TIMEOUT, filling).await {
        Ok(missing) => match missing.into_iter().next() {
            Some(missing) => Err(missing.cause().to_owned()),
            None => Ok(item[0].text().to_owned()),
        },
        Err(_) => Err(format!("{store} did not answer within {SECRETS_TIMEOUT:?}")),
    }
}
