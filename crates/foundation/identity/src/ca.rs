//! The client of the certificate authority (`dapr.proto.sentry.v1.CA`).

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_wire::sentry::v1::{SignCertificateRequest, SignCertificateResponse};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256,
    SignatureAlgorithm,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::bundle::{BundleError, TrustAnchors};
use crate::dial::{AttemptError, Sentry};
use crate::id::{IdError, SpiffeId, TrustDomain, is_control_plane};
use crate::jwt::{JwtError, JwtSvid};
use crate::learned::LearnedRoots;
use crate::pem::{self, PemError};
use crate::svid::{Svid, SvidError};
use crate::token::{self, Env, Mode, TokenError};

/// Attempts per request, including the first.
const ATTEMPTS: u32 = 5;
/// Timeout of an attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause between attempts, before jitter.
const BACKOFF: Duration = Duration::from_millis(50);
/// Maximum jitter as a fraction of the pause.
const JITTER: f64 = 0.1;
/// Overrides the app ID as the requested identity.
const IDENTITY_VARIABLE: &str = "SENTRY_LOCAL_IDENTITY";
/// Services whose certificates an API server of Kubernetes verifies. Some API servers reject Ed25519.
const WEBHOOKS: [&str; 2] = ["dapr-injector", "dapr-operator"];
/// Namespace of this workload.
const NAMESPACE_VARIABLE: &str = "NAMESPACE";
/// Default namespace.
const DEFAULT_NAMESPACE: &str = "default";

/// Address of the authority, and the identity to request.
#[derive(Clone)]
pub struct CaConfig {
    /// `host:port` of the authority.
    pub sentry_address: String,
    /// Trust domain of the control plane.
    pub control_plane_trust_domain: TrustDomain,
    /// Namespace of the control plane.
    pub control_plane_namespace: String,
    /// App id of this workload.
    pub app_id: String,
    /// Namespace of this workload; `None` uses the variable `NAMESPACE`, and `default` without it.
    pub namespace: Option<String>,
    /// Audiences of the JWT in addition to the trust domain.
    pub jwt_audiences: Vec<String>,
    /// Selects the token to send.
    pub mode: Mode,
    /// A file with the token, with precedence over other sources.
    pub token_file: Option<PathBuf>,
    /// The environment.
    pub env: Env,
}

