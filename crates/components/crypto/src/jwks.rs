//! `crypto.dapr.jwks`: a JSON Web Key set from the metadata, a file or a URL.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex as PoisonMutex, PoisonError},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use outrigger_component::{
    Catalog, CryptoProvider, Entry, Error, GoDuration, Kind, Metadata, Result, Unit, catalog::Version,
    crypto::Secret,
};
use outrigger_webclient::{causes, read_body, shown};
use reqwest::{Client, Url};
use tokio::{sync::Mutex, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::{
    jwk,
    key::Key,
    local::{KeySource, Local, not_found},
};

/// Maximum size of a key set from a server, bytes.
const MAX_KEY_SET: usize = 1 << 20;
/// After a failed load from the URL, the next attempt waits for the shorter of this and the interval.
const RETRY: Duration = Duration::from_secs(60);

pub(super) fn add(catalog: &mut Catalog) {
    catalog
        .crypto
        .add(Entry::new(&["dapr.jwks"], Version::Only, |setup| async move {
            let refreshed = Refreshed {
                set: Arc::new(KeySet::open(&setup.metadata).await?),
                refreshing: PoisonMutex::default(),
            };
            Ok(Arc::new(Local(refreshed)) as Arc<dyn CryptoProvider>)
        }));
}

type Keys = Vec<Arc<Key>>;

/// A key set, and the task that refreshes it in the background. The task ends with the component.
struct Refreshed {
    set: Arc<KeySet>,
    refreshing: PoisonMutex<Option<AbortOnDropHandle<()>>>,
}

struct KeySet {
    keys: ArcSwap<Keys>,
    source: Source,
    /// When and from which version the set was loaded. Locked during a refresh.
    loaded: Mutex<Loaded>,
}

enum Source {
    Inline,
    File(PathBuf),
    Url {
        url: Url,
        client: Client,
        timeout: Duration,
        interval: Duration,
    },
}

struct Loaded {
    at: Instant,
    /// For a file: modification time and length.
    version: Option<(SystemTime, u64)>,
}

impl KeySet {
    async fn open(metadata: &Metadata) -> Result<Self> {
        let given = metadata.required(&["jwks"])?.trim();
        let source = Source::new(given, metadata)?;
        let version = source.version().await;
        let keys = match &source {
            Source::Inline => inline(given)?,
            other => other.load().await?,
        };
        Ok(Self {
            keys: ArcSwap::from_pointee(keys),
            source,
            loaded: Mutex::new(Loaded {
                at: Instant::now(),
                version,
            }),
        })
    }

    fn find(&self, id: &str) -> Option<Arc<Key>> {
        let keys = self.keys.load();
        keys.iter().find(|key| key.id.as_deref() == Some(id)).cloned()
    }

    /// Reloads the set if its source may have changed. On failure the old set stays in use.
    async fn refresh(&self) {
        let mut loaded = self.loaded.lock().await;
        let version = self.source.version().await;
        let stale = match &self.source {
            Source::Inline => false,
            Source::File(_) => version != loaded.version,
            Source::Url { interval, .. } => loaded.at.elapsed() >= *interval,
        };
        if !stale {
            return;
        }
        (loaded.at, loaded.version) = (Instant::now(), version);
        match self.source.load().await {
            Ok(keys) => self.keys.store(Arc::new(keys)),
            Err(error) => {
                if let Source::Url { interval, .. } = &self.source {
                    let early = interval.saturating_sub(RETRY);
                    loaded.at = loaded.at.checked_sub(early).unwrap_or(loaded.at);
                }
                tracing::warn!("error while refreshing the JSON Web Key set: {error}");
            }
        }
    }
}

#[async_trait]
impl KeySource for Refreshed {
    async fn key(&self, name: &str) -> Result<Arc<Key>> {
        let set = &self.set;
        if let Source::Url { interval, .. } = &set.source
            && let Some(key) = set.find(name)
        {
            // A known key does not wait for the network.
            let stale = |loaded: &Loaded| loaded.at.elapsed() >= *interval;
            if set.loaded.try_lock().is_ok_and(|loaded| stale(&loaded)) {
                let set = Arc::clone(set);
                let task = tokio::spawn(async move { set.refresh().await });
                let mut refreshing = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
                *refreshing = Some(AbortOnDropHandle::new(task));
            }
            return Ok(key);
        }
        set.refresh().await;
        set.find(name).ok_or_else(not_found)
    }
}

impl Source {
    fn new(given: &str, metadata: &Metadata) -> Result<Self> {
        if given.starts_with("https://") || given.starts_with("http://") {
            if given.starts_with("http://") {
                tracing::warn!(
                    "the JSON Web Key set is fetched over HTTP without TLS: use https:// in production"
                );
            }
            let url: Url = given
                .parse()
                .map_err(|_| metadata.wrong(&["jwks"], "a valid URL is expected"))?;
            return Ok(Self::Url {
                client: outrigger_webclient::client(&url)
                    .map_err(|error| Error::new(Kind::Configuration, error.to_string()))?,
                url,
                timeout: span(
                    metadata,
                    "requestTimeout",
                    Duration::from_secs(30),
                    Duration::from_millis(1),
                )?,
                interval: span(
                    metadata,
                    "minRefreshInterval",
                    Duration::from_secs(600),
                    Duration::from_secs(1),
                )?,
            });
        }
        // A path never starts with a brace, so a key set is not mistaken for one. If the path is not a
        // regular file, reading it fails.
        if !given.starts_with('{') && Path::new(given).exists() {
            return Ok(Self::File(given.into()));
        }
        Ok(Self::Inline)
    }

    /// For a file: a value that changes with it.
    async fn version(&self) -> Option<(SystemTime, u64)> {
        let Self::File(path) = self else { return None };
        let metadata = tokio::fs::metadata(path).await.ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    }

    async fn load(&self) -> Result<Keys> {
        match self {
            Self::Inline => Err(Error::unsupported(
                "a set in the component itself does not change",
            )),
            Self::File(path) => {
                let text = outrigger_files::read_async(path).await.map_err(|error| {
                    let text = format!(
                        "jwks: cannot read {}; give a key set, or the path of a file",
                        path.display()
                    );
                    Error::new(Kind::Configuration, text).because(error)
                })?;
                parse(&path.display().to_string(), &Secret::new(text))
            }
            Self::Url {
                url, client, timeout, ..
            } => {
                let failed = |cause: String| {
                    let text = format!("failed to fetch JWKS from {}", shown(url));
                    Error::new(Kind::Unavailable, text).because(cause)
                };
                let response = client.get(url.clone()).timeout(*timeout).send().await;
                let response = response.map_err(|error| failed(causes(&error)))?;
                if !response.status().is_success() {
                    return Err(failed(response.status().to_string()));
                }
                let text = read_body(response, MAX_KEY_SET).await;
                let text = text.map_err(|error| failed(error.to_string()))?;
                parse(&shown(url), &Secret::new(text))
            }
        }
    }
}

/// A duration property; values below `least` mean the default.
fn span(metadata: &Metadata, name: &str, default: Duration, least: Duration) -> Result<Duration> {
    let given = metadata.duration(&[name], Unit::Seconds)?;
    let given = given.and_then(GoDuration::positive);
    Ok(given.filter(|given| *given >= least).unwrap_or(default))
}

fn inline(given: &str) -> Result<Keys> {
    let decoded = STANDARD_NO_PAD.decode(given.trim_end_matches('='));
    let text = Secret::new(decoded.unwrap_or_else(|_| given.as_bytes().to_vec()));
    parse("the component", &text).map_err(|error| {
        let text = "the metadata property jwks must be a URL, the path of a file, or a JSON Web Key set (as JSON or base64)";
        Error::new(Kind::Configuration, text).because(error)
    })
}

fn parse(origin: &str, text: &[u8]) -> Result<Keys> {
    let keys = jwk::parse_set(text)
        .map_err(|error| Error::new(Kind::Configuration, format!("JWKS from {origin}")).because(error))?;
    Ok(keys.into_iter().map(Arc::new).collect())
}
