//! `secretstores.kubernetes`: Secrets of the cluster, read with the pod's service account. Nothing is read
//! ahead of a request or cached.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use outrigger_component::{
    Catalog, Entry, Error, Kind, Metadata, Pairs, Result, SecretStore, catalog::Version, secrets::Feature,
};
use outrigger_kube::{ApiError, Client, ConnectError, is_object_name};
use serde::Deserialize;

/// User agent for the API server.
pub(crate) const AGENT: &str = concat!("outrigger-daprd/", env!("CARGO_PKG_VERSION"));
/// Maximum size of the response with all secrets of a namespace, bytes.
const MAX_ALL: usize = 64 << 20;
/// Environment variable with the pod's namespace.
pub(crate) const NAMESPACE: &str = "NAMESPACE";

pub(crate) fn add(catalog: &mut Catalog) {
    catalog
        .secrets
        .add(Entry::new(&["kubernetes"], Version::Only, |setup| async move {
            let store = Cluster::open(&setup.metadata, std::env::var(NAMESPACE).ok()).await?;
            Ok(Arc::new(store) as Arc<dyn SecretStore>)
        }));
}

/// Secrets of a cluster.
struct Cluster {
    client: Client,
    /// Default namespace.
    namespace: Option<String>,
    /// Maximum size of all secrets of a namespace, bytes.
    most: usize,
}

/// The fields of a Secret that matter here.
#[derive(Deserialize)]
struct Secret {
    #[serde(default)]
    metadata: Meta,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct Meta {
    #[serde(default)]
    name: String,
}

impl Cluster {
    /// `own` is the pod's namespace. Does not connect.
    async fn open(metadata: &Metadata, own: Option<String>) -> Result<Self> {
        let default = metadata.filled(&["defaultNamespace"]);
        let file = metadata.filled(&["kubeconfigPath"]);
        let client = Client::new(file.map(Path::new), AGENT).await;
        Ok(Self {
            client: client.map_err(unconnected)?,
            namespace: own
                .filter(|own| !own.is_empty())
                .or_else(|| default.map(str::to_owned)),
            most: MAX_ALL,
        })
    }

    fn namespace<'a>(&'a self, metadata: &'a Pairs) -> Result<&'a str> {
        let asked = metadata.get("namespace").map(String::as_str);
        let namespace = asked
            .filter(|name| !name.is_empty())
            .or(self.namespace.as_deref());
        let namespace = namespace.ok_or_else(|| {
            Error::invalid_request(format!(
                "the namespace of the Secret is not known: give metadata.namespace with the request, or start daprd \
                 with the variable {NAMESPACE}"
            ))
        })?;
        if !is_object_name(namespace) {
            let text =
                format!("{namespace:?} is not a valid name of a namespace: correct metadata.namespace");
            return Err(Error::invalid_request(text));
        }
        Ok(namespace)
    }
}

#[async_trait]
impl SecretStore for Cluster {
    fn features(&self) -> &[Feature] {
        // Secrets have several keys, but Dapr's store does not report that feature.
        &[]
    }

    async fn get(&self, name: &str, metadata: &Pairs) -> Result<Pairs> {
        let namespace = self.namespace(metadata)?;
        let kind = outrigger_kube::Kind::SECRETS;
        let secret = self.client.get::<Secret>(kind, Some(namespace), name).await;
        let what = format!("the Secret {name} in the namespace {namespace}");
        values(
            secret.map_err(|error| failed(&what, "get", namespace, &error))?,
            &what,
        )
    }

    async fn bulk_get(&self, metadata: &Pairs) -> Result<HashMap<String, Pairs>> {
        let namespace = self.namespace(metadata)?;
        let kind = outrigger_kube::Kind::SECRETS;
        let mut secrets = Vec::new();
        let take = |secret: Secret| {
            secrets.push(secret);
            Ok(())
        };
        let listed = self.client.each(kind, Some(namespace), "", self.most, take).await;
        let what = format!("all Secrets in the namespace {namespace}");
        listed.map_err(|error| failed(&what, "list", namespace, &error))?;
        let read = |secret: Secret| {
            let name = secret.metadata.name.clone();
            let what = format!("the Secret {name} in the namespace {namespace}");
            Ok((name, values(secret, &what)?))
        };
        secrets.into_iter().map(read).collect()
    }
}

/// The values of a secret by key. Invalid UTF-8 becomes U+FFFD, because responses are text.
fn values(secret: Secret, what: &str) -> Result<Pairs> {
    let data = secret.data.unwrap_or_default().into_iter();
    data.map(|(key, value)| {
        let bytes = STANDARD.decode(value).map_err(|error| {
            Error::new(Kind::Internal, format!("{what}: {key} is not in base64")).because(error)
        })?;
        let text = String::from_utf8(bytes);
        let text = text.unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        Ok((key, text))
    })
    .collect()
}

/// No client could be created.
pub(crate) fn unconnected(error: ConnectError) -> Error {
    let text = match error {
        ConnectError::Kubeconfig { path, cause } => format!("kubeconfigPath {path}: {cause}"),
        ConnectError::NotFound(cause) => format!(
            "cannot find the Kubernetes API: {cause}; let the pod have the token of its service account \
             (automountServiceAccountToken), or name a file with kubeconfigPath"
        ),
        other @ ConnectError::Setup(_) => other.to_string(),
    };
    Error::new(Kind::Configuration, text)
}

/// A request failed; `verb` is the permission it needs.
fn failed(what: &str, verb: &str, namespace: &str, error: &ApiError) -> Error {
    let (kind, text) = match error {
        ApiError::NotFound { .. } => (
            Kind::NotFound,
            format!("{what} does not exist: create it, or name another namespace in metadata.namespace"),
        ),
        ApiError::Refused { status, message, .. } if *status == StatusCode::FORBIDDEN => (
            Kind::Denied,
            format!(
                "the service account of this pod may not read {what}: bind a Role that allows to {verb} secrets in \
                 the namespace {namespace} to it ({message})"
            ),
        ),
        ApiError::Refused { status, .. } if *status == StatusCode::UNAUTHORIZED => {
            (Kind::Denied, format!("cannot read {what}: {error}"))
        }
        ApiError::Refused { status, .. }
            if !status.is_server_error() && *status != StatusCode::TOO_MANY_REQUESTS =>
        {
            (Kind::Internal, format!("cannot read {what}: {error}"))
        }
        ApiError::TooLarge { most, .. } => (
            Kind::Internal,
            format!("{what} have more than {} MiB: get them one by one", most >> 20),
        ),
        ApiError::Refused { .. }
        | ApiError::Unreachable { .. }
        | ApiError::Expired(_)
        | ApiError::Conflict(_) => (Kind::Unavailable, format!("cannot read {what}: {error}")),
    };
    Error::new(kind, text)
}

#[cfg(test)]
mod tests;
