//! The flags of the sentry binary, with the names and defaults of Dapr 1.18.

use outrigger_controlplane::config::{
    DURATION, ENABLE_METRICS, HEALTHZ_LISTEN_ADDRESS_IGNORED, HEALTHZ_PORT, LOG_AS_JSON, LOG_FILE, LOG_LEVEL,
    METRICS_PORT, TRUST_DOMAIN,
};
use outrigger_flags::Flag;

/// All flags of the sentry binary.
pub const FLAGS: &[Flag] = &[
    Flag::text(
        "config",
        "daprsystem",
        "Configuration with the mtls settings: path of a file, or in Kubernetes its name",
    ),
    Flag::text(
        "issuer-credentials",
        "/var/run/secrets/dapr.io/credentials",
        "Folder of the CA's certificates and keys",
    ),
    Flag::text("issuer-ca-filename", "ca.crt", "File of the root certificates"),
    Flag::text(
        "issuer-certificate-filename",
        "issuer.crt",
        "File of the issuer certificate chain",
    ),
    Flag::text(
        "issuer-key-filename",
        "issuer.key",
        "File of the issuer's private key",
    ),
    Flag::text(
        "ca-rotation",
        "own",
        "Rotate the CA before expiry: own (this sentry's), adopt (any sentry's) or off",
    ),
    TRUST_DOMAIN,
    Flag::int("port", "50001", "Port of the gRPC server"),
    Flag::text(
        "listen-address",
        "",
        "Address of the gRPC server; empty means all addresses",
    ),
    HEALTHZ_PORT,
    HEALTHZ_LISTEN_ADDRESS_IGNORED,
    Flag::text(
        "mode",
        "standalone",
        "Where sentry runs: standalone or kubernetes",
    ),
    Flag::text(
        "insecure-control-plane",
        "same-user",
        "Tokenless control plane certificates: same-user (local processes of sentry's user or root) or nobody",
    ),
    Flag::text(
        "kubeconfig",
        "",
        "Path of a kubeconfig file for Kubernetes mode outside of a pod",
    ),
    Flag::boolean("jwt-enabled", "false", "Issue JWTs in addition to certificates"),
    Flag::text(
        "jwt-key-filename",
        "jwt.key",
        "Absolute path of the private key that signs JWTs",
    ),
    Flag::text(
        "jwks-filename",
        "jwks.json",
        "Absolute path of the JWK set that verifies JWTs",
    ),
    Flag::text("jwt-issuer", "", "The iss claim of JWTs"),
    Flag::text(
        "jwt-signing-algorithm",
        "RS256",
        "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 or EdDSA; must fit the key",
    ),
    Flag::text(
        "jwt-key-id",
        "",
        "The kid of JWTs; by default the thumbprint of the key",
    ),
    Flag::new("jwt-ttl", DURATION, "24h", "Lifetime of JWTs"),
    Flag::boolean(
        "oidc-enabled",
        "false",
        "Serve OIDC discovery and the JWK set over HTTP",
    ),
    Flag::int("oidc-server-listen-port", "9080", "Port of the OIDC server"),
    Flag::text(
        "oidc-server-listen-address",
        "localhost",
        "Address of the OIDC server",
    ),
    Flag::boolean(
        "oidc-server-tls-enabled",
        "true",
        "Require TLS files for the OIDC server",
    ),
    Flag::text("oidc-server-tls-cert-file", "", "Certificate of the OIDC server"),
    Flag::text("oidc-server-tls-key-file", "", "Private key of the OIDC server"),
    Flag::text("oidc-jwks-uri", "", "Public URI of the JWK set"),
    Flag::text("oidc-path-prefix", "", "Path in front of the OIDC endpoints"),
    Flag::list(
        "oidc-allowed-hosts",
        "Hosts that OIDC requests may name; empty means all",
    ),
    LOG_LEVEL,
    LOG_AS_JSON,
    LOG_FILE,
    ENABLE_METRICS,
    METRICS_PORT,
    Flag::text(
        "metrics-listen-address",
        "0.0.0.0",
        "No effect: the metrics server listens on all addresses",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_documented() {
        outrigger_testing::pages::Page::read("reference/flags.md")
            .check("sentry", &outrigger_flags::reference(FLAGS));
    }
}
