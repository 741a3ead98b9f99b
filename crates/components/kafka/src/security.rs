//! TLS and authentication: `authType` and its properties.

use krafka::auth::{AuthConfig, TlsConfig};
use outrigger_component::{Metadata, MetadataError, Result};
use outrigger_tls::{AnyCertificate, Verifier};

use super::oidc::Tokens;

/// TLS and credentials of connections.
#[derive(Clone)]
pub(super) struct Security {
    tls: Option<Tls>,
    sasl: Sasl,
}

#[derive(Clone)]
struct Tls {
    skip_verify: bool,
    root: Option<String>,
    identity: Option<(String, String)>,
}

#[derive(Clone)]
enum Sasl {
    None,
    Plain(String, String),
    Sha256(String, String),
    Sha512(String, String),
    Tokens(Tokens),
}

impl Security {
    pub(super) fn read(metadata: &Metadata) -> Result<Self> {
        let kind = match (metadata.filled(&["authType"]), metadata.filled(&["authRequired"])) {
            (None, Some(required)) => of_old(metadata, required)?.to_owned(),
            _ => metadata.required(&["authType"])?.to_lowercase(),
        };
        let root = metadata.pem("caCert")?.map(str::to_owned);
        let skip_verify = metadata.flag(&["skipVerify"], false);
        let without_tls = metadata.flag(&["disableTls"], false);
        let owned = |name: &str| metadata.required(&[name]).map(str::to_owned);
        let mut tls = (!without_tls).then(|| Tls {
            skip_verify,
            root: root.clone(),
            identity: None,
        });
        let sasl = match kind.as_str() {
            "none" => {
                tls = None;
                Sasl::None
            }
            "password" => {
                let (user, password) = (owned("saslUsername")?, owned("saslPassword")?);
                match metadata.filled(&["saslMechanism"]) {
                    Some("SHA-256") => Sasl::Sha256(user, password),
                    Some("SHA-512") => Sasl::Sha512(user, password),
                    // Like in Dapr, other values mean PLAIN.
                    _ => Sasl::Plain(user, password),
                }
            }
            "mtls" => {
                let Some(tls) = &mut tls else {
                    let expected = "authType mtls is not possible with it";
                    return Err(metadata.wrong(&["disableTls"], expected).into());
                };
                let identity = metadata.client_identity()?;
                tls.identity = identity.map(|(certificate, key)| (certificate.to_owned(), key.to_owned()));
                Sasl::None
            }
            "certificate" => {
                metadata.required(&["caCert"])?;
                Sasl::None
            }
            "oidc" | "oidc_private_key_jwt" => {
                let trust = issuer_tls(metadata, root.as_deref(), skip_verify)?;
                Sasl::Tokens(Tokens::read(metadata, trust)?)
            }
            "awsiam" => {
                let expected = "awsiam is not supported; use password, mtls, certificate or oidc";
                return Err(metadata.wrong(&["authType"], expected).into());
            }
            _ => {
                let expected = "use none, password, mtls, certificate, oidc or oidc_private_key_jwt";
                return Err(metadata.wrong(&["authType"], expected).into());
            }
        };
        if let Some(tls) = &tls {
            tls.check(metadata)?;
        }
        Ok(Self { tls, sasl })
    }

    /// Converts to the client's configuration.
    pub(super) fn config(&self) -> AuthConfig {
        let config = match &self.sasl {
            Sasl::None => AuthConfig::plaintext(),
            Sasl::Plain(user, password) => AuthConfig::sasl_plain(user, password),
            Sasl::Sha256(user, password) => AuthConfig::sasl_scram_sha256(user, password),
            Sasl::Sha512(user, password) => AuthConfig::sasl_scram_sha512(user, password),
            Sasl::Tokens(tokens) => AuthConfig::sasl_oauthbearer_provider(tokens.clone()),
        };
        match &self.tls {
            None => config,
            Some(tls) => config.with_tls(tls.config()),
        }
    }
}

impl Tls {
    /// Validates certificates early, because the client reads them only when it connects.
    fn check(&self, metadata: &Metadata) -> Result<()> {
        let identity = self.identity.as_ref();
        let identity = identity.map(|(chain, key)| (chain.as_str(), key.as_str()));
        metadata.client_tls_of(self.root.as_deref(), identity)?;
        Ok(())
    }

    fn config(&self) -> TlsConfig {
        let mut config = if self.skip_verify {
            TlsConfig::insecure()
        } else {
            TlsConfig::new()
        };
        config = match &self.root {
            Some(root) => config.with_ca_cert_pem(root.as_str()),
            None => config.with_native_roots(),
        };
        match &self.identity {
            Some((chain, key)) => config.with_client_cert_pem(chain.as_str(), key.clone().into_bytes()),
            None => config,
        }
    }
}