/// Why no identity was obtained.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Invalid address of the authority.
    #[error("sentry address {address:?} is not valid: {cause}; expected host:port, see --sentry-address")]
    Address {
        /// The configured address.
        address: String,
        /// The cause.
        cause: String,
    },
    /// The configuration does not form a valid identity of the authority.
    #[error("the identity of sentry cannot be formed from the control plane namespace: {0}")]
    ControlPlane(#[from] IdError),
    /// No connection.
    #[error(
        "error establishing connection to sentry at {address}: {cause}; check that sentry runs there, and that the \
         trust anchors of this process are its own"
    )]
    Connection {
        /// The configured address of sentry.
        address: String,
        /// The error of the last attempt.
        cause: String,
    },
    /// No token.
    #[error("error obtaining token: {0}")]
    Token(#[from] TokenError),
    /// The authority rejected the request, or did not respond in time.
    #[error(
        "sentry at {address} did not sign the certificate of {app_id:?} in namespace {namespace:?}: {cause}; {remedy}"
    )]
    Sign {
        /// The configured address of sentry.
        address: String,
        /// The requested app ID.
        app_id: String,
        /// The requested namespace.
        namespace: String,
        /// The authority's response.
        cause: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The response has no valid time.
    #[error("error parsing ValidUntil: {0}")]
    ValidUntil(&'static str),
    /// The certificates in the response cannot be decoded.
    #[error("error parsing newly signed certificate: {0}")]
    Certificate(#[from] PemError),
    /// The certificates in the response are not an identity for our key.
    #[error(transparent)]
    Svid(#[from] SvidError),
    /// The JWT in the response is invalid.
    #[error(transparent)]
    Jwt(#[from] JwtError),
    /// The key or the request could not be created, or the identity could not be stored.
    #[error("{0}")]
    Local(String),
}

impl FetchError {
    /// Value of the label `reason` of the failure metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Address { .. } | Self::ControlPlane(_) | Self::Connection { .. } => "sentry_conn",
            Self::Token(_) => "sentry_token",
            Self::Sign { .. } | Self::Certificate(_) | Self::Svid(_) | Self::Local(_) => "sign",
            Self::ValidUntil(_) => "invalid_ts",
            Self::Jwt(JwtError::Parse(_)) => "jwt_parse",
            Self::Jwt(JwtError::NotOfTrustDomain { .. } | JwtError::Mismatch { .. }) => "jwt_aud",
        }
    }
}

/// An issuer of this process's identity: the authority's client, or the authority itself.
pub trait SvidSource: Send + Sync {
    /// Requests a new identity for a new key.
    fn fetch(&self) -> Pin<Box<dyn Future<Output = Result<Svid, FetchError>> + Send + '_>>;
}

/// Client of the certificate authority.
pub struct CaClient {
    config: CaConfig,
    sentry: Sentry,
    namespace: String,
    learned: Option<LearnedRoots>,
}

impl CaClient {
    /// Does not connect yet.
    ///
    /// # Errors
    /// [`FetchError::Address`] or [`FetchError::ControlPlane`].
    pub fn new(config: CaConfig, anchors: TrustAnchors) -> Result<Self, FetchError> {
        let id = SpiffeId::sentry(
            &config.control_plane_trust_domain,
            &config.control_plane_namespace,
        )?;
        let sentry =
            Sentry::new(&config.sentry_address, id, anchors).map_err(|cause| FetchError::Address {
                address: config.sentry_address.clone(),
                cause,
            })?;
        let namespace = config
            .namespace
            .clone()
            .or_else(|| (config.env)(NAMESPACE_VARIABLE))
            .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
        Ok(Self {
            config,
            sentry,
            namespace,
            learned: None,
        })
    }

    /// Also trusts the roots in each response of the authority, in addition to the current anchors.
    ///
    /// # Errors
    /// If the anchors cannot be parsed.
    pub fn learning(self, anchors: TrustAnchors) -> Result<Self, BundleError> {
        let learned = Some(LearnedRoots::new(anchors)?);
        Ok(Self { learned, ..self })
    }

    async fn request_identity(&self) -> Result<Svid, FetchError> {
        let mut key = new_key(self.algorithm()).await?;
        let mut request = self.request(&key).await?;
        let mut signed = self.sign(&request).await;
        // Dapr's sentry before v1.17.7 signs with the algorithm of the request, which its P-256 issuer must have.
        if signed.as_ref().is_err_and(|(error, _)| error.is_of_issuer()) {
            tracing::debug!(
                "sentry cannot sign for this kind of key: requesting a certificate for a P-256 key"
            );
            key = new_key(&PKCS_ECDSA_P256_SHA256).await?;
            request.certificate_signing_request = signing_request(&key)?.into();
            signed = self.sign(&request).await;
        }
        let response = signed.map_err(|(error, attempts)| self.failure(&request, &error, attempts))?;
        let trust_chain = response.trust_chain_certificates.clone();
        let svid = accept(response, key)?;
        // Learn the roots before the certificate is used: peers may already have certificates of the next
        // root.
        if let Some(learned) = &self.learned {
            learned.learn(&trust_chain);
        }
        Ok(svid)
    }

    /// Ed25519; RSA for webhooks.
    fn algorithm(&self) -> &'static SignatureAlgorithm {
        match WEBHOOKS.contains(&self.config.app_id.as_str()) {
            true => &PKCS_RSA_SHA256,
            false => &PKCS_ED25519,
        }
    }

    async fn request(&self, key: &KeyPair) -> Result<SignCertificateRequest, FetchError> {
        let config = &self.config;
        let token = token::select(
            config.token_file.as_deref(),
            config.mode,
            &config.env,
            Path::new("/"),
        )
        .await?;
        let is_control_plane =
            is_control_plane(&config.app_id) && self.namespace == config.control_plane_namespace;
        Ok(SignCertificateRequest {
            id: self.app_id(),
            token: token.text,
            trust_domain: match is_control_plane {
                true => config.control_plane_trust_domain.to_string(),
                // The authority decides.
                false => String::new(),
            },
            namespace: self.namespace.clone(),
            certificate_signing_request: signing_request(key)?.into(),
            token_validator: token.validator.into(),
            jwt_audiences: config.jwt_audiences.clone(),
        })
    }

    fn app_id(&self) -> String {
        (self.config.env)(IDENTITY_VARIABLE)
            .filter(|id| !id.is_empty())
            .unwrap_or_else(|| self.config.app_id.clone())
    }

    /// Fails with the last error and the number of attempts.
    async fn sign(
        &self,
        request: &SignCertificateRequest,
    ) -> Result<SignCertificateResponse, (AttemptError, u32)> {
        let mut attempt = 1;
        loop {
            let outcome = tokio::time::timeout(ATTEMPT_TIMEOUT, self.sentry.sign(request.clone())).await;
            let error = match outcome {
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) => error,
                Err(_) => AttemptError::Timeout,
            };
            if attempt == ATTEMPTS || !error.is_transient() {
                return Err((error, attempt));
            }
            tracing::debug!(attempt, "sentry did not sign: {error}");
            attempt += 1;
            let deviation = rand::random_range(-JITTER..=JITTER);
            tokio::time::sleep(BACKOFF.mul_f64(1.0 + deviation)).await;
        }
    }

    fn failure(&self, request: &SignCertificateRequest, error: &AttemptError, attempts: u32) -> FetchError {
        let address = self.config.sentry_address.clone();
        let cause = match attempts {
            1 => error.to_string(),
            _ => format!("{error} (after {attempts} attempts)"),
        };
        match error {
            AttemptError::Connect(_) => FetchError::Connection { address, cause },
            AttemptError::Status(_) | AttemptError::Timeout => FetchError::Sign {
                address,
                app_id: request.id.clone(),
                namespace: request.namespace.clone(),
                cause,
                remedy: error.remedy(),
            },
        }
    }
}

