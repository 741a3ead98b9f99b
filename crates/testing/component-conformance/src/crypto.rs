use std::sync::Arc;

use outrigger_component::{
    CryptoProvider, Error, Kind,
    crypto::{Parameters, Sealed},
};

use super::{Findings, Outcome, Step, ensure};

/// Key names of the provider under test. No key is restricted to an algorithm or use.
pub struct CryptoKeys {
    /// Symmetric keys by length in bytes: 16, 24, 32, 48 and 64.
    pub symmetric: Vec<(usize, String)>,
    /// RSA private keys.
    pub rsa: Vec<String>,
    /// EC private keys by signature algorithm, e.g. `ES256`.
    pub ec: Vec<(&'static str, String)>,
    /// An Ed25519 private key.
    pub ed25519: String,
    /// Public keys, each with the name of its private key.
    pub public: Vec<(String, String)>,
    /// The name of a missing key.
    pub absent: String,
}

/// Symmetric algorithms: name, key length and nonce length in bytes.
const SYMMETRIC: &[(&str, usize, usize)] = &[
    ("A128CBC", 16, 16),
    ("A192CBC", 24, 16),
    ("A256CBC", 32, 16),
    ("A128CBC-NOPAD", 16, 16),
    ("A192CBC-NOPAD", 24, 16),
    ("A256CBC-NOPAD", 32, 16),
    ("A128GCM", 16, 12),
    ("A192GCM", 24, 12),
    ("A256GCM", 32, 12),
    ("A128CBC-HS256", 32, 16),
    ("A192CBC-HS384", 48, 16),
    ("A256CBC-HS512", 64, 16),
    ("A128KW", 16, 0),
    ("A192KW", 24, 0),
    ("A256KW", 32, 0),
    ("C20P", 32, 12),
    ("C20PKW", 32, 12),
    ("XC20P", 32, 24),
    ("XC20PKW", 32, 24),
];
const RSA_ENCRYPTION: &[&str] = &[
    "RSA1_5",
    "RSA-OAEP",
    "RSA-OAEP-256",
    "RSA-OAEP-384",
    "RSA-OAEP-512",
];
const RSA_SIGNATURE: &[&str] = &["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"];

/// A message valid for every algorithm.
const MESSAGE: &[u8; 32] = b"the quick brown fox jumped, idly";

/// Runs all rules for cryptography providers.
///
/// # Panics
/// If a rule is broken.
pub async fn crypto(provider: &Arc<dyn CryptoProvider>, keys: &CryptoKeys) {
    let mut findings = Findings::new("cryptography provider");
    for (algorithm, length, nonce) in SYMMETRIC {
        let Some((_, key)) = keys.symmetric.iter().find(|(has, _)| has == length) else {
            findings.note(algorithm, Err(format!("there is no key of {length} bytes")));
            continue;
        };
        let nonce = vec![7; *nonce];
        let with = Parameters {
            key,
            algorithm,
            nonce: &nonce,
            associated_data: &[],
        };
        findings.note(algorithm, round(provider, with).await);
        findings.note(algorithm, tampered(provider, with).await);
        findings.note(algorithm, wrong_key_and_nonce(provider, keys, with).await);
    }
    for key in &keys.rsa {
        for algorithm in RSA_ENCRYPTION {
            let with = Parameters {
                key,
                algorithm,
                ..Parameters::default()
            };
            findings.note(algorithm, round(provider, with).await);
            findings.note(algorithm, tampered(provider, with).await);
        }
        for algorithm in RSA_SIGNATURE {
            findings.note(algorithm, signature(provider, keys, algorithm, key).await);
        }
    }
    for (algorithm, key) in &keys.ec {
        findings.note(algorithm, signature(provider, keys, algorithm, key).await);
    }
    findings.note("EdDSA", signature(provider, keys, "EdDSA", &keys.ed25519).await);
    findings.note("public keys", public_keys(provider, keys).await);
    findings.note("absent keys", absent(provider, keys).await);
    findings.note("the provider answers", provider.ping().await.step("ping"));
    findings.finish();
}

async fn round(provider: &Arc<dyn CryptoProvider>, with: Parameters<'_>) -> Outcome {
    let sealed = provider.encrypt(MESSAGE, with).await.step("encrypt")?;
    ensure!(
        !sealed
            .ciphertext
            .windows(MESSAGE.len())
            .any(|part| part == MESSAGE),
        "the ciphertext shows the message"
    );
    let plain = provider.decrypt(&sealed, with).await.step("decrypt")?;
    ensure!(plain.as_slice() == MESSAGE, "decrypted to something else");
    let wrapped = provider.wrap_key(MESSAGE, with).await.step("wrap")?;
    let key = provider.unwrap_key(&wrapped, with).await.step("unwrap")?;
    ensure!(key.as_slice() == MESSAGE, "unwrapped to something else");
    Ok(())
}

/// A modified ciphertext, tag or parameter never decrypts to the message.
async fn tampered(provider: &Arc<dyn CryptoProvider>, with: Parameters<'_>) -> Outcome {
    let sealed = provider.encrypt(MESSAGE, with).await.step("encrypt")?;
    let authenticated = !sealed.tag.is_empty() || with.algorithm.ends_with("KW");
    let mut changed = vec![sealed.clone(), sealed.clone(), sealed.clone()];
    changed[0].ciphertext[0] ^= 1;
    changed[1].ciphertext.pop();
    changed[2].ciphertext.clear();
    if let Some(byte) = sealed.tag.first() {
        let mut other = sealed.clone();
        other.tag[0] = byte ^ 1;
        changed.push(other);
        let mut short = sealed.clone();
        short.tag.pop();
        changed.push(short);
    }
    for (index, message) in changed.iter().enumerate() {
        match provider.decrypt(message, with).await {
            Ok(plain) => {
                ensure!(plain.as_slice() != MESSAGE, "change {index} went unnoticed");
                ensure!(!authenticated, "change {index} was not refused");
            }
            Err(error) => ensure!(invalid(&error), "change {index} is {:?}: {error}", error.kind()),
        }
    }
    if !sealed.tag.is_empty() {
        let other = Parameters {
            associated_data: b"other",
            ..with
        };
        let opened = provider.decrypt(&sealed, other).await;
        ensure!(opened.is_err(), "other associated data was not noticed");
    }
    Ok(())
}

async fn wrong_key_and_nonce(
    provider: &Arc<dyn CryptoProvider>,
    keys: &CryptoKeys,
    with: Parameters<'_>,
) -> Outcome {
    let own = keys.symmetric.iter().find(|(_, key)| key == with.key);
    let other = keys
        .symmetric
        .iter()
        .find(|(length, _)| own.is_some_and(|own| own.0 != *length));
    let others = [other.map(|(_, key)| key), keys.rsa.first()];
    for key in others.into_iter().flatten() {
        match provider.encrypt(MESSAGE, Parameters { key, ..with }).await {
            Ok(_) => return Err(format!("{key} was taken for {}", with.algorithm)),
            Err(error) => ensure!(invalid(&error), "{key} is {:?}: {error}", error.kind()),
        }
    }
    if !with.nonce.is_empty() {
        let nonce = &with.nonce[1..];
        let refused = provider.encrypt(MESSAGE, Parameters { nonce, ..with }).await;
        ensure!(refused.is_err(), "a nonce that is too short was taken");
        let sealed = Sealed {
            ciphertext: MESSAGE.to_vec(),
            tag: vec![0; 16],
        };
        let refused = provider.decrypt(&sealed, Parameters { nonce, ..with }).await;
        ensure!(refused.is_err(), "a nonce that is too short was taken to decrypt");
    }
    Ok(())
}

async fn signature(
    provider: &Arc<dyn CryptoProvider>,
    keys: &CryptoKeys,
    algorithm: &str,
    key: &str,
) -> Outcome {
    let length = match algorithm.get(2..) {
        Some("384") => 48,
        Some("512") => 64,
        _ => 32,
    };
    let digest = vec![3; length];
    let signature = provider.sign(&digest, algorithm, key).await.step("sign")?;
    let public = keys.public.iter().filter(|(_, private)| private == key);
    for verifier in public.map(|(public, _)| public.as_str()).chain([key]) {
        let verify = |digest: Vec<u8>, signature: Vec<u8>| async move {
            let valid = provider.verify(&digest, &signature, algorithm, verifier).await;
            valid.step(verifier)
        };
        ensure!(
            verify(digest.clone(), signature.clone()).await?,
            "{verifier} does not accept the signature"
        );
        let mut other = digest.clone();
        other[0] ^= 1;
        ensure!(
            !verify(other, signature.clone()).await?,
            "another digest is accepted"
        );
        let mut other = signature.clone();
        other[0] ^= 1;
        ensure!(
            !verify(digest.clone(), other).await?,
            "another signature is accepted"
        );
        ensure!(
            !verify(digest.clone(), Vec::new()).await?,
            "no signature is accepted"
        );
    }
    for (public, _) in keys.public.iter().filter(|(_, private)| private == key) {
        let refused = provider.sign(&digest, algorithm, public).await;
        ensure!(refused.is_err(), "{public} signs without a private key");
    }
    let other = if algorithm == "EdDSA" { "RS256" } else { "EdDSA" };
    ensure!(
        provider.sign(&digest, other, key).await.is_err(),
        "{key} signs with {other}"
    );
    if algorithm != "EdDSA" {
        let short = provider.sign(&digest[1..], algorithm, key).await;
        ensure!(short.is_err(), "a digest that is too short is signed");
    }
    Ok(())
}

async fn public_keys(provider: &Arc<dyn CryptoProvider>, keys: &CryptoKeys) -> Outcome {
    for (public, private) in &keys.public {
        let half = provider.public_key(private).await.step(private)?;
        let alone = provider.public_key(public).await.step(public)?;
        ensure!(
            half.spki == alone.spki,
            "{public} is not the public half of {private}"
        );
        let jwk: serde_json::Value = serde_json::from_str(&half.jwk).step("the JSON Web Key")?;
        ensure!(jwk["kty"].is_string(), "no JSON Web Key: {jwk}");
        for member in ["d", "p", "q", "k"] {
            ensure!(jwk.get(member).is_none(), "{member} of {private} is told");
        }
    }
    for (_, key) in &keys.symmetric {
        let kind = provider.public_key(key).await.map_err(|error| error.kind());
        ensure!(kind == Err(Kind::NotFound), "{key} is told: {kind:?}");
    }
    Ok(())
}

async fn absent(provider: &Arc<dyn CryptoProvider>, keys: &CryptoKeys) -> Outcome {
    let with = Parameters {
        key: &keys.absent,
        algorithm: "A256KW",
        ..Parameters::default()
    };
    let kind = provider
        .wrap_key(MESSAGE, with)
        .await
        .map_err(|error| error.kind());
    ensure!(kind == Err(Kind::NotFound), "wrapping says {kind:?}");
    let kind = provider
        .public_key(&keys.absent)
        .await
        .map_err(|error| error.kind());
    ensure!(kind == Err(Kind::NotFound), "the public key says {kind:?}");
    let key = keys.symmetric.first().map_or("", |(_, key)| key.as_str());
    for algorithm in ["", "A", "é", "RS", "ECDH-ES", "HS256", "A256GCMKW", "a256gcm"] {
        let with = Parameters {
            key,
            algorithm,
            ..Parameters::default()
        };
        let refused = provider.encrypt(MESSAGE, with).await;
        ensure!(refused.is_err(), "the algorithm {algorithm:?} is taken");
        let refused = provider.sign(MESSAGE, algorithm, key).await;
        ensure!(refused.is_err(), "the algorithm {algorithm:?} signs");
    }
    Ok(())
}

fn invalid(error: &Error) -> bool {
    error.kind() == Kind::InvalidRequest
}
