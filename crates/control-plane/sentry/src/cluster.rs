//! Kubernetes as the store of the authority: its Configuration, and its files in a Secret and a ConfigMap.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outrigger_controlplane::TaskFailed;
use outrigger_kube::{ApiError, Client, ConnectError, Kind};
use serde_json::{Map, Value, json};

use crate::authority::{Authority, AuthorityError, AuthoritySource};
use crate::config::{Cluster, Config};
use crate::contents::{Contents, MemoryStore};
use crate::error::SentryError;
use crate::material::{File, Paths};
use crate::settings::Settings;

const LOG: &str = "dapr.sentry.ca";
/// User agent for the Kubernetes API.
const AGENT: &str = concat!("outrigger-sentry/", env!("CARGO_PKG_VERSION"));
/// Name of the Secret and of the ConfigMap.
const BUNDLE: &str = "dapr-trust-bundle";
/// Annotation of the Secret with the state of the rotation, for operators.
const ANNOTATION: &str = "outrigger/ca-rotation";
/// Attempts to write the bundle on conflicts with other writers.
const ATTEMPTS: usize = 5;
/// How long to retry the API at start, and the pause between attempts.
const API_TIMEOUT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(500);

/// Why the cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The API client cannot be set up.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The Configuration of the control plane cannot be read.
    #[error("cannot read the Configuration {namespace}/{name} (--config, NAMESPACE): {cause}")]
    Configuration {
        /// The namespace of sentry.
        namespace: String,
        /// Name of the Configuration.
        name: String,
        /// Error of the Kubernetes API.
        cause: ApiError,
    },
    /// The Secret or ConfigMap cannot be read or written.
    #[error(
        "cannot {what} the {kind} {namespace}/dapr-trust-bundle: {cause}; the chart creates it and grants sentry \
         access"
    )]
    Bundle {
        /// `read` or `write`.
        what: &'static str,
        /// `Secret` or `ConfigMap`.
        kind: &'static str,
        /// The namespace of sentry.
        namespace: String,
        /// Error of the Kubernetes API.
        cause: ApiError,
    },
}

/// Connects to the cluster.
///
/// # Errors
/// [`ClusterError::Connect`].
pub(crate) async fn client(cluster: &Cluster) -> Result<Client, ClusterError> {
    Ok(Client::new(cluster.kubeconfig.as_deref(), AGENT).await?)
}

/// The settings in the control plane's Configuration.
///
/// # Errors
/// If it cannot be read, or is not valid.
pub(crate) async fn settings(client: &Client, config: &Config) -> Result<Settings, SentryError> {
    let (namespace, name) = (&config.namespace, config.configuration.to_string_lossy());
    let read = with_retries(|| client.get::<Value>(Kind::CONFIGURATIONS, Some(namespace), &name)).await;
    let object = read.map_err(|cause| ClusterError::Configuration {
        namespace: namespace.clone(),
        name: name.clone().into_owned(),
        cause,
    })?;
    Ok(Settings::from_json(
        &format!("{namespace}/{name}"),
        object.to_string().as_bytes(),
    )?)
}

/// Retries a request without answer, because the API may still be starting.
async fn with_retries<T, F>(request: impl Fn() -> F) -> Result<T, ApiError>
where
    F: Future<Output = Result<T, ApiError>>,
{
    let begun = tokio::time::Instant::now();
    loop {
        match request().await {
            Err(ApiError::Unreachable { .. }) if begun.elapsed() < API_TIMEOUT => {
                tokio::time::sleep(PAUSE).await;
            }
            other => return other,
        }
    }
}

/// The source of the authority.
#[derive(Debug)]
pub(crate) enum Source {
    /// Local files.
    Files(AuthoritySource),
    Cluster(Bundle),
}

/// The authority's files in a cluster.
#[derive(Debug)]
pub(crate) struct Bundle {
    client: Client,
    namespace: String,
    /// For errors; the paths are keys of the Secret.
    source: AuthoritySource,
}

impl Source {
    /// The bundle of a cluster. Its keys are the file names of `source`.
    pub(crate) fn cluster(client: Client, namespace: &str, mut source: AuthoritySource) -> Self {
        let key = |path: &Path| {
            let name = path.file_name().unwrap_or_default();
            Path::new("Secret").join(namespace).join(BUNDLE).join(name)
        };
        let paths = &source.paths;
        source.paths = Paths {
            root: key(&paths.root),
            issuer: key(&paths.issuer),
            issuer_key: key(&paths.issuer_key),
            jwt_key: key(&paths.jwt_key),
            jwks: key(&paths.jwks),
            rotation: key(&paths.rotation),
        };
        Self::Cluster(Bundle {
            client,
            namespace: namespace.to_owned(),
            source,
        })
    }

    /// Loads the authority; if none exists, generates and stores it. The flag tells whether it was generated.
    ///
    /// # Errors
    /// [`SentryError`].
    pub(crate) async fn load_or_generate(&self) -> Result<(Authority, bool), SentryError> {
        match self {
            Self::Files(source) => {
                let source = source.clone();
                let loaded = tokio::task::spawn_blocking(move || source.load_or_generate()).await;
                Ok(loaded.map_err(TaskFailed::from)??)
            }
            Self::Cluster(bundle) => bundle.settle(None).await,
        }
    }

