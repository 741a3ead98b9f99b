//! Encryption at rest with AES-GCM. The format is Dapr's: base64 of nonce, ciphertext and tag, then `||` and
//! the key name.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use outrigger_component::state::Value;
use outrigger_go_json::{Html, canonical, from_slice};

const SEPARATOR: &[u8] = b"||";

/// The encryption keys of a store.
pub struct Cipher {
    primary: NamedKey,
    secondary: Option<NamedKey>,
}

/// A key and the name of its secret.
pub struct NamedKey {
    name: String,
    key: LessSafeKey,
}

/// Why a key is invalid. Never contains the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not hexadecimal.
    #[error("the key is not hexadecimal text")]
    NotHex,
    /// Not a valid AES key length.
    #[error("the key has {0} bytes; AES takes 16, 24 or 32")]
    Length(usize),
}

/// Why encryption or decryption of a value failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CipherError {
    /// The value has no key name: it was written without encryption.
    #[error("could not decrypt data for state store {0}: encryption key name not found on record")]
    NoName(String),
    /// The value was written with a key that the store does not have.
    #[error(
        "could not decrypt data: it was written with the key {0}, which is neither primary nor secondary"
    )]
    UnknownKey(String),
    /// The value was modified, or the key has the same name but another value.
    #[error("could not decrypt data: it was modified, or the key {0} has another value")]
    Damaged(String),
    /// The random source failed.
    #[error("could not encrypt data: no random numbers")]
    NoRandom,
    /// The value should be JSON but is not.
    #[error("the value is not valid JSON: {0}")]
    NotJson(String),
}

impl NamedKey {
    /// Parses a hexadecimal key.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(name: &str, hex: &str) -> Result<Self, KeyError> {
        let bytes = unhex(hex).ok_or(KeyError::NotHex)?;
        let algorithm = match bytes.len() {
            16 => &AES_128_GCM,
            24 => &AES_192_GCM,
            32 => &AES_256_GCM,
            other => return Err(KeyError::Length(other)),
        };
        let key = UnboundKey::new(algorithm, &bytes).map_err(|_| KeyError::Length(bytes.len()))?;
        Ok(Self {
            name: name.to_owned(),
            key: LessSafeKey::new(key),
        })
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let pair = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
    if rest.is_empty() {
        pairs.iter().map(pair).collect()
    } else {
        None
    }
}

impl Cipher {
    /// Encrypts with `primary`; decrypts with either key.
    pub fn new(primary: NamedKey, secondary: Option<NamedKey>) -> Self {
        Self { primary, secondary }
    }

    /// Encrypts a value. A JSON string is stored as its content, other JSON as its text.
    ///
    /// # Errors
    /// [`CipherError::NoRandom`], [`CipherError::NotJson`].
    pub fn seal(&self, value: &Value) -> Result<Value, CipherError> {
        let plain = plain(value)?;
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).map_err(|_| CipherError::NoRandom)?;
        let mut sealed = Vec::with_capacity(NONCE_LEN + plain.len() + 16);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&plain);
        let tag = self
            .primary
            .key
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::empty(),
                &mut sealed[NONCE_LEN..],
            )
            .map_err(|_| CipherError::NoRandom)?;
        sealed.extend_from_slice(tag.as_ref());
        let mut text = STANDARD.encode(&sealed);
        text.push_str("||");
        text.push_str(&self.primary.name);
        Ok(Value::Bytes(text.into()))
    }

    /// Decrypts a value; empty stays empty. `store` is for errors only.
    ///
    /// # Errors
    /// [`CipherError`].
    pub fn open(&self, stored: &Bytes, store: &str) -> Result<Bytes, CipherError> {
        if stored.is_empty() {
            return Ok(Bytes::new());
        }
        let at = stored.windows(2).rposition(|pair| pair == SEPARATOR);
        let (text, name) = match at {
            Some(at) => (&stored[..at], String::from_utf8_lossy(&stored[at + 2..])),
            None => return Err(CipherError::NoName(store.to_owned())),
        };
        if name.is_empty() {
            return Err(CipherError::NoName(store.to_owned()));
        }
        let damaged = || CipherError::Damaged(name.clone().into_owned());
        let key = [Some(&self.primary), self.secondary.as_ref()]
            .into_iter()
            .flatten()
            .find(|key| key.name == name)
            .ok_or_else(|| CipherError::UnknownKey(name.clone().into_owned()))?;
        let mut sealed = STANDARD.decode(text).map_err(|_| damaged())?;
        let (nonce, data) = sealed.split_at_mut_checked(NONCE_LEN).ok_or_else(damaged)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
        let plain = key.key.open_in_place(nonce, Aad::empty(), data);
        let length = plain.map_err(|_| damaged())?.len();
        Ok(Bytes::from(sealed).slice(NONCE_LEN..NONCE_LEN + length))
    }
}

