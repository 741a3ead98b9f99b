//! Startup of the identity: trust anchors, first certificate, and the renewal of both.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::anchors_file::{AnchorsFile, AnchorsFileError};
use crate::bundle::{BundleError, TrustAnchors, TrustBundle};
use crate::ca::{CaClient, CaConfig, FetchError, SvidSource};
use crate::directory::IdentityDirectory;
use crate::identity::Identity;
use crate::renewal::{self, EventSink, IdentityEvent, Renewal};
use crate::svid::Svid;
use crate::token::{Env, Mode};

/// The trust anchors of a sidecar, as PEM.
pub const TRUST_ANCHORS_VARIABLE: &str = "DAPR_TRUST_ANCHORS";
/// Set to `true` to allow running as root in Kubernetes.
const ALLOW_ROOT_VARIABLE: &str = "DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK";

/// How long the first certificate may take before a log line names the missing authority.
const PATIENCE: Duration = Duration::from_secs(1);

/// Source of the trust anchors.
#[derive(Debug)]
pub enum AnchorsSource {
    /// PEM text, trusted for the life of the process along with the roots in the authority's responses.
    /// Empty text is rejected.
    Pem(String),
    /// A file that is awaited, then watched.
    File(PathBuf),
    /// A decoded bundle.
    Bundle(TrustBundle),
}

impl AnchorsSource {
    /// The text in the variable `DAPR_TRUST_ANCHORS`; empty if unset.
    pub fn from_env(env: &Env) -> Self {
        Self::Pem(env(TRUST_ANCHORS_VARIABLE).unwrap_or_default())
    }
}

/// Input of [`start`].
pub struct SecurityConfig {
    /// The address of sentry, and the identity to request.
    pub ca: CaConfig,
    /// Where the trust anchors come from.
    pub anchors: AnchorsSource,
    /// Directory to also keep the identity in.
    pub directory: Option<IdentityDirectory>,
    /// Receives events for the metrics.
    pub events: EventSink,
}

/// Why a process has no identity, which is fatal.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Running as root in Kubernetes.
    #[error(
        "this process runs as root (user id 0), which is refused in Kubernetes; set runAsNonRoot and a user id in the \
         security context, or the environment variable DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK=true"
    )]
    Root,
    /// The configured trust anchors are invalid.
    #[error("{0}; set the environment variable DAPR_TRUST_ANCHORS to the root certificates of sentry")]
    Bundle(#[from] BundleError),
    /// The file of trust anchors is unusable.
    #[error(transparent)]
    AnchorsFile(#[from] AnchorsFileError),
    /// The first identity could not be obtained.
    #[error("failed to retrieve the initial identity: {0}")]
    Fetch(#[from] FetchError),
    /// Cancelled before there was an identity.
    #[error("stopped while retrieving the initial identity")]
    Cancelled,
}

/// Obtains the first identity. Run the returned [`Renewal`] to keep it valid.
///
/// # Errors
/// All are fatal to the process, see [`StartError`].
pub async fn start(
    config: SecurityConfig,
    cancel: &CancellationToken,
) -> Result<(Identity, Renewal), StartError> {
    refuse_root(config.ca.mode, &config.ca.env)?;
    // A file is updated on rotation; fixed text would miss the next root.
    let learns = matches!(config.anchors, AnchorsSource::Pem(_));
    let (anchors, file) = open(config.anchors, cancel).await?;
    tracing::info!("Fetching initial identity");
    let sentry = config.ca.sentry_address.clone();
    let mut client = CaClient::new(config.ca, anchors.clone())
        .inspect_err(|error| (config.events)(IdentityEvent::InitFailed(error.reason())))?;
    if learns {
        client = client.learning(anchors.clone())?;
    }
    let fetch = with_patience(first(client, &anchors, config.directory.as_ref()), &sentry);
    let (client, svid) = match cancel.run_until_cancelled(fetch).await {
        Some(Ok(first)) => first,
        Some(Err(error)) => {
            (config.events)(IdentityEvent::InitFailed(error.reason()));
            return Err(error.into());
        }
        None => return Err(StartError::Cancelled),
    };
    tracing::info!(id = %svid.id(), expires = %svid.not_after(), "Security is initialized successfully");
    (config.events)(IdentityEvent::InitOk);
    let identity = Identity::new(svid, anchors);
    let renewal = Renewal::new(Box::new(client), identity.clone(), config.events)
        .with_directory(config.directory)
        .with_anchors_file(file);
    Ok((identity, renewal))
}

/// Logs the awaited authority if `fetch` takes long.
async fn with_patience<T>(fetch: impl Future<Output = T>, sentry: &str) -> T {
    let mut fetch = std::pin::pin!(fetch);
    match timeout(PATIENCE, &mut fetch).await {
        Ok(fetched) => fetched,
        Err(_) => {
            tracing::warn!(
                "waiting for sentry at {sentry} to sign the first certificate (check that it runs, and --sentry-address)"
            );
            fetch.await
        }
    }
}

async fn first(
    client: CaClient,
    anchors: &TrustAnchors,
    directory: Option<&IdentityDirectory>,
) -> Result<(CaClient, Svid), FetchError> {
    let svid = client.fetch().await?;
    if let Some(directory) = directory {
        renewal::store(directory, &svid, anchors.current().pem())?;
    }
    Ok((client, svid))
}

async fn open(
    source: AnchorsSource,
    cancel: &CancellationToken,
) -> Result<(TrustAnchors, Option<AnchorsFile>), StartError> {
    match source {
        AnchorsSource::Pem(text) => Ok((TrustAnchors::new(TrustBundle::from_pem(text.as_bytes())?), None)),
        AnchorsSource::Bundle(bundle) => Ok((TrustAnchors::new(bundle), None)),
        AnchorsSource::File(path) => {
            let file = AnchorsFile::open(&path, cancel).await?;
            Ok((file.anchors(), Some(file)))
        }
    }
}

/// Rejects running as root in Kubernetes, unless explicitly allowed.
///
/// # Errors
/// [`StartError::Root`].
pub fn refuse_root(mode: Mode, env: &Env) -> Result<(), StartError> {
    let allowed = env(ALLOW_ROOT_VARIABLE).is_some_and(|value| value == "true");
    match mode == Mode::Kubernetes && !allowed && effective_user() == Some(0) {
        true => Err(StartError::Root),
        false => Ok(()),
    }
}

/// The effective user ID, from `/proc` (Linux).
fn effective_user() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    ids.split_whitespace().nth(1)?.parse().ok()
}