/// Interprets the deprecated property `authRequired`.
fn of_old(metadata: &Metadata, required: &str) -> Result<&'static str, MetadataError> {
    match required.to_lowercase().as_str() {
        "true" | "t" | "1" if metadata.filled(&["saslPassword"]).is_some() => Ok("password"),
        "true" | "t" | "1" => Ok("mtls"),
        "false" | "f" | "0" => Ok("none"),
        _ => Err(metadata.wrong(&["authRequired"], "use true or false")),
    }
}

/// TLS settings for the token issuer.
fn issuer_tls(metadata: &Metadata, root: Option<&str>, skip_verify: bool) -> Result<rustls::ClientConfig> {
    let mut config = metadata.client_tls_of(root, None)?;
    if skip_verify {
        let verifier = Verifier::new(AnyCertificate, config.crypto_provider());
        config
            .dangerous()
            .set_certificate_verifier(std::sync::Arc::new(verifier));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use outrigger_components_testing::tls::Certificates;

    use super::*;

    fn read(properties: &[(&str, &str)]) -> Result<Security> {
        let owned = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Security::read(&Metadata::new("broker", owned).unwrap())
    }

    #[test]
    fn no_tls_without_authentication() {
        let security = read(&[("authType", "none"), ("caCert", "")]).unwrap();
        assert!(security.tls.is_none());
        assert!(!security.config().requires_tls());
    }

    #[test]
    fn password_implies_tls() {
        let password = [
            ("authType", "Password"),
            ("saslUsername", "u"),
            ("saslPassword", "p"),
        ];
        let security = read(&password).unwrap();
        assert!(security.config().requires_tls() && matches!(security.sasl, Sasl::Plain(..)));
        let mut open = password.to_vec();
        open.extend([("disableTls", "true"), ("saslMechanism", "SHA-512")]);
        let security = read(&open).unwrap();
        assert!(!security.config().requires_tls() && matches!(security.sasl, Sasl::Sha512(..)));
    }

    #[test]
    fn accepts_deprecated_property() {
        assert!(matches!(
            read(&[("authRequired", "false")]).unwrap().sasl,
            Sasl::None
        ));
        let old = [
            ("authRequired", "true"),
            ("saslUsername", "u"),
            ("saslPassword", "p"),
        ];
        assert!(matches!(read(&old).unwrap().sasl, Sasl::Plain(..)));
        let error = read(&[("authRequired", "perhaps")]).map(drop).unwrap_err();
        assert!(error.to_string().contains("authRequired"), "{error}");
    }

    #[test]
    fn names_damaged_certificate() {
        let (of, other) = (Certificates::new(), Certificates::new());
        let good = [
            ("caCert", &*of.root),
            ("clientCert", &of.client),
            ("clientKey", &of.client_key),
        ];
        let damaged = "-----BEGIN ";
        let with = |name: &str, value: &str| {
            let mut properties = [&[("authType", "mtls")][..], &good].concat();
            for property in &mut properties {
                if property.0 == name {
                    property.1 = value;
                }
            }
            read(&properties).map(drop)
        };
        with("", "").unwrap();
        for (name, _) in good {
            let error = with(name, damaged).unwrap_err();
            assert_eq!(error.property(), Some(name), "{error}");
        }
        // PEM without a certificate, and the key of another certificate.
        let nothing = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let error = with("clientCert", nothing).unwrap_err();
        assert_eq!(error.property(), Some("clientCert"), "{error}");
        let error = with("clientKey", &other.client_key).unwrap_err();
        assert_eq!(error.property(), Some("clientKey"), "{error}");
        assert!(
            error.to_string().contains("not that of the client certificate"),
            "{error}"
        );
    }

    #[test]
    fn names_missing_property() {
        for (name, properties) in [
            ("authType", &[] as &[(&str, &str)]),
            ("saslUsername", &[("authType", "password")]),
            ("saslPassword", &[("authType", "password"), ("saslUsername", "u")]),
            ("caCert", &[("authType", "certificate")]),
            ("caCert", &[("authType", "mtls"), ("caCert", "no PEM")]),
            (
                "clientKey",
                &[
                    ("authType", "mtls"),
                    ("clientCert", "-----BEGIN CERTIFICATE-----"),
                ],
            ),
            ("disableTls", &[("authType", "mtls"), ("disableTls", "true")]),
            ("oidcTokenEndpoint", &[("authType", "oidc")]),
            ("authType", &[("authType", "awsiam")]),
        ] {
            let error = read(properties).map(drop).unwrap_err();
            assert!(error.to_string().contains(name), "{name}: {error}");
        }
    }
}
