//! Inserts secrets of the cluster into manifests, because the sidecars of apps may not read them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_kube::{ApiError, Client, Kind};
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::metrics::Metrics;

/// The secret store served by the operator; the default if a resource names none.
const STORE: &str = "kubernetes";
/// How long a secret is cached for callers that accept its age.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// How long a failure is cached, so that waiting callers do not retry one after another.
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// Maximum age of secrets at the start of a call: sidecars that start together request the same ones.
const CALL_AGE: Duration = Duration::from_secs(1);
/// Maximum number of cached secrets.
const MAX_CACHED: usize = 4096;

/// Where a kind of resource refers to secrets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SecretFields {
    /// Where the store is named.
    stores: &'static [&'static str],
    /// Lists of items with a `secretKeyRef`.
    lists: &'static [&'static str],
    items: &'static [&'static str],
    /// Whether the value is inserted verbatim instead of in base64; then a key is required.
    plain: bool,
}

pub(crate) const NONE: SecretFields = SecretFields {
    stores: &["/auth/secretStore"],
    lists: &[],
    items: &[],
    plain: false,
};
pub(crate) const COMPONENT: SecretFields = SecretFields {
    lists: &["/spec/metadata"],
    ..NONE
};
pub(crate) const CONFIGURATION: SecretFields = SecretFields {
    lists: &["/spec/tracing/otel/headers"],
    plain: true,
    ..NONE
};
pub(crate) const HTTP_ENDPOINT: SecretFields = SecretFields {
    lists: &["/spec/headers"],
    items: &[
        "/spec/clientTLS/certificate",
        "/spec/clientTLS/privateKey",
        "/spec/clientTLS/rootCA",
    ],
    ..NONE
};

pub(crate) const MCP_SERVER: SecretFields = SecretFields {
    lists: &[
        "/spec/endpoint/streamableHTTP/headers",
        "/spec/endpoint/sse/headers",
        "/spec/endpoint/stdio/env",
    ],
    stores: &[
        "/spec/endpoint/streamableHTTP/auth/secretStore",
        "/spec/endpoint/sse/auth/secretStore",
    ],
    ..NONE
};

/// Why secrets cannot be inserted into a manifest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("the secret {namespace}/{name} cannot be read: {cause}")]
    Unreadable {
        namespace: String,
        name: String,
        cause: ApiError,
    },
    #[error("the reference to the secret {0} has no key: add secretKeyRef.key")]
    NoKey(String),
    #[error("the manifest cannot be read: {0}")]
    Manifest(#[from] serde_json::Error),
}

impl SecretError {
    /// Whether the failure is temporary: the API failed, rather than that the secret does not exist.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Unreadable { cause, .. } if !cause.is_not_found() && !cause.is_forbidden())
    }
}

/// The values of a secret by key.
type Values = BTreeMap<String, Zeroizing<Vec<u8>>>;
/// The secret, or the failure to read it and its time.
type Answer = Result<Arc<Values>, (ApiError, Instant)>;

/// The required freshness of a cached secret.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NotBefore {
    /// Minimum time of the read of its values.
    read: Instant,
    /// Minimum time of a cached failure.
    failed: Instant,
}

impl NotBefore {
    /// For a call that begins now: a client that creates a secret before the call must see it.
    pub(crate) fn call() -> Self {
        let now = Instant::now();
        Self {
            read: now.checked_sub(CALL_AGE).unwrap_or(now),
            failed: now,
        }
    }

    /// For a change learned at this time.
    pub(crate) fn change(at: Instant) -> Self {
        Self { read: at, failed: at }
    }
}

/// Whether a manifest refers to secrets of the cluster.
pub(crate) fn needed(fields: SecretFields, manifest: &Value) -> bool {
    let mut stores = fields
        .stores
        .iter()
        .filter_map(|place| manifest.pointer(place)?.as_str());
    stores.all(|store| store.is_empty() || store == STORE) && references(fields, manifest).next().is_some()
}

fn references(fields: SecretFields, manifest: &Value) -> impl Iterator<Item = &Value> {
    let lists = fields
        .lists
        .iter()
        .filter_map(|place| manifest.pointer(place)?.as_array())
        .flatten();
    let items = fields.items.iter().filter_map(|place| manifest.pointer(place));
    lists.chain(items).filter(|item| name_of(item).is_some())
}

fn name_of(item: &Value) -> Option<&str> {
    item["secretKeyRef"]["name"]
        .as_str()
        .filter(|name| !name.is_empty())
}

