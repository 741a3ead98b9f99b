//! What a sentry process is told by flags and environment, checked as a whole.

mod flags;

use std::{path::PathBuf, time::Duration};

use outrigger_accept::{Limits, Listen};
use outrigger_flags::Values;
use outrigger_identity::TrustDomain;
use outrigger_resources::value::go_duration;
use outrigger_telemetry::log::Level;

pub use flags::FLAGS;

use crate::{jwt::Algorithm, material::Paths};

pub use crate::validator::ControlPlane;

/// Namespace when the environment gives none.
const DEFAULT_NAMESPACE: &str = "default";

/// Connections of the gRPC server: a process needs one for a moment, twice in the life of its certificate.
const CONNECTIONS: Limits = Limits {
    connections: 4096,
    per_source: 512,
};

/// Everything a sentry needs to be built.
#[derive(Debug, Clone)]
pub struct Config {
    /// The Configuration file with the `mtls` settings.
    pub configuration: PathBuf,
    /// The files of the CA.
    pub paths: Paths,
    /// Trust domain of the control plane.
    pub trust_domain: TrustDomain,
    /// Namespace this sentry belongs to.
    pub namespace: String,
    /// Who gets identities of the control plane without a token.
    pub control_plane: ControlPlane,
    /// Address of the gRPC server; an empty host means all addresses.
    pub grpc: Listen,
    /// How many connections the gRPC server keeps.
    pub connections: Limits,
    /// Port of the health server, on all addresses.
    pub healthz_port: u16,
    /// Port of the metrics server, on all addresses; `None` when metrics are off.
    pub metrics_port: Option<u16>,
    /// Token issuing, when on.
    pub jwt: Option<JwtConfig>,
    /// The OIDC server, when on. It also needs `jwt`.
    pub oidc: Option<OidcConfig>,
    /// The process log.
    pub log: LogSettings,
}

/// How tokens are issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtConfig {
    /// The `iss` claim; absent means no such claim.
    pub issuer: Option<String>,
    /// Signature algorithm; a generated key is always used with RS256.
    pub algorithm: Algorithm,
    /// The `kid` header; absent means the key's thumbprint.
    pub key_id: Option<String>,
    /// Lifetime of tokens.
    pub ttl: Duration,
}

/// The OIDC server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OidcConfig {
    /// Where it listens.
    pub listen: Listen,
    /// Certificate and key files, PEM; absent means plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Replaces `jwks_uri` in the discovery document.
    pub jwks_uri: Option<String>,
    /// Path in front of the endpoints: empty, or with a leading and without a trailing slash.
    pub path_prefix: String,
    /// Hosts requests may name; empty allows all, as does an entry `*`.
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

/// The process log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Lowest severity written.
    pub level: Level,
    /// JSON lines.
    pub json: bool,
    /// File instead of standard output.
    pub file: Option<PathBuf>,
}

/// Flags and environment cannot be used; one line for each reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigError(pub Vec<String>);