fn plain(value: &Value) -> Result<Bytes, CipherError> {
    let not_json = |error: serde_json::Error| CipherError::NotJson(error.to_string());
    match value {
        Value::Bytes(bytes) => Ok(bytes.clone()),
        Value::Json(text) | Value::Canonical(text) if text.starts_with(b"\"") => {
            let text: String = from_slice(text).map_err(not_json)?;
            Ok(text.into())
        }
        Value::Json(text) | Value::Canonical(text) => canonical(text, Html::Keep).map_err(not_json),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f";

    fn key(name: &str, hex: &str) -> NamedKey {
        NamedKey::parse(name, hex).unwrap()
    }

    fn sealed(cipher: &Cipher, value: &Value) -> Bytes {
        match cipher.seal(value).unwrap() {
            Value::Bytes(bytes) => bytes,
            other => panic!("a sealed value is no JSON: {other:?}"),
        }
    }

    #[test]
    fn opens_with_either_key() {
        let old = Cipher::new(key("old", HEX), None);
        let stored = sealed(&old, &Value::Bytes(Bytes::from_static(b"secret")));
        assert!(stored.ends_with(b"||old"));
        let new = Cipher::new(key("new", &HEX.repeat(2)), Some(key("old", HEX)));
        assert_eq!(new.open(&stored, "s").unwrap(), "secret");
        let again = sealed(&new, &Value::Bytes(Bytes::from_static(b"secret")));
        assert_eq!(new.open(&again, "s").unwrap(), "secret");
        assert_eq!(
            old.open(&again, "s"),
            Err(CipherError::UnknownKey("new".to_owned()))
        );
    }

    #[test]
    fn seals_content_of_json_strings() {
        let cipher = Cipher::new(key("k", HEX), None);
        for (given, expected) in [(r#""a\"b""#, "a\"b"), (r#"{ "a": 1 }"#, r#"{"a":1}"#), ("5", "5")] {
            let stored = sealed(&cipher, &Value::Json(Bytes::from(given)));
            assert_eq!(cipher.open(&stored, "s").unwrap(), expected);
        }
    }

    #[test]
    fn detects_changed_byte() {
        let cipher = Cipher::new(key("k", HEX), None);
        let stored = sealed(&cipher, &Value::Bytes(Bytes::from_static(b"secret")));
        let mut changed = stored.to_vec();
        changed[20] = if changed[20] == b'A' { b'B' } else { b'A' };
        assert_eq!(
            cipher.open(&changed.into(), "s"),
            Err(CipherError::Damaged("k".to_owned()))
        );
        for plain in ["no name", "short||"] {
            let error = cipher.open(&Bytes::from(plain), "s").unwrap_err().to_string();
            assert!(
                error.contains("encryption key name not found on record"),
                "{error}"
            );
        }
        assert_eq!(cipher.open(&Bytes::new(), "s").unwrap(), "");
    }

    #[test]
    fn accepts_hex_keys_of_valid_length() {
        assert!(NamedKey::parse("k", &HEX[..16].repeat(3)).is_ok());
        assert_eq!(NamedKey::parse("k", "zz").err(), Some(KeyError::NotHex));
        assert_eq!(NamedKey::parse("k", "abc").err(), Some(KeyError::NotHex));
        assert_eq!(NamedKey::parse("k", "abcd").err(), Some(KeyError::Length(2)));
    }
}
