//! The settings of a sentry process, read from flags and the environment and validated as a whole.

mod flags;

use std::{path::PathBuf, time::Duration};

use outrigger_accept::{Limits, Listen};
use outrigger_controlplane::config::{Reader, namespace};
use outrigger_flags::Values;
use outrigger_identity::{Mode, TrustDomain};
use outrigger_resources::value::go_duration;

pub use flags::FLAGS;
pub use outrigger_controlplane::config::{ConfigError, LogSettings};

use crate::{jwt::Algorithm, material::Paths, rotation::RotationMode};

pub use crate::validator::ControlPlane;

/// Connection limits of the gRPC server. A process connects briefly, twice in the lifetime of its
/// certificate.
const CONNECTIONS: Limits = Limits {
    connections: 4096,
    per_source: 512,
};

/// Everything a sentry needs to be built.
#[derive(Debug, Clone)]
pub struct Config {
    /// The Configuration file with the `mtls` settings.
    pub configuration: PathBuf,
    /// The cluster of sentry; `None` outside of Kubernetes.
    pub cluster: Option<Cluster>,
    /// The files of the CA.
    pub paths: Paths,
    /// Which CAs are rotated.
    pub rotation: RotationMode,
    /// Trust domain of the control plane.
    pub trust_domain: TrustDomain,
    /// Namespace of this sentry.
    pub namespace: String,
    /// Which callers get control plane identities without a token.
    pub control_plane: ControlPlane,
    /// Address of the gRPC server. An empty host means all addresses.
    pub grpc: Listen,
    /// Connection limits of the gRPC server.
    pub connections: Limits,
    /// Port of the health server, on all addresses.
    pub healthz_port: u16,
    /// Port of the metrics server, on all addresses; `None` when metrics are off.
    pub metrics_port: Option<u16>,
    /// Settings of tokens; `None` if sentry issues none.
    pub jwt: Option<JwtConfig>,
    /// Settings of the OIDC server, which also requires `jwt`; `None` if it is off.
    pub oidc: Option<OidcConfig>,
    /// Settings of the process log.
    pub log: LogSettings,
}

/// A Kubernetes cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// Path of a kubeconfig, for use outside of a pod.
    pub kubeconfig: Option<PathBuf>,
}

/// Settings of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtConfig {
    /// The `iss` claim; `None` omits it.
    pub issuer: Option<String>,
    /// Signature algorithm; a generated key is always used with RS256.
    pub algorithm: Algorithm,
    /// The `kid` header; `None` means the key's thumbprint.
    pub key_id: Option<String>,
    /// Lifetime of tokens.
    pub ttl: Duration,
}

/// Settings of the OIDC server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcConfig {
    /// Its address.
    pub listen: Listen,
    /// Certificate and key files, PEM; `None` means plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Replaces `jwks_uri` in the discovery document.
    pub jwks_uri: Option<String>,
    /// Path in front of the endpoints: empty, or with a leading and without a trailing slash.
    pub path_prefix: String,
    /// Hosts that requests may name. Empty, or an entry `*`, allows all.
    pub allowed_hosts: Vec<String>,
}

/// A server certificate on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
}

impl Config {
    /// Reads the flags of [`FLAGS`] and, through `env`, the environment. All errors are reported
    /// together.
    pub fn from_flags(flags: &Values, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(flags);
        let set = env("NAMESPACE").is_some_and(|name| !name.is_empty());
        let cluster = cluster(&mut reader, set);
        let trust_domain = match flags.text("trust-domain").parse::<TrustDomain>() {
            Ok(trust_domain) => Some(trust_domain),
            Err(error) => {
                reader.problem(format!("--trust-domain: {error}"));
                None
            }
        };
        let control_plane = match flags.text("insecure-control-plane").parse() {
            Ok(control_plane) => Some(control_plane),
            Err(error) => {
                reader.problem(format!("--insecure-control-plane {error}"));
                None
            }
        };
        let rotation = match flags.text("ca-rotation").parse() {
            Ok(rotation) => Some(rotation),
            Err(error) => {
                reader.problem(format!("--ca-rotation {error}"));
                None
            }
        };
        let jwt = jwt(&mut reader);
        let oidc = oidc(&mut reader);
        let log = reader.log();
        let grpc = Listen {
            host: flags.text("listen-address").to_owned(),
            port: reader.port("port"),
        };
        let healthz_port = reader.port("healthz-port");
        let metrics_port = reader.metrics_port();
        match (
            trust_domain,
            control_plane,
            rotation,
            log,
            reader.problems.is_empty(),
        ) {
            (Some(trust_domain), Some(control_plane), Some(rotation), Some(log), true) => Ok(Self {
                configuration: flags.text("config").into(),
                paths: paths(flags),
                rotation,
                trust_domain,
                namespace: namespace(&env),
                cluster,
                control_plane,
                grpc,
                connections: CONNECTIONS,
                healthz_port,
                metrics_port,
                jwt,
                oidc,
                log,
            }),
            _ => Err(ConfigError(reader.problems)),
        }
    }
}

