//! Discovers, fetches and refreshes an issuer's keys.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, JwkSet};
use outrigger_component::{Error, Kind};
use outrigger_webclient::{causes, read_body, shown};
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::LOG;

/// Timeout of a request to the issuer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Refresh interval.
const REFRESH: Duration = Duration::from_secs(15 * 60);
/// Delay before a failed fetch is retried.
const RETRY: Duration = Duration::from_secs(60);
/// Maximum document size in bytes.
const MAX_DOCUMENT: usize = 1024 * 1024;

/// Keys that can verify signatures.
pub(super) type Keys = Vec<Jwk>;

/// An issuer's discovery document, reduced to the field used.
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
}

/// Keys with a periodic refresh.
pub(super) struct KeyCache {
    keys: Arc<Mutex<Arc<Keys>>>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl KeyCache {
    /// Fetches the keys from `url`, or from the address the issuer publishes.
    pub(super) async fn start(issuer: &str, url: Option<&str>) -> Result<Self, Error> {
        let url = match url {
            Some(url) => url.to_owned(),
            None => discover(issuer).await?,
        };
        let url = parse(&url)?;
        let client = https(&url)?;
        let keys = Arc::new(Mutex::new(Arc::new(fetch(&client, &url).await?)));
        let stop = CancellationToken::new();
        let task = tokio::spawn(refresh(client, url, Arc::clone(&keys), stop.clone()));
        Ok(Self {
            keys,
            stop,
            task: Mutex::new(Some(task)),
        })
    }

    pub(super) fn current(&self) -> Result<Arc<Keys>, Error> {
        let keys = Arc::clone(&self.keys.lock().unwrap_or_else(PoisonError::into_inner));
        if keys.is_empty() {
            return Err(unavailable("the issuer has no keys".to_owned()));
        }
        Ok(keys)
    }

    pub(super) async fn close(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A panicked task has ended too.
            let _ended = task.await;
        }
    }
}

async fn refresh(client: Client, url: Url, keys: Arc<Mutex<Arc<Keys>>>, stop: CancellationToken) {
    let mut pause = REFRESH;
    loop {
        let fetched = tokio::select! {
            () = stop.cancelled() => return,
            fetched = async {
                tokio::time::sleep(pause).await;
                fetch(&client, &url).await
            } => fetched,
        };
        pause = match fetched {
            Ok(fetched) => {
                *keys.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(fetched);
                REFRESH
            }
            Err(error) => {
                tracing::warn!(target: LOG, "Error while refreshing JWKS cache: {error}");
                RETRY
            }
        };
    }
}

fn unavailable(message: String) -> Error {
    Error::new(Kind::Unavailable, message)
}

fn parse(url: &str) -> Result<Url, Error> {
    url.parse()
        .map_err(|error| unavailable(format!("the issuer's keys: {error}; a URL is expected")))
}

/// The address of the issuer's keys from its discovery document.
async fn discover(issuer: &str) -> Result<String, Error> {
    let slash = issuer.strip_suffix('/').unwrap_or(issuer);
    let url = parse(&format!("{slash}/.well-known/openid-configuration"))?;
    let failed = |cause: String| {
        unavailable(format!(
            "failed to retrieve OpenID Configuration document: {cause}; set jwksURL if the issuer has none"
        ))
    };
    let found: Discovery = read(&https(&url)?, &url).await.map_err(failed)?;
    if found.jwks_uri.is_empty() {
        let text = "the OpenID Configuration document does not contain a 'jwks_uri'";
        return Err(failed(text.to_owned()));
    }
    if found.issuer != issuer {
        return Err(failed(format!(
            "the issuer found in the OpenID Configuration document ('{}') doesn't match the one provided in the \
             component's metadata ('{issuer}')",
            found.issuer
        )));
    }
    check_scheme(&url, &found.jwks_uri).map_err(failed)?;
    Ok(found.jwks_uri)
}

/// An issuer reached over TLS must not redirect to plain HTTP, where an attacker could substitute keys.
pub(super) fn check_scheme(issuer: &Url, jwks_uri: &str) -> Result<(), String> {
    let is_https = |url: &Url| url.scheme() == "https";
    if is_https(issuer) && Url::parse(jwks_uri).is_ok_and(|url| !is_https(&url)) {
        return Err(format!(
            "the OpenID Configuration document of an https issuer has a 'jwks_uri' that is not https: '{jwks_uri}'"
        ));
    }
    Ok(())
}

async fn fetch(client: &Client, url: &Url) -> Result<Keys, Error> {
    let set: Result<LenientKeySet, String> = read(client, url).await;
    let set = set.map_err(|cause| unavailable(format!("failed to fetch JWKS: {cause}")))?;
    Ok(set.known())
}

/// A key set that may contain keys of unknown types.
#[derive(Deserialize)]
struct LenientKeySet {
    keys: Vec<serde_json::Value>,
}

impl LenientKeySet {
    fn known(self) -> Keys {
        let known = self.keys.into_iter().filter_map(|key| {
            let set = serde_json::json!({ "keys": [key] });
            let key = serde_json::from_value::<JwkSet>(set).ok()?.keys.pop()?;
            (!matches!(key.algorithm, AlgorithmParameters::Other(_))).then_some(key)
        });
        known.collect()
    }
}

async fn read<T: DeserializeOwned>(client: &Client, url: &Url) -> Result<T, String> {
    let failed = |cause: String| format!("GET {}: {cause}", shown(url));
    let request = client.get(url.clone()).timeout(TIMEOUT);
    let response = request.send().await.map_err(|error| failed(causes(&error)))?;
    if response.status() != StatusCode::OK {
        let status = response.status().as_u16();
        return Err(failed(format!("invalid response status code: {status}")));
    }
    let document = read_body(response, MAX_DOCUMENT).await;
    let document = document.map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&document).map_err(|error| failed(format!("not the JSON expected: {error}")))
}

fn https(url: &Url) -> Result<Client, Error> {
    outrigger_webclient::client(url).map_err(|error| Error::new(Kind::Configuration, error.to_string()))
}
