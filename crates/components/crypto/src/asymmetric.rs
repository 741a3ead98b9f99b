//! Operations with asymmetric keys.

use aws_lc_rs::{
    digest,
    rsa::{
        OaepPrivateDecryptingKey, OaepPublicEncryptingKey, Pkcs1PrivateDecryptingKey,
        Pkcs1PublicEncryptingKey, PublicEncryptingKey, RsaParameters, RsaPssSaltLength,
    },
    signature::{self, RsaEncoding, UnparsedPublicKey, VerificationAlgorithm},
};
use outrigger_component::{
    Result,
    crypto::{Parameters, Sealed, Secret},
};

use super::{
    algorithms::{Encryption, Hash, Signature, failed, invalid, mismatch},
    key::{Asymmetric, AsymmetricKind, Private},
};

pub(super) fn encrypt(
    algorithm: Encryption,
    key: &Asymmetric,
    plaintext: &[u8],
    with: Parameters<'_>,
) -> Result<Sealed> {
    if key.kind != AsymmetricKind::Rsa {
        return Err(mismatch());
    }
    let too_long = || invalid("plaintext length: too long for the key");
    let public = PublicEncryptingKey::from_der(&key.spki).map_err(|_| mismatch())?;
    let mut ciphertext = vec![0; public.key_size_bytes()];
    let length = match algorithm {
        Encryption::RsaPkcs1 => Pkcs1PublicEncryptingKey::new(public)
            .and_then(|key| key.encrypt(plaintext, &mut ciphertext).map(|text| text.len())),
        Encryption::RsaOaep(oaep) => OaepPublicEncryptingKey::new(public).and_then(|key| {
            key.encrypt(oaep, plaintext, &mut ciphertext, label(with))
                .map(|text| text.len())
        }),
        _ => return Err(mismatch()),
    };
    ciphertext.truncate(length.map_err(|_| too_long())?);
    Ok(Sealed {
        ciphertext,
        tag: Vec::new(),
    })
}

pub(super) fn decrypt(
    algorithm: Encryption,
    key: &Asymmetric,
    message: &Sealed,
    with: Parameters<'_>,
) -> Result<Secret> {
    let Some(Private::Rsa { decrypting, .. }) = &key.private else {
        return Err(mismatch());
    };
    let private = decrypting.clone();
    let mut text = Secret::new(vec![0; private.key_size_bytes()]);
    let length = match algorithm {
        Encryption::RsaPkcs1 => Pkcs1PrivateDecryptingKey::new(private)
            .and_then(|key| key.decrypt(&message.ciphertext, &mut text).map(|text| text.len())),
        Encryption::RsaOaep(oaep) => OaepPrivateDecryptingKey::new(private).and_then(|key| {
            key.decrypt(oaep, &message.ciphertext, &mut text, label(with))
                .map(|text| text.len())
        }),
        _ => return Err(mismatch()),
    };
    text.truncate(length.map_err(|_| failed())?);
    Ok(text)
}

fn label(with: Parameters<'_>) -> Option<&[u8]> {
    Some(with.associated_data).filter(|label| !label.is_empty())
}

fn imported(hash: Hash, bytes: &[u8]) -> Result<digest::Digest> {
    let algorithm = match hash {
        Hash::Sha256 => &digest::SHA256,
        Hash::Sha384 => &digest::SHA384,
        Hash::Sha512 => &digest::SHA512,
    };
    digest::Digest::import_less_safe(bytes, algorithm)
        .map_err(|_| invalid("digest: its length does not match the algorithm's hash"))
}

pub(super) fn sign(algorithm: Signature, key: &Asymmetric, message: &[u8]) -> Result<Vec<u8>> {
    match (algorithm, &key.private) {
        (Signature::RsaPkcs1(hash), Some(Private::Rsa { signing, .. })) => {
            rsa_sign(signing, pkcs1(hash), &imported(hash, message)?)
        }
        (Signature::RsaPss(hash), Some(Private::Rsa { signing, .. })) => {
            rsa_sign(signing, pss(hash), &imported(hash, message)?)
        }
        (Signature::Ecdsa(hash), Some(Private::Ec(pair))) if key.kind == AsymmetricKind::Ec(hash) => {
            let digest = imported(hash, message)?;
            let signature = pair.sign_digest(&digest).map_err(|_| mismatch())?;
            Ok(signature.as_ref().to_vec())
        }
        (Signature::EdDsa, Some(Private::Ed25519(pair))) => {
            let signature = pair.try_sign(message).map_err(|_| mismatch())?;
            Ok(signature.as_ref().to_vec())
        }
        _ => Err(mismatch()),
    }
}

