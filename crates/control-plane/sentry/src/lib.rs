//! The certificate authority of the control plane. It issues every workload its SPIFFE identity, as an X.509
//! certificate and optionally as a JWT.
//!
//! [`Config`] → [`Sentry::build`] → [`Sentry::run`].

mod authority;
mod cluster;
pub mod config;
mod contents;
mod csr;
mod error;
mod expiry;
mod grpc;
mod jwt;
mod material;
mod metrics;
mod oidc;
mod own_certificate;
mod reload;
mod rotation;
mod sentry;
mod server;
mod service;
mod settings;
mod validator;
mod watch;
mod x509;

pub use authority::AuthorityError;
pub use cluster::ClusterError;
pub use config::{Config, ConfigError};
pub use error::{OwnCertificateError, SentryError};
pub use jwt::Algorithm;
pub use material::{File, MaterialError, Paths};
pub use rotation::RotationMode;
pub use sentry::{Addresses, Sentry};
pub use settings::SettingsError;
pub use validator::JwksError;
pub use watch::WatchError;
pub use x509::{GenerateError, SigningError};