fn paths(flags: &Values) -> Paths {
    let folder = PathBuf::from(flags.text("issuer-credentials"));
    // An absolute path replaces the folder.
    let joined = |flag: &str| folder.join(flags.text(flag));
    let absolute_or = |flag: &str, name: &str| {
        let given = PathBuf::from(flags.text(flag));
        if given.is_absolute() {
            given
        } else {
            folder.join(name)
        }
    };
    Paths {
        root: joined("issuer-ca-filename"),
        issuer: joined("issuer-certificate-filename"),
        issuer_key: joined("issuer-key-filename"),
        jwt_key: absolute_or("jwt-key-filename", "jwt.key"),
        jwks: absolute_or("jwks-filename", "jwks.json"),
        rotation: folder.join("ca-rotation.json"),
    }
}

/// The cluster, in Kubernetes mode. `has_namespace` tells whether the environment names sentry's namespace.
fn cluster(reader: &mut Reader<'_>, has_namespace: bool) -> Option<Cluster> {
    if reader.mode() != Mode::Kubernetes {
        return None;
    }
    if !has_namespace {
        reader.problem("NAMESPACE is not set: in Kubernetes mode it must name sentry's namespace");
    }
    Some(Cluster {
        kubeconfig: reader.given("kubeconfig").map(PathBuf::from),
    })
}

fn jwt(reader: &mut Reader<'_>) -> Option<JwtConfig> {
    let issuer = reader.given("jwt-issuer");
    if !reader.flags.boolean("jwt-enabled") {
        if issuer.is_some() {
            reader.problem("--jwt-issuer has no effect without --jwt-enabled=true: set both or neither");
        }
        return None;
    }
    let ttl = go_duration(reader.flags.text("jwt-ttl"))
        .inspect_err(|error| reader.problem(format!("--jwt-ttl: {error}")))
        .ok();
    let algorithm = reader
        .flags
        .text("jwt-signing-algorithm")
        .parse()
        .inspect_err(|error| reader.problem(format!("--jwt-signing-algorithm: {error}")))
        .ok();
    Some(JwtConfig {
        issuer,
        algorithm: algorithm?,
        key_id: reader.given("jwt-key-id"),
        ttl: ttl?,
    })
}

fn oidc(reader: &mut Reader<'_>) -> Option<OidcConfig> {
    let certificate = reader.given("oidc-server-tls-cert-file");
    let key = reader.given("oidc-server-tls-key-file");
    let tls = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(TlsFiles {
            certificate: certificate.into(),
            key: key.into(),
        }),
        (None, None) => None,
        _ => {
            reader.problem(
                "--oidc-server-tls-cert-file and --oidc-server-tls-key-file belong together: set both or neither",
            );
            None
        }
    };
    let port = reader.port("oidc-server-listen-port");
    if !reader.flags.boolean("oidc-enabled") {
        return None;
    }
    if reader.flags.boolean("oidc-server-tls-enabled") && tls.is_none() {
        reader.problem(
            "the OIDC server uses TLS: set --oidc-server-tls-cert-file and --oidc-server-tls-key-file, \
             or --oidc-server-tls-enabled=false",
        );
    }
    let jwks_uri = reader.given("oidc-jwks-uri");
    if let Some(uri) = &jwks_uri
        && let Err(error) = uri.parse::<http::Uri>()
    {
        reader.problem(format!("--oidc-jwks-uri \"{uri}\": {error}"));
    }
    let host = reader.flags.text("oidc-server-listen-address").to_owned();
    Some(OidcConfig {
        listen: Listen { host, port },
        tls,
        jwks_uri,
        path_prefix: path_prefix(reader.flags.text("oidc-path-prefix")),
        allowed_hosts: reader.flags.list("oidc-allowed-hosts"),
    })
}

fn path_prefix(given: &str) -> String {
    let trimmed = given.trim_matches('/');
    if trimmed.is_empty() {
        String::new()
    } else {
        format!("/{trimmed}")
    }
}

#[cfg(test)]
mod tests;