fn rsa_sign(
    key: &aws_lc_rs::rsa::KeyPair,
    encoding: &'static dyn RsaEncoding,
    digest: &digest::Digest,
) -> Result<Vec<u8>> {
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign_digest(encoding, digest, &mut signature)
        .map_err(|_| mismatch())?;
    Ok(signature)
}

fn pkcs1(hash: Hash) -> &'static dyn RsaEncoding {
    match hash {
        Hash::Sha256 => &signature::RSA_PKCS1_SHA256,
        Hash::Sha384 => &signature::RSA_PKCS1_SHA384,
        Hash::Sha512 => &signature::RSA_PKCS1_SHA512,
    }
}

fn pss(hash: Hash) -> &'static dyn RsaEncoding {
    match hash {
        Hash::Sha256 => &signature::RSA_PSS_SHA256,
        Hash::Sha384 => &signature::RSA_PSS_SHA384,
        Hash::Sha512 => &signature::RSA_PSS_SHA512,
    }
}

pub(super) fn verify(
    algorithm: Signature,
    key: &Asymmetric,
    message: &[u8],
    signature: &[u8],
) -> Result<bool> {
    let (hash, ways) = match (algorithm, key.kind) {
        (Signature::RsaPkcs1(hash), AsymmetricKind::Rsa) => (hash, verify_pkcs1(hash)),
        (Signature::RsaPss(hash), AsymmetricKind::Rsa) => (hash, verify_pss(hash)),
        (Signature::Ecdsa(hash), AsymmetricKind::Ec(curve)) if curve == hash => (hash, verify_ecdsa(hash)),
        (Signature::EdDsa, AsymmetricKind::Ed25519) => {
            let public = UnparsedPublicKey::new(&signature::ED25519, &key.spki);
            return Ok(public.verify(message, signature).is_ok());
        }
        _ => return Err(mismatch()),
    };
    let digest = imported(hash, message)?;
    Ok(ways.iter().any(|way| {
        let public = UnparsedPublicKey::new(*way, &key.spki);
        public.verify_digest(&digest, signature).is_ok()
    }))
}

type Algorithms = &'static [&'static dyn VerificationAlgorithm];

fn verify_pkcs1(hash: Hash) -> Algorithms {
    match hash {
        Hash::Sha256 => &[&signature::RSA_PKCS1_2048_8192_SHA256],
        Hash::Sha384 => &[&signature::RSA_PKCS1_2048_8192_SHA384],
        Hash::Sha512 => &[&signature::RSA_PKCS1_2048_8192_SHA512],
    }
}

/// Accepts a salt of digest length or maximum length, because Dapr signs with either.
fn verify_pss(hash: Hash) -> Algorithms {
    const MAX: RsaPssSaltLength = RsaPssSaltLength::Max;
    const MAX_256: RsaParameters = signature::RSA_PSS_2048_8192_SHA256.with_pss_salt_length(MAX);
    const MAX_384: RsaParameters = signature::RSA_PSS_2048_8192_SHA384.with_pss_salt_length(MAX);
    const MAX_512: RsaParameters = signature::RSA_PSS_2048_8192_SHA512.with_pss_salt_length(MAX);
    match hash {
        Hash::Sha256 => &[&signature::RSA_PSS_2048_8192_SHA256, &MAX_256],
        Hash::Sha384 => &[&signature::RSA_PSS_2048_8192_SHA384, &MAX_384],
        Hash::Sha512 => &[&signature::RSA_PSS_2048_8192_SHA512, &MAX_512],
    }
}

fn verify_ecdsa(hash: Hash) -> Algorithms {
    match hash {
        Hash::Sha256 => &[&signature::ECDSA_P256_SHA256_ASN1],
        Hash::Sha384 => &[&signature::ECDSA_P384_SHA384_ASN1],
        Hash::Sha512 => &[&signature::ECDSA_P521_SHA512_ASN1],
    }
}