impl Config {
    /// Reads the flags of [`FLAGS`] and, through `env`, the environment. All errors are reported
    /// together.
    pub fn from_flags(flags: &Values, env: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut reader = Reader {
            flags,
            problems: Vec::new(),
        };
        reader.check_mode();
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
                reader.problem(format!("--insecure-control-plane: {error}"));
                None
            }
        };
        let jwt = reader.jwt();
        let oidc = reader.oidc();
        let log = reader.log();
        let grpc = Listen {
            host: flags.text("listen-address").to_owned(),
            port: reader.port("port", flags.int("port")),
        };
        let healthz_port = reader.port("healthz-port", flags.int("healthz-port"));
        let metrics_port = flags.boolean("enable-metrics").then(|| reader.metrics_port());
        match (trust_domain, control_plane, log, reader.problems.is_empty()) {
            (Some(trust_domain), Some(control_plane), Some(log), true) => Ok(Self {
                configuration: flags.text("config").into(),
                paths: paths(flags),
                trust_domain,
                namespace: env("NAMESPACE")
                    .filter(|name| !name.is_empty())
                    .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
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
    }
}

/// Reads flags and collects what is wrong with them.
struct Reader<'a> {
    flags: &'a Values,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    fn check_mode(&mut self) {
        match self.flags.text("mode") {
            "standalone" => {}
            "kubernetes" => self.problem(
                "--mode kubernetes is not supported yet: run sentry with --mode standalone and CA files, \
                 or use Dapr's own sentry in the cluster",
            ),
            other => self.problem(format!(
                "--mode \"{other}\" is unknown, want standalone or kubernetes"
            )),
        }
    }

    fn port(&mut self, flag: &str, value: i64) -> u16 {
        u16::try_from(value).unwrap_or_else(|_| {
            self.problem(format!("--{flag} {value} is not a port, want 0 to 65535"));
            0
        })
    }

    fn metrics_port(&mut self) -> u16 {
        let text = self.flags.text("metrics-port");
        text.parse().unwrap_or_else(|_| {
            self.problem(format!(
                "--metrics-port \"{text}\" is not a port, want 0 to 65535"
            ));
            0
        })
    }

    /// The value of a text flag, when it was given and is not empty.
    fn given(&self, flag: &str) -> Option<String> {
        Some(self.flags.text(flag))
            .filter(|value| !value.is_empty())
            .map(str::to_owned)
    }

    fn jwt(&mut self) -> Option<JwtConfig> {
        let issuer = self.given("jwt-issuer");
        if !self.flags.boolean("jwt-enabled") {
            if issuer.is_some() {
                self.problem("--jwt-issuer has no effect without --jwt-enabled=true: set both or neither");
            }
            return None;
        }
        let ttl = go_duration(self.flags.text("jwt-ttl"))
            .inspect_err(|error| self.problem(format!("--jwt-ttl: {error}")))
            .ok();
        let algorithm = self
            .flags
            .text("jwt-signing-algorithm")
            .parse()
            .inspect_err(|error| self.problem(format!("--jwt-signing-algorithm: {error}")))
            .ok();
        Some(JwtConfig {
            issuer,
            algorithm: algorithm?,
            key_id: self.given("jwt-key-id"),
            ttl: ttl?,
        })
    }

    fn oidc(&mut self) -> Option<OidcConfig> {
        let certificate = self.given("oidc-server-tls-cert-file");
        let key = self.given("oidc-server-tls-key-file");
        let tls = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(TlsFiles {
                certificate: certificate.into(),
                key: key.into(),
            }),
            (None, None) => None,
            _ => {
                self.problem(
                    "--oidc-server-tls-cert-file and --oidc-server-tls-key-file belong together: set both or neither",
                );
                None
            }
        };
        let port = self.port(
            "oidc-server-listen-port",
            self.flags.int("oidc-server-listen-port"),
        );
        if !self.flags.boolean("oidc-enabled") {
            return None;
        }
        if self.flags.boolean("oidc-server-tls-enabled") && tls.is_none() {
            self.problem(
                "the OIDC server uses TLS: set --oidc-server-tls-cert-file and --oidc-server-tls-key-file, \
                 or --oidc-server-tls-enabled=false",
            );
        }
        let jwks_uri = self.given("oidc-jwks-uri");
        if let Some(uri) = &jwks_uri
            && let Err(error) = uri.parse::<http::Uri>()
        {
            self.problem(format!("--oidc-jwks-uri \"{uri}\": {error}"));
        }
        let host = self.flags.text("oidc-server-listen-address").to_owned();
        Some(OidcConfig {
            listen: Listen { host, port },
            tls,
            jwks_uri,
            path_prefix: path_prefix(self.flags.text("oidc-path-prefix")),
            allowed_hosts: self.flags.list("oidc-allowed-hosts"),
        })
    }

    fn log(&mut self) -> Option<LogSettings> {
        let level = self
            .flags
            .text("log-level")
            .parse()
            .inspect_err(|error| self.problem(format!("--log-level: {error}")))
            .ok()?;
        let file = self.given("log-file").map(PathBuf::from);
        Some(LogSettings {
            level,
            json: self.flags.boolean("log-as-json"),
            file,
        })
    }
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
