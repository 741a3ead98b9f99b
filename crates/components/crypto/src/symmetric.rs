//! Operations with symmetric keys.

use aes_kw::KwAes192;
use aws_lc_rs::{
    aead::{AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey},
    cipher::{
        AES_128, AES_192, AES_256, Algorithm, DecryptingKey, DecryptionContext, EncryptingKey,
        EncryptionContext, PaddedBlockDecryptingKey, PaddedBlockEncryptingKey, UnboundCipherKey,
    },
    iv::FixedLength,
    key_wrap::{self, AesKek, KeyWrap},
};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce, aead::Aead, aead::Payload};
use outrigger_component::{
    Result,
    crypto::{Parameters, Sealed, Secret},
};

use super::{
    algorithms::{Encryption, failed, invalid, mismatch},
    cbc_hmac,
};

/// Tag length of AES-GCM and ChaCha20-Poly1305.
const TAG: usize = 16;
/// Bytes added by key wrapping.
const WRAPPING: usize = 8;

pub(super) fn encrypt(
    algorithm: Encryption,
    key: &[u8],
    plaintext: &[u8],
    with: Parameters<'_>,
) -> Result<Sealed> {
    check_length(algorithm, key)?;
    let whole = |ciphertext| Sealed {
        ciphertext,
        tag: Vec::new(),
    };
    match algorithm {
        Encryption::Cbc { padded, .. } => cbc_encrypt(key, plaintext, with.nonce, padded).map(whole),
        Encryption::CbcHmac { .. } => cbc_hmac::seal(key, plaintext, with.nonce, with.associated_data),
        Encryption::KeyWrap { .. } => wrap(key, plaintext).map(whole),
        Encryption::XChaCha => xchacha_seal(key, plaintext, with),
        _ => aead_seal(&aead_key(algorithm, key)?, plaintext, with),
    }
}

pub(super) fn decrypt(
    algorithm: Encryption,
    key: &[u8],
    message: &Sealed,
    with: Parameters<'_>,
) -> Result<Secret> {
    check_length(algorithm, key)?;
    match algorithm {
        Encryption::Cbc { padded, .. } => cbc_decrypt(key, &message.ciphertext, with.nonce, padded),
        Encryption::CbcHmac { .. } => cbc_hmac::open(key, message, with.nonce, with.associated_data),
        Encryption::KeyWrap { .. } => unwrap(key, &message.ciphertext),
        Encryption::XChaCha => xchacha_open(key, message, with),
        _ => aead_open(&aead_key(algorithm, key)?, message, with),
    }
}

fn check_length(algorithm: Encryption, key: &[u8]) -> Result<()> {
    let expected = match algorithm {
        Encryption::Cbc { key, .. }
        | Encryption::Gcm { key }
        | Encryption::CbcHmac { key }
        | Encryption::KeyWrap { key } => key,
        Encryption::ChaCha | Encryption::XChaCha => 32,
        Encryption::RsaPkcs1 | Encryption::RsaOaep(_) => return Err(mismatch()),
    };
    if key.len() == expected {
        Ok(())
    } else {
        Err(mismatch())
    }
}

fn aes(key: &[u8]) -> Result<UnboundCipherKey> {
    let algorithm: &'static Algorithm = match key.len() {
        16 => &AES_128,
        24 => &AES_192,
        32 => &AES_256,
        _ => return Err(mismatch()),
    };
    UnboundCipherKey::new(algorithm, key).map_err(|_| mismatch())
}

fn iv(nonce: &[u8]) -> Result<FixedLength<16>> {
    FixedLength::try_from(nonce).map_err(|_| invalid("nonce: AES-CBC needs 16 bytes"))
}

pub(super) fn cbc_encrypt(key: &[u8], plaintext: &[u8], nonce: &[u8], padded: bool) -> Result<Vec<u8>> {
    let context = EncryptionContext::Iv128(iv(nonce)?);
    let mut text = plaintext.to_vec();
    let encrypted = if padded {
        PaddedBlockEncryptingKey::cbc_pkcs7(aes(key)?)
            .and_then(|key| key.less_safe_encrypt(&mut text, context))
    } else {
        EncryptingKey::cbc(aes(key)?).and_then(|key| key.less_safe_encrypt(&mut text, context))
    };
    encrypted.map_err(|_| invalid("plaintext length: without padding it must be a multiple of 16 bytes"))?;
    Ok(text)
}

pub(super) fn cbc_decrypt(key: &[u8], ciphertext: &[u8], nonce: &[u8], padded: bool) -> Result<Secret> {
    let context = DecryptionContext::Iv128(iv(nonce)?);
    if !ciphertext.len().is_multiple_of(16) {
        return Err(invalid("ciphertext length: it must be a multiple of 16 bytes"));
    }
    let mut text = Secret::new(ciphertext.to_vec());
    let length = if padded {
        let key = PaddedBlockDecryptingKey::cbc_pkcs7(aes(key)?).map_err(|_| mismatch())?;
        key.decrypt(&mut text, context).map(|plain| plain.len())
    } else {
        let key = DecryptingKey::cbc(aes(key)?).map_err(|_| mismatch())?;
        key.decrypt(&mut text, context).map(|plain| plain.len())
    };
    text.truncate(length.map_err(|_| failed())?);
    Ok(text)
}