/// Inserts the referenced value of `secret` into an item.
fn put(item: &mut Value, plain: bool, secret: &Values) -> Result<(), SecretError> {
    let Some(name) = name_of(item) else {
        return Ok(());
    };
    let key = match item["secretKeyRef"]["key"].as_str().filter(|key| !key.is_empty()) {
        Some(key) => key,
        None if plain => return Err(SecretError::NoKey(name.to_owned())),
        None => name,
    };
    // Without that key the item is not changed.
    if let Some(value) = secret.get(key) {
        let text = match plain {
            true => String::from_utf8_lossy(value).into_owned(),
            false => STANDARD.encode(value),
        };
        item["value"] = text.into();
    }
    Ok(())
}

/// Reads secrets.
#[derive(Debug)]
pub(crate) struct Secrets {
    client: Client,
    metrics: Arc<Metrics>,
    kept: Mutex<HashMap<(String, String), CachedSecret>>,
}

#[derive(Debug)]
struct CachedSecret {
    /// Lower bound of the read's time.
    since: Instant,
    answer: Arc<OnceCell<Answer>>,
}

impl CachedSecret {
    fn is_kept(&self, now: Instant) -> bool {
        match self.answer.get() {
            Some(Err((_, failed))) => now.duration_since(*failed) < FAILURE_TTL,
            Some(Ok(_)) | None => now.duration_since(self.since) < CACHE_TTL,
        }
    }

    fn is_older(&self, than: NotBefore) -> bool {
        match self.answer.get() {
            Some(Err((_, failed))) => *failed < than.failed,
            Some(Ok(_)) | None => self.since < than.read,
        }
    }
}

#[derive(serde::Deserialize)]
struct Secret {
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

impl Secrets {
    pub(crate) fn new(client: Client, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            metrics,
            kept: Mutex::default(),
        }
    }

    /// A manifest with its secrets, as of `not_before` or later.
    ///
    /// # Errors
    /// [`SecretError`].
    pub(crate) async fn reveal(
        &self,
        fields: SecretFields,
        namespace: &str,
        manifest: &[u8],
        not_before: NotBefore,
    ) -> Result<Vec<u8>, SecretError> {
        let mut manifest: Value = serde_json::from_slice(manifest)?;
        let names: Vec<String> = references(fields, &manifest)
            .filter_map(name_of)
            .map(str::to_owned)
            .collect();
        let mut secrets = HashMap::new();
        for name in names {
            if let Entry::Vacant(entry) = secrets.entry(name) {
                let values = self.read(namespace, entry.key(), not_before).await?;
                entry.insert(values);
            }
        }
        let mut fill = |item: &mut Value| match name_of(item).and_then(|name| secrets.get(name)) {
            Some(values) => put(item, fields.plain, values),
            None => Ok(()),
        };
        for place in fields.lists {
            let items = manifest.pointer_mut(place).and_then(Value::as_array_mut);
            items.into_iter().flatten().try_for_each(&mut fill)?;
        }
        for place in fields.items {
            manifest.pointer_mut(place).map_or(Ok(()), &mut fill)?;
        }
        Ok(serde_json::to_vec(&manifest)?)
    }

    /// Reads a secret. Concurrent callers for the same secret share one response, even if it is an error.
    async fn read(
        &self,
        namespace: &str,
        name: &str,
        not_before: NotBefore,
    ) -> Result<Arc<Values>, SecretError> {
        let cell = self.cell(namespace, name, not_before);
        let answer = cell.get_or_init(|| async {
            self.ask(namespace, name).await.map_err(|cause| {
                self.metrics.secret_unread();
                (cause, Instant::now())
            })
        });
        answer
            .await
            .clone()
            .map_err(|(cause, _)| SecretError::Unreadable {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                cause,
            })
    }

    async fn ask(&self, namespace: &str, name: &str) -> Result<Arc<Values>, ApiError> {
        let secret: Secret = self.client.find(Kind::SECRETS, namespace, name).await?;
        let decode = |text: String| {
            let text = Zeroizing::new(text);
            STANDARD.decode(text.as_bytes()).ok().map(Zeroizing::new)
        };
        let values = secret.data.unwrap_or_default().into_iter();
        let values = values.filter_map(|(key, text)| Some((key, decode(text)?)));
        Ok(Arc::new(values.collect()))
    }

    fn cell(&self, namespace: &str, name: &str, not_before: NotBefore) -> Arc<OnceCell<Answer>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        kept.retain(|_, kept| kept.is_kept(now));
        if kept.len() >= MAX_CACHED {
            kept.clear();
        }
        let key = (namespace.to_owned(), name.to_owned());
        let fresh = || CachedSecret {
            since: now,
            answer: Arc::default(),
        };
        let entry = kept.entry(key).or_insert_with(fresh);
        if entry.is_older(not_before) {
            *entry = fresh();
        }
        Arc::clone(&entry.answer)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use outrigger_kube::testing::Server;
    use serde_json::json;