impl SvidSource for CaClient {
    fn fetch(&self) -> Pin<Box<dyn Future<Output = Result<Svid, FetchError>> + Send + '_>> {
        Box::pin(self.request_identity())
    }
}

/// A new key; RSA has 2048 bits.
async fn new_key(algorithm: &'static SignatureAlgorithm) -> Result<KeyPair, FetchError> {
    let failed = |error: &dyn std::fmt::Display| FetchError::Local(format!("no private key: {error}"));
    // The search for primes takes about 100 ms.
    tokio::task::spawn_blocking(move || KeyPair::generate_for(algorithm))
        .await
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))
}

/// A certificate request without a subject, as PEM.
fn signing_request(key: &KeyPair) -> Result<String, FetchError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .serialize_request(key)
        .map(|request| pem::encode("CERTIFICATE REQUEST", request.der()))
        .map_err(|error| FetchError::Local(format!("no certificate request: {error}")))
}

/// Validates the authority's response.
fn accept(response: SignCertificateResponse, key: KeyPair) -> Result<Svid, FetchError> {
    // The range of `google.protobuf.Timestamp`: years 1 to 9999.
    const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;
    const NANOS: std::ops::Range<i32> = 0..1_000_000_000;
    let until = response
        .valid_until
        .ok_or(FetchError::ValidUntil("it is missing"))?;
    if !SECONDS.contains(&until.seconds) || !NANOS.contains(&until.nanos) {
        return Err(FetchError::ValidUntil("it is out of range"));
    }
    let chain = pem::parse_certificates(&response.workload_certificate)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let svid = Svid::new(chain, key)?;
    let now = Timestamp::now();
    let of_audience = |(audience, token): (String, String)| {
        let jwt = JwtSvid::parse(&token, now)?.of_one_audience(&audience)?;
        Ok((audience, jwt))
    };
    let each = response.per_audience_jwts.into_iter().map(of_audience);
    let each = each.collect::<Result<_, JwtError>>()?;
    let svid = svid.with_audience_jwts(each);
    match response.jwt.filter(|token| !token.is_empty()) {
        Some(token) => {
            let jwt = JwtSvid::parse(&token, now)?.of_trust_domain(svid.id().trust_domain())?;
            Ok(svid.with_jwt(jwt))
        }
        None => Ok(svid),
    }
}
