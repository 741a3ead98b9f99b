//! The JWT part of the authority: its key, its key set, and the tokens it issues.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, SystemTime};

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    rsa::{KeyPair, KeySize},
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use outrigger_identity::{SpiffeId, pem};
use rustls_pki_types::PrivateKeyDer;
use serde::Serialize;
use serde_json::json;

use super::{Algorithm, KeySet, key::PublicKey, signer::Signer};
use crate::{
    config::JwtConfig,
    material::{Fault, File},
};

/// The files of the JWT part.
#[derive(Debug, Clone)]
pub(crate) struct JwtFiles {
    /// PEM private key.
    pub key: Vec<u8>,
    /// The JWK set served to verifiers.
    pub jwks: Vec<u8>,
}

/// Issues tokens to workloads.
#[derive(Debug)]
pub(crate) struct JwtAuthority {
    signer: Signer,
    jwks: Bytes,
    issuer: Option<String>,
    ttl: Duration,
    skew: Duration,
}

/// The subject and audiences of a token.
#[derive(Debug)]
pub(crate) struct JwtRequest<'a> {
    pub id: &'a SpiffeId,
    /// Audiences in addition to the trust domain.
    pub audiences: &'a [String],
}

/// The tokens of a workload.
#[derive(Debug)]
pub(crate) struct Tokens {
    /// For all audiences.
    pub all: String,
    /// By audience, for that audience alone.
    pub each: HashMap<String, String>,
}

/// Why a token cannot be issued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("the system's source of random numbers failed")]
    Random,
    #[error("the token could not be signed")]
    Sign,
}

#[derive(Serialize)]
struct Claims<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<&'a str>,
    sub: &'a str,
    aud: &'a [&'a str],
    iat: u64,
    nbf: u64,
    exp: u64,
    jti: String,
    #[serde(rename = "use")]
    usage: &'static str,
}

/// Generates an RSA key for RS256 and its key set. Without a key id the thumbprint is used.
pub(crate) fn generate(key_id: Option<&str>) -> Result<JwtFiles, TokenError> {
    let pair = KeyPair::generate(KeySize::Rsa2048).map_err(|_| TokenError::Sign)?;
    let der: Pkcs8V1Der<'static> = pair.as_der().map_err(|_| TokenError::Sign)?;
    let key = PrivateKeyDer::Pkcs8(der.as_ref().to_vec().into());
    let public = public_half(&key).map_err(|_| TokenError::Sign)?;
    let kid = key_id.map_or_else(|| thumbprint_kid(&public), str::to_owned);
    let jwks = json!({"keys": [public.to_jwk(&kid, Algorithm::Rs256)]});
    Ok(JwtFiles {
        key: pem::encode("PRIVATE KEY", der.as_ref()).into(),
        jwks: jwks.to_string().into(),
    })
}

impl JwtAuthority {
    /// Validates the files against each other and against the configuration.
    pub(crate) fn load(files: &JwtFiles, config: &JwtConfig, skew: Duration) -> Result<Self, Fault> {
        let key = pem::parse_private_key(&files.key)
            .map_err(|error| File::JwtKey.fault(error, "It must contain a PEM private key"))?;
        let public = public_half(&key).map_err(|error| File::JwtKey.fault(error, ""))?;
        check_key_set(&files.jwks, &public, config.key_id.as_deref())?;
        let kid = config.key_id.clone().unwrap_or_else(|| {
            let kid = thumbprint_kid(&public);
            tracing::info!(
                target: "dapr.sentry.ca",
                "Using JWT kid from thumbprint: {kid}; the JWKS should use the same kid"
            );
            kid
        });
        let signer = Signer::new(&key, &public, config.algorithm, &kid).map_err(|error| {
            File::JwtKey.fault(
                error,
                "Set --jwt-signing-algorithm to one that fits the key, or provide another key",
            )
        })?;
        Ok(Self {
            signer,
            jwks: Bytes::copy_from_slice(&files.jwks),
            issuer: config.issuer.clone(),
            ttl: config.ttl,
            skew,
        })
    }

    /// The key set, byte for byte as in the file.
    pub(crate) fn jwks(&self) -> Bytes {
        self.jwks.clone()
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        self.signer.algorithm()
    }

    /// Issues the tokens of a workload. The trust domain is the first audience. Signs once for each audience.
    pub(crate) fn issue(&self, request: &JwtRequest<'_>) -> Result<Tokens, TokenError> {
        let requested = request.audiences.iter().map(String::as_str);
        let audiences: Vec<&str> = std::iter::once(request.id.trust_domain())
            .chain(requested)
            .collect();
        let distinct: BTreeSet<&str> = audiences.iter().copied().collect();
        let each = distinct
            .into_iter()
            .map(|audience| Ok((audience.to_owned(), self.token(request.id, &[audience])?)))
            .collect::<Result<_, _>>()?;
        let all = self.token(request.id, &audiences)?;
        Ok(Tokens { all, each })
    }

    /// A token. Like a certificate, it is valid from slightly before now.
    fn token(&self, id: &SpiffeId, audiences: &[&str]) -> Result<String, TokenError> {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let mut nonce = [0u8; 16];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| TokenError::Random)?;
        let claims = Claims {
            iss: self.issuer.as_deref(),
            sub: id.as_str(),
            aud: audiences,
            iat: now.as_secs(),
            nbf: now.saturating_sub(self.skew).as_secs(),
            exp: now.saturating_add(self.ttl).as_secs(),
            jti: nonce.iter().map(|byte| format!("{byte:02x}")).collect(),
            usage: "sig",
        };
        self.signer.sign(&claims).ok_or(TokenError::Sign)
    }
}

fn public_half(key: &PrivateKeyDer<'_>) -> Result<PublicKey, String> {
    let spki = pem::public_key_of(key).map_err(|error| error.to_string())?;
    PublicKey::from_spki(&spki).ok_or_else(|| "the key is not an RSA, ECDSA or Ed25519 key".to_owned())
}

/// The id of a key without configured id: its thumbprint in standard base64.
fn thumbprint_kid(key: &PublicKey) -> String {
    STANDARD.encode(key.thumbprint())
}

/// Checks that the set has the signing key, under its configured id if there is one.
fn check_key_set(jwks: &[u8], public: &PublicKey, key_id: Option<&str>) -> Result<(), Fault> {
    let set = KeySet::parse(jwks).map_err(|error| {
        File::Jwks.fault(
            error,
            "It must contain the JWK set with the public half of the JWT signing key",
        )
    })?;
    if set.len() == 0 {
        return Err(File::Jwks.fault(
            "the set has no keys",
            "Add the public half of the JWT signing key",
        ));
    }
    let named: Vec<_> = set
        .keys
        .iter()
        .filter(|key| key_id.is_none_or(|id| key.kid.as_deref() == Some(id)))
        .collect();
    if named.is_empty() {
        return Err(File::Jwks.fault(
            format!(
                "the set has no key with the id \"{}\"",
                key_id.unwrap_or_default()
            ),
            "Set the key's kid in the set to the value of --jwt-key-id",
        ));
    }
    if named
        .iter()
        .any(|key| key.is_for_signatures() && key.key.as_ref() == Some(public))
    {
        return Ok(());
    }
    Err(File::Jwks.fault(
        "no key of the set is the public half of the JWT signing key",
        "Add it, with \"use\" absent or \"sig\"",
    ))
}
