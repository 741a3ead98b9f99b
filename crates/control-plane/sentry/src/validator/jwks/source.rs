//! The source of a JWK set: a URL, a file, or the configuration itself.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use outrigger_files::read_async;
use outrigger_identity::pem;
use outrigger_webclient::{BodyError, builder, read_body, shown};

use crate::{
    jwt::{KeySet, KeySetError},
    material,
    settings::JwksOptions,
    watch::{FolderWatch, WatchError},
};

/// Maximum size of a key set in bytes.
const MAX_SIZE: usize = 1 << 20;

/// The source of a key set.
#[derive(Debug)]
pub(super) enum Source {
    Url {
        url: reqwest::Url,
        client: reqwest::Client,
        interval: Duration,
    },
    File(PathBuf),
    Inline(KeySet),
}

/// Why the key set of the JWKS validator cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum JwksError {
    /// The option is neither URL nor file nor set.
    #[error(
        "the jwks validator's source must be an https:// or http:// URL, an existing file, or a JWK set \
         as JSON or base64"
    )]
    Source,
    /// The URL cannot be parsed.
    #[error("the jwks validator's source \"{0}\" is not a valid URL")]
    Url(String),
    /// The custom CA cannot be used.
    #[error(
        "the jwks validator's caCertificate cannot be used: {0}; want PEM certificates or the path of a file with them"
    )]
    Ca(String),
    /// The HTTP client cannot be set up.
    #[error("cannot set up HTTPS for the jwks validator: {0}")]
    Client(String),
    /// The fetch failed.
    #[error("cannot fetch the JWKS from {url}")]
    Fetch {
        /// The URL.
        url: String,
        /// The failed step of the request.
        source: reqwest::Error,
    },
    /// The response is too large.
    #[error("the JWKS from {0} is larger than 1 MiB")]
    TooLarge(String),
    /// The file cannot be read.
    #[error("cannot read the JWKS from {}", path.display())]
    File {
        /// Path of the file with the JWK set.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The contents are not a key set.
    #[error("the JWKS from {0} is not valid: {1}")]
    Invalid(String, String),
    /// The file cannot be watched.
    #[error(transparent)]
    Watch(#[from] WatchError),
}

impl Source {
    pub(super) fn new(options: &JwksOptions) -> Result<Self, JwksError> {
        let source = options.source.trim();
        if source.starts_with("https://") || source.starts_with("http://") {
            let url = source.parse().map_err(|_| JwksError::Url(source.to_owned()))?;
            return Ok(Self::Url {
                url,
                client: client(options)?,
                interval: options.min_refresh,
            });
        }
        // A set is never taken for a path, because it starts with a brace.
        if !source.starts_with('{') && Path::new(source).exists() {
            return Ok(Self::File(source.into()));
        }
        let decoded = [STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD]
            .iter()
            .find_map(|engine| engine.decode(source).ok())
            .unwrap_or_else(|| source.as_bytes().to_vec());
        match KeySet::parse(&decoded) {
            Ok(keys) => Ok(Self::Inline(keys)),
            Err(KeySetError::Json(_)) => Err(JwksError::Source),
            Err(error) => Err(JwksError::Invalid(
                "the configuration".to_owned(),
                error.to_string(),
            )),
        }
    }

    /// Loads the current key set.
    pub(super) async fn load(&self) -> Result<KeySet, JwksError> {
        match self {
            Self::Inline(keys) => Ok(keys.clone()),
            Self::File(path) => {
                let fail = |source| JwksError::File {
                    path: path.clone(),
                    source,
                };
                let contents = read_async(path).await.map_err(fail)?;
                parse(&path.display().to_string(), &contents)
            }
            Self::Url { url, client, .. } => parse(&shown(url), &fetch(client, url).await?),
        }
    }

    /// When to load it again.
    pub(super) fn changes(&self) -> Result<Changes, JwksError> {
        Ok(match self {
            Self::Inline(_) => Changes::Never,
            Self::File(path) => Changes::Folder(FolderWatch::new([material::folder(path)])?),
            Self::Url { interval, .. } => Changes::Every(*interval),
        })
    }
}

/// Signals when a source has to be loaded again.
#[derive(Debug)]
pub(super) enum Changes {
    Never,
    Every(Duration),
    Folder(FolderWatch),
}

impl Changes {
    pub(super) async fn next(&mut self) {
        match self {
            Self::Never => std::future::pending().await,
            Self::Every(interval) => tokio::time::sleep(*interval).await,
            Self::Folder(watch) => watch.changed().await,
        }
    }
}

fn parse(origin: &str, contents: &[u8]) -> Result<KeySet, JwksError> {
    KeySet::parse(contents).map_err(|error| JwksError::Invalid(origin.to_owned(), error.to_string()))
}

async fn fetch(client: &reqwest::Client, url: &reqwest::Url) -> Result<Vec<u8>, JwksError> {
    let fail = |source: reqwest::Error| JwksError::Fetch {
        url: shown(url),
        source: source.without_url(),
    };
    let response = client
        .get(url.clone())
        .send()
        .await
        .and_then(reqwest::Response::error_for_status)
        .map_err(fail)?;
    let contents = read_body(response, MAX_SIZE).await;
    contents.map_err(|error| match error {
        BodyError::Http(source) => fail(source),
        BodyError::TooLarge(_) => JwksError::TooLarge(shown(url)),
    })
}

/// A client that trusts the configured CA, or the system's; TLS 1.2 or later. Redirects to another origin are
/// refused, because that origin would decide which tokens are valid.
fn client(options: &JwksOptions) -> Result<reqwest::Client, JwksError> {
    let fail = |error: String| JwksError::Client(error);
    let mut roots = rustls::RootCertStore::empty();
    if options.ca_certificate.is_empty() {
        roots = outrigger_tls::system_roots();
    } else {
        for certificate in custom_ca(&options.ca_certificate)? {
            roots
                .add(certificate)
                .map_err(|error| JwksError::Ca(error.to_string()))?;
        }
    }
    let tls =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| fail(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
    builder(tls)
        .timeout(options.request_timeout)
        .build()
        .map_err(|error| fail(error.to_string()))
}

/// The option is a path, or PEM.
fn custom_ca(option: &str) -> Result<Vec<rustls_pki_types::CertificateDer<'static>>, JwksError> {
    let contents = if option.contains("-----BEGIN") {
        option.as_bytes().to_vec()
    } else {
        outrigger_files::read(Path::new(option.trim()))
            .map_err(|error| JwksError::Ca(format!("{option}: {error}")))?
    };
    pem::parse_certificates(&contents).map_err(|error| JwksError::Ca(error.to_string()))
}
