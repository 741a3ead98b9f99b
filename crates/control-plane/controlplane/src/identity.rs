//! The identity of a control plane process.

use std::path::PathBuf;
use std::sync::Arc;

use outrigger_identity::{
    AnchorsSource, CaConfig, Identity, IdentityDirectory, Mode, Renewal, SecurityConfig, StartError,
    TrustDomain,
};
use tokio_util::sync::CancellationToken;

/// Source of the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// Trust domain of the control plane.
    pub trust_domain: TrustDomain,
    /// The root certificates; `None` means those of the environment.
    pub anchors: Option<PathBuf>,
    /// `host:port` of sentry.
    pub sentry_address: String,
    /// Where the process runs, which determines the token that it presents.
    pub mode: Mode,
}

/// Obtains the identity `app_id` and renews it while [`Renewal`] runs. `env` reads the environment.
///
/// # Errors
/// If sentry issues none.
pub async fn obtain(
    tls: &TlsConfig,
    app_id: &str,
    namespace: &str,
    env: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    drain: &CancellationToken,
) -> Result<(Identity, Renewal), StartError> {
    obtain_into(tls, app_id, namespace, env, drain, None).await
}

/// Like [`obtain`], and also writes the certificate to files in a folder for other programs.
///
/// # Errors
/// If sentry issues none.
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
