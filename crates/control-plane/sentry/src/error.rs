//! Errors of the process as a whole.

use std::io;

use outrigger_accept::BindErrors;
use outrigger_controlplane::TaskFailed;

use crate::{
    authority::AuthorityError, cluster::ClusterError, settings::SettingsError, validator::JwksError,
    watch::WatchError, x509::SigningError,
};

/// Sentry cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum SentryError {
    /// The Configuration file.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The CA's files.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The CA of the cluster cannot be read or written.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Root in Kubernetes.
    #[error(transparent)]
    Root(#[from] outrigger_identity::StartError),
    /// The JWKS validator.
    #[error(transparent)]
    Jwks(#[from] JwksError),
    /// Sentry's namespace makes no identity.
    #[error("the namespace \"{namespace}\" (from NAMESPACE) cannot be used in a SPIFFE id: {cause}")]
    Namespace {
        /// Namespace of sentry, as it was configured.
        namespace: String,
        /// The rule of SPIFFE ids that it breaks.
        cause: outrigger_identity::IdError,
    },
    /// Ports cannot be had.
    #[error(transparent)]
    Bind(#[from] BindErrors),
    /// A folder cannot be watched.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The certificate of the gRPC server.
    #[error("cannot issue the certificate of the gRPC server")]
    OwnCertificate(#[from] OwnCertificateError),
    /// The certificate of the OIDC server.
    #[error(
        "cannot load the TLS certificate of the OIDC server: {0}; check --oidc-server-tls-cert-file and --oidc-server-tls-key-file"
    )]
    OidcTls(String),
    /// A part of the process ended in a panic.
    #[error(transparent)]
    Task(#[from] TaskFailed),
    /// The runtime.
    #[error("cannot set up the process: {0}")]
    Setup(#[from] io::Error),
}

/// Sentry's own certificate could not be issued.
#[derive(Debug, thiserror::Error)]
pub enum OwnCertificateError {
    /// No key.
    #[error("cannot generate a key: {0}")]
    Key(#[from] rcgen::Error),
    /// No signature.
    #[error(transparent)]
    Sign(#[from] SigningError),
    /// The TLS library refused it.
    #[error("TLS refuses the certificate: {0}")]
    Tls(#[from] rustls::Error),
}
