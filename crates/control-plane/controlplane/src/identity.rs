//! The identity of a process of the control plane.

use std::path::PathBuf;
use std::sync::Arc;

use outrigger_identity::{
    AnchorsSource, CaConfig, Identity, IdentityDirectory, Mode, Renewal, SecurityConfig, StartError,
    TrustDomain,
};
use tokio_util::sync::CancellationToken;

/// Where the certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// Trust domain of the control plane.
    pub trust_domain: TrustDomain,
    /// The root certificates; `None`: those of the environment.
    pub anchors: Option<PathBuf>,
    /// `host:port` of sentry.
    pub sentry_address: String,
    /// Where the process runs: that decides which token proves who it is.
    pub mode: Mode,
}

/// Obtains the identity `app_id`, for as long as [`Renewal`] runs. `env` reads the environment.
///
/// # Errors
/// When sentry gives none.
pub async fn obtain(
    tls: &TlsConfig,
    app_id: &str,
    namespace: &str,
    env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    drain: &CancellationToken,
) -> Result<(Identity, Renewal), StartError> {
    obtain_into(tls, app_id, namespace, env, drain, None).await
}

/// As [`obtain`]; the certificate is also written to files in a folder, for programs that read it there.
///
/// # Errors
/// When sentry gives none.
pub async fn obtain_into(
    tls: &TlsConfig,
    app_id: &str,
    namespace: &str,
    env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    drain: &CancellationToken,
    directory: Option<PathBuf>,
) -> Result<(Identity, Renewal), StartError> {
    let env: outrigger_identity::Env = Arc::new(env);
    let anchors = match &tls.anchors {
        Some(file) => AnchorsSource::File(file.clone()),
        None => AnchorsSource::from_env(&env),
    };
    let request = SecurityConfig {
        ca: CaConfig {
            sentry_address: tls.sentry_address.clone(),
            control_plane_trust_domain: tls.trust_domain.clone(),
            control_plane_namespace: namespace.to_owned(),
            app_id: app_id.to_owned(),
            namespace: Some(namespace.to_owned()),
            jwt_audiences: Vec::new(),
            mode: tls.mode,
            token_file: None,
            env,
        },
        anchors,
        directory: directory.map(IdentityDirectory::new),
        events: Arc::new(|_| {}),
    };
    outrigger_identity::start(request, drain).await
}