    use super::*;

    const SECRET: &str = "/api/v1/namespaces/ns/secrets/s";

    async fn server() -> Server {
        let server = Server::start().await;
        server.put(
            SECRET,
            json!({"metadata": {"name": "s", "namespace": "ns"},
            "data": {"k": STANDARD.encode("value"), "s": STANDARD.encode("same name")}}),
        );
        server
    }

    async fn reveal(secrets: &Secrets, fields: SecretFields, manifest: &Value) -> Result<Value, SecretError> {
        reveal_since(secrets, fields, manifest, NotBefore::call()).await
    }

    async fn reveal_since(
        secrets: &Secrets,
        fields: SecretFields,
        manifest: &Value,
        not_before: NotBefore,
    ) -> Result<Value, SecretError> {
        let manifest = manifest.to_string();
        let bytes = secrets.reveal(fields, "ns", manifest.as_bytes(), not_before);
        Ok(serde_json::from_slice(&bytes.await?).unwrap())
    }

    fn with(items: Value) -> Value {
        json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"metadata": items}})
    }

    #[test]
    fn resolves_only_cluster_secrets() {
        let items = json!([{"name": "p", "secretKeyRef": {"name": "s", "key": "k"}}]);
        assert!(needed(COMPONENT, &with(items.clone())));
        for (store, expected) in [("", true), ("kubernetes", true), ("vault", false)] {
            let mut object = with(items.clone());
            object["auth"]["secretStore"] = store.into();
            assert_eq!(needed(COMPONENT, &object), expected, "{store}");
        }
        assert!(!needed(
            COMPONENT,
            &with(json!([{"name": "p", "secretKeyRef": {"name": "", "key": ""}}]))
        ));
        assert!(!needed(NONE, &with(items.clone())));
        for (store, expected) in [("kubernetes", true), ("vault", false)] {
            let server = json!({"spec": {"endpoint": {"sse": {"headers": items.clone(), "auth": {"secretStore": store}}}}});
            assert_eq!(needed(MCP_SERVER, &server), expected, "{store}");
        }
    }

    #[tokio::test]
    async fn inserts_values_as_base64() {
        let server = server().await;
        let secrets = Secrets::new(server.client(), Arc::default());
        let object = with(json!([
            {"name": "plain", "value": "x"},
            {"name": "keyed", "secretKeyRef": {"name": "s", "key": "k"}},
            {"name": "unkeyed", "secretKeyRef": {"name": "s", "key": ""}},
            {"name": "absent", "value": "stays", "secretKeyRef": {"name": "s", "key": "none"}},
        ]));
        let begun = NotBefore::call();
        let revealed = reveal_since(&secrets, COMPONENT, &object, begun).await.unwrap();
        let items = &revealed["spec"]["metadata"];
        assert_eq!(items[0]["value"], "x");
        assert_eq!(items[1]["value"], STANDARD.encode("value"));
        assert_eq!(items[2]["value"], STANDARD.encode("same name"));
        assert_eq!(items[3]["value"], "stays");
        reveal_since(&secrets, COMPONENT, &object, begun).await.unwrap();
        assert_eq!(
            server.requests("GET", SECRET).len(),
            1,
            "one request for all of them"
        );
    }

    #[tokio::test]
    async fn rereads_stale_secret_once() {
        let server = server().await;
        let secrets = Secrets::new(server.client(), Arc::default());
        let object = with(json!([{"name": "p", "secretKeyRef": {"name": "s", "key": "k"}}]));
        reveal(&secrets, COMPONENT, &object).await.unwrap();
        server.put(
            SECRET,
            json!({"metadata": {"name": "s"}, "data": {"k": STANDARD.encode("newer")}}),
        );
        let changed = NotBefore::change(Instant::now());
        let followers = (0..20).map(|_| reveal_since(&secrets, COMPONENT, &object, changed));
        for revealed in join_all(followers).await {
            assert_eq!(
                revealed.unwrap()["spec"]["metadata"][0]["value"],
                STANDARD.encode("newer")
            );
        }
        assert_eq!(server.requests("GET", SECRET).len(), 2);
    }

    #[tokio::test]
    async fn distinguishes_temporary_failures() {
        let server = Server::start().await;
        let secrets = Secrets::new(server.client(), Arc::default());
        let object = with(json!([{"name": "p", "secretKeyRef": {"name": "s", "key": "k"}}]));
        let absent = reveal(&secrets, COMPONENT, &object).await.unwrap_err();
        assert!(!absent.is_passing(), "{absent}");
        let away = json!({"kind": "Status", "message": "away"});
        server.fix(SECRET, http::StatusCode::INTERNAL_SERVER_ERROR, away);
        let unread = reveal(&secrets, COMPONENT, &object).await.unwrap_err();
        assert!(unread.is_passing(), "{unread}");
    }

    #[tokio::test(start_paused = true)]
    async fn caches_failures_briefly() {
        let server = Server::start().await;
        let secrets = Secrets::new(server.client(), Arc::default());
        let object = with(json!([{"name": "p", "secretKeyRef": {"name": "s", "key": "k"}}]));
        let changed = NotBefore::change(Instant::now());
        let follow = || reveal_since(&secrets, COMPONENT, &object, changed);
        for revealed in join_all((0..20).map(|_| follow())).await {
            assert!(
                matches!(revealed, Err(SecretError::Unreadable { .. })),
                "{revealed:?}"
            );
        }
        follow().await.unwrap_err();
        assert_eq!(server.requests("GET", SECRET).len(), 1);
        let told = secrets.metrics.render();
        assert!(
            told.contains("dapr_operator_secret_read_failures_total 1"),
            "{told}"
        );
        tokio::time::sleep(FAILURE_TTL).await;
        follow().await.unwrap_err();
        assert_eq!(server.requests("GET", SECRET).len(), 2);
        // A later call does not get the cached failure, because the secret may exist by then.
        tokio::time::advance(Duration::from_millis(1)).await;
        reveal(&secrets, COMPONENT, &object).await.unwrap_err();
        assert_eq!(server.requests("GET", SECRET).len(), 3);
    }

    #[tokio::test]
    async fn resolves_endpoint_headers_and_tls() {
        let server = server().await;
        let reference = json!({"secretKeyRef": {"name": "s", "key": "k"}});
        let object = json!({"metadata": {"name": "e"}, "spec": {"headers": [reference],
            "clientTLS": {"certificate": reference, "privateKey": reference, "rootCA": {"value": "x"}}}});
        assert!(needed(HTTP_ENDPOINT, &object));
        let revealed = reveal(
            &Secrets::new(server.client(), Arc::default()),
            HTTP_ENDPOINT,
            &object,
        )
        .await
        .unwrap();
        let encoded = STANDARD.encode("value");
        for place in [
            "/spec/headers/0/value",
            "/spec/clientTLS/certificate/value",
            "/spec/clientTLS/privateKey/value",
        ] {
            assert_eq!(revealed.pointer(place).unwrap(), &json!(encoded), "{place}");
        }
        assert_eq!(revealed["spec"]["clientTLS"]["rootCA"]["value"], "x");
    }

    #[tokio::test]
    async fn resolves_trace_headers_in_plain_text() {
        let server = server().await;
        let secrets = Secrets::new(server.client(), Arc::default());
        let with = |key: &str| {
            json!({"metadata": {"name": "c"}, "spec": {"tracing": {"otel": {"headers": [
                {"name": "h", "secretKeyRef": {"name": "s", "key": key}}]}}}})
        };
        let revealed = reveal(&secrets, CONFIGURATION, &with("k")).await.unwrap();
        assert_eq!(
            revealed["spec"]["tracing"]["otel"]["headers"][0]["value"],
            "value"
        );
        let error = reveal(&secrets, CONFIGURATION, &with("")).await.unwrap_err();
        assert!(matches!(error, SecretError::NoKey(_)));
    }

    #[tokio::test]
    async fn names_and_rereads_missing_secret() {
        let server = server().await;
        let secrets = Secrets::new(server.client(), Arc::default());
        let object = with(json!([{"name": "p", "secretKeyRef": {"name": "later", "key": "k"}}]));
        let error = reveal(&secrets, COMPONENT, &object).await.unwrap_err();
        assert!(error.to_string().contains("ns/later"), "{error}");
        let told = secrets.metrics.render();
        assert!(
            told.contains("dapr_operator_secret_read_failures_total 1"),
            "{told}"
        );
        server.put(
            "/api/v1/namespaces/ns/secrets/later",
            json!({"metadata": {"name": "later"}, "data": {"k": "eA=="}}),
        );
        let revealed = reveal_since(&secrets, COMPONENT, &object, NotBefore::change(Instant::now()))
            .await
            .unwrap();
        assert_eq!(revealed["spec"]["metadata"][0]["value"], "eA==");
    }
}
