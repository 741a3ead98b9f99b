//! Errors of the process as a whole.

use std::io;

use outrigger_accept::BindErrors;
use outrigger_controlplane::TaskFailed;

use crate::{
    authority::AuthorityError, cluster::ClusterError, settings::SettingsError, validator::JwksError,
    watch::WatchError, x509::SigningError,
};

/// Why sentry cannot start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum SentryError {
    /// The Configuration file is not valid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The CA's files cannot be used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The CA of the cluster cannot be read or written.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Sentry runs as root in Kubernetes.
    #[error(transparent)]
    Root(#[from] outrigger_identity::StartError),
    /// The JWKS validator cannot be set up.
    #[error(transparent)]
    Jwks(#[from] JwksError),
    /// Sentry's namespace cannot be part of an identity.
    #[error("the namespace \"{namespace}\" (from NAMESPACE) cannot be used in a SPIFFE id: {cause}")]
    Namespace {
        /// The configured namespace.
        namespace: String,
        /// The violated rule of SPIFFE ids.
        cause: outrigger_identity::IdError,
    },
    /// A port cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindErrors),
    /// A folder cannot be watched.
    #[error(transparent)]
    Watch(#[from] WatchError),
    /// The gRPC server's certificate cannot be issued.
    #[error("cannot issue the certificate of the gRPC server")]
    OwnCertificate(#[from] OwnCertificateError),
    /// The OIDC server's certificate cannot be loaded.
    #[error(
        "cannot load the TLS certificate of the OIDC server: {0}; check --oidc-server-tls-cert-file and --oidc-server-tls-key-file"
    )]
    OidcTls(String),
    /// A background task panicked.
    #[error(transparent)]
    Task(#[from] TaskFailed),
    /// The async runtime cannot be set up.
    #[error("cannot set up the process: {0}")]
    Setup(#[from] io::Error),
}

/// Why sentry's own certificate cannot be issued.
#[derive(Debug, thiserror::Error)]
pub enum OwnCertificateError {
    /// No key could be generated.
    #[error("cannot generate a key: {0}")]
    Key(#[from] rcgen::Error),
    /// Signing failed.
    #[error(transparent)]
    Sign(#[from] SigningError),
    /// The TLS library rejects the certificate.
    #[error("TLS refuses the certificate: {0}")]
    Tls(#[from] rustls::Error),
}