fn aead_key(algorithm: Encryption, key: &[u8]) -> Result<LessSafeKey> {
    let algorithm = match algorithm {
        Encryption::Gcm { key: 16 } => &AES_128_GCM,
        Encryption::Gcm { key: 24 } => &AES_192_GCM,
        Encryption::Gcm { .. } => &AES_256_GCM,
        _ => &CHACHA20_POLY1305,
    };
    UnboundKey::new(algorithm, key)
        .map(LessSafeKey::new)
        .map_err(|_| mismatch())
}

fn aead_nonce(nonce: &[u8]) -> Result<Nonce> {
    Nonce::try_assume_unique_for_key(nonce).map_err(|_| invalid("nonce: 12 bytes are needed"))
}

fn aead_seal(key: &LessSafeKey, plaintext: &[u8], with: Parameters<'_>) -> Result<Sealed> {
    let mut ciphertext = plaintext.to_vec();
    let tag = key
        .seal_in_place_separate_tag(
            aead_nonce(with.nonce)?,
            Aad::from(with.associated_data),
            &mut ciphertext,
        )
        .map_err(|_| invalid("plaintext length"))?;
    Ok(Sealed {
        ciphertext,
        tag: tag.as_ref().to_vec(),
    })
}

fn aead_open(key: &LessSafeKey, message: &Sealed, with: Parameters<'_>) -> Result<Secret> {
    let nonce = aead_nonce(with.nonce)?;
    if message.tag.len() != TAG {
        return Err(invalid("tag"));
    }
    let mut text = Secret::new(message.ciphertext.clone());
    key.open_in_place_separate_tag(nonce, Aad::from(with.associated_data), &message.tag, &mut text)
        .map_err(|_| failed())?;
    Ok(text)
}

fn xchacha(key: &[u8], nonce: &[u8]) -> Result<(XChaCha20Poly1305, XNonce)> {
    let cipher = XChaCha20Poly1305::new_from_slice(key).map_err(|_| mismatch())?;
    let nonce = XNonce::try_from(nonce).map_err(|_| invalid("nonce: 24 bytes are needed"))?;
    Ok((cipher, nonce))
}

fn xchacha_seal(key: &[u8], plaintext: &[u8], with: Parameters<'_>) -> Result<Sealed> {
    let (cipher, nonce) = xchacha(key, with.nonce)?;
    let payload = Payload {
        msg: plaintext,
        aad: with.associated_data,
    };
    let mut ciphertext = cipher
        .encrypt(&nonce, payload)
        .map_err(|_| invalid("plaintext length"))?;
    let tag = ciphertext.split_off(ciphertext.len() - TAG);
    Ok(Sealed { ciphertext, tag })
}

fn xchacha_open(key: &[u8], message: &Sealed, with: Parameters<'_>) -> Result<Secret> {
    let (cipher, nonce) = xchacha(key, with.nonce)?;
    if message.tag.len() != TAG {
        return Err(invalid("tag"));
    }
    let text = [message.ciphertext.as_slice(), &message.tag].concat();
    let payload = Payload {
        msg: &text,
        aad: with.associated_data,
    };
    cipher
        .decrypt(&nonce, payload)
        .map(Secret::new)
        .map_err(|_| failed())
}

/// Key wrap of RFC 3394. aws-lc supports only 128 and 256 bits.
fn wrap(key: &[u8], plaintext: &[u8]) -> Result<Vec<u8>> {
    let wrong = || invalid("plaintext length: key wrap needs a multiple of 8 bytes, at least 16");
    if plaintext.len() < 16 || !plaintext.len().is_multiple_of(8) {
        return Err(wrong());
    }
    let mut wrapped = vec![0; plaintext.len() + WRAPPING];
    match kek(key)? {
        Some(kek) => drop(kek.wrap(plaintext, &mut wrapped).map_err(|_| wrong())?),
        None => drop(
            kek192(key)?
                .wrap_key(plaintext, &mut wrapped)
                .map_err(|_| wrong())?,
        ),
    }
    Ok(wrapped)
}

fn unwrap(key: &[u8], wrapped: &[u8]) -> Result<Secret> {
    if wrapped.len() < 16 + WRAPPING || !wrapped.len().is_multiple_of(8) {
        return Err(invalid(
            "invalid ciphertext length: a wrapped key has a multiple of 8 bytes",
        ));
    }
    let mut text = Secret::new(vec![0; wrapped.len()]);
    match kek(key)? {
        Some(kek) => drop(kek.unwrap(wrapped, &mut text).map_err(|_| failed())?),
        None => drop(
            kek192(key)?
                .unwrap_key(wrapped, &mut text)
                .map_err(|_| failed())?,
        ),
    }
    text.truncate(wrapped.len() - WRAPPING);
    Ok(text)
}

fn kek(key: &[u8]) -> Result<Option<AesKek>> {
    let cipher = match key.len() {
        16 => &key_wrap::AES_128,
        32 => &key_wrap::AES_256,
        _ => return Ok(None),
    };
    AesKek::new(cipher, key).map(Some).map_err(|_| mismatch())
}

fn kek192(key: &[u8]) -> Result<KwAes192> {
    KwAes192::new_from_slice(key).map_err(|_| mismatch())
}