    /// Reloads the authority and takes the due step of its rotation. The flag tells whether anything was
    /// written. Never generates another authority: missing files are restored from those in use, in the
    /// cluster too.
    ///
    /// # Errors
    /// [`SentryError`].
    pub(crate) async fn reload(&self, in_use: &Arc<Authority>) -> Result<(Authority, bool), SentryError> {
        match self {
            Self::Files(source) => {
                let (source, in_use) = (source.clone(), in_use.clone());
                let loaded = tokio::task::spawn_blocking(move || source.reload(&in_use)).await;
                Ok(loaded.map_err(TaskFailed::from)??)
            }
            Self::Cluster(bundle) => bundle.settle(Some(in_use)).await,
        }
    }
}

impl Bundle {
    /// Reconciles memory and cluster: loads what the cluster has and writes what it lacks. Without an
    /// authority in use, an empty bundle is filled with a new one. Several replicas may do so at once: the
    /// first write wins and the others load it. The flag tells whether the Secret was written.
    async fn settle(&self, in_use: Option<&Authority>) -> Result<(Authority, bool), SentryError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            // The ConfigMap first, so that a writer of the ConfigMap never has an older Secret than the
            // previous writer.
            let map = self.read(Kind::CONFIG_MAPS, "ConfigMap").await;
            let secret = self.read(Kind::SECRETS, "Secret").await?;
            let map = map?;
            let loaded = self.interpret(&secret, &map, in_use)?;
            match self.store(&secret, &map, &loaded.0, loaded.1).await {
                Ok(()) => return Ok(loaded),
                Err(ClusterError::Bundle {
                    cause: ApiError::Conflict(_),
                    ..
                }) if attempt < ATTEMPTS => {
                    tracing::info!(target: LOG, "another sentry changed the trust bundle, reading it again");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn key(&self, file: File) -> String {
        let name = self.source.paths.of(file).file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    fn interpret(
        &self,
        secret: &Value,
        map: &Value,
        in_use: Option<&Authority>,
    ) -> Result<(Authority, bool), AuthorityError> {
        let mut contents = Contents::default();
        for file in File::ALL {
            let found = secret["data"][self.key(file)].as_str();
            let decoded = found.and_then(|text| STANDARD.decode(text).ok());
            if let Some(decoded) = decoded.filter(|decoded| !decoded.is_empty()) {
                contents.set(file, decoded);
            }
        }
        let refilled = in_use
            .map(|in_use| contents.refill(&in_use.files))
            .unwrap_or_default();
        if contents.get(File::JwtKey).is_none() || contents.get(File::Jwks).is_none() {
            contents.remove(File::JwtKey);
            contents.remove(File::Jwks);
        }
        let published = match map["data"][self.key(File::Root)].as_str() {
            Some(root) => contents.get(File::Root) == Some(root.as_bytes()),
            None => false,
        };
        let store = MemoryStore::new(contents.clone());
        let Some(in_use) = in_use else {
            return self.source.load_or_generate_on(&store);
        };
        let settled = refilled.is_empty() && published && contents == in_use.files;
        let (loaded, written) = self.source.reload_on(&store, settled)?;
        if !refilled.is_empty() {
            let names: Vec<_> = refilled.iter().map(|file| self.key(*file)).collect();
            tracing::warn!(
                target: LOG,
                "the Secret {}/{BUNDLE} lacks {}: restoring the CA in use",
                self.namespace, names.join(", ")
            );
        }
        Ok((loaded, written || !refilled.is_empty()))
    }

    /// Writes changes to the Secret, and public files to the ConfigMap.
    async fn store(
        &self,
        secret: &Value,
        map: &Value,
        authority: &Authority,
        new: bool,
    ) -> Result<(), ClusterError> {
        let files = &authority.files;
        if new {
            let mut next = secret.clone();
            if !next["data"].is_object() {
                next["data"] = Map::new().into();
            }
            for (file, contents) in files.iter() {
                next["data"][self.key(file)] = STANDARD.encode(contents).into();
            }
            next["metadata"]["annotations"][ANNOTATION] = authority.rotation.to_string().into();
            self.write(Kind::SECRETS, "Secret", &next).await?;
        }
        let mut next = map.clone();
        let mut data = next["data"].as_object().cloned().unwrap_or_default();
        for file in [File::Root, File::Jwks] {
            match files.get(file) {
                Some(contents) => drop(data.insert(self.key(file), String::from_utf8_lossy(contents).into())),
                None => drop(data.remove(&self.key(file))),
            }
        }
        next["data"] = data.into();
        if next["data"] != map["data"] {
            self.write(Kind::CONFIG_MAPS, "ConfigMap", &next).await?;
        }
        Ok(())
    }

    async fn read(&self, kind: Kind, name: &'static str) -> Result<Value, ClusterError> {
        let read = with_retries(|| self.client.get(kind, Some(&self.namespace), BUNDLE)).await;
        read.map_err(|cause| self.error("read", name, cause))
    }

    async fn write(&self, kind: Kind, name: &'static str, object: &Value) -> Result<(), ClusterError> {
        let mut object = object.clone();
        object["metadata"]["name"] = json!(BUNDLE);
        let written = self
            .client
            .replace::<Value>(kind, Some(&self.namespace), BUNDLE, &object)
            .await;
        written
            .map(drop)
            .map_err(|cause| self.error("write", name, cause))
    }

    fn error(&self, what: &'static str, kind: &'static str, cause: ApiError) -> ClusterError {
        ClusterError::Bundle {
            what,
            kind,
            namespace: self.namespace.clone(),
            cause,
        }
    }
}

#[cfg(test)]
mod tests;
