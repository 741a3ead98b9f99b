//! The encryption scheme `dapr.io/enc/v1`: its names, its header and the keys of a document.
//!
//! A document is a header of three lines, then segments. The header has the scheme name, a JSON manifest and
//! a MAC of both. Each document has its own random file key. The segment key and the header key derive from
//! it, and the manifest contains it wrapped with the app's key.

use aws_lc_rs::aead::{AES_256_GCM, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use zeroize::Zeroizing;

use super::segments::Segments;

/// The first line of a document.
pub(super) const NAME: &str = "dapr.io/enc/v1";
/// Longest header, bytes.
pub(super) const MAX_HEADER: usize = 64 << 10;
/// Length of a file key and its derived keys, bytes.
const KEY: usize = 32;
/// Length of the nonce prefix shared by all segments of a document.
pub(super) const PREFIX: usize = 7;

/// Algorithms that wrap a file key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    /// `A256KW`, also `AES`.
    Aes256Kw,
    /// `A128CBC-NOPAD`.
    Aes128Cbc,
    /// `A192CBC-NOPAD`.
    Aes192Cbc,
    /// `A256CBC-NOPAD`.
    Aes256Cbc,
    /// `RSA-OAEP-256`, also `RSA`.
    RsaOaep256,
}

impl Wrapping {
    /// Parses a name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        let upper = name.to_uppercase();
        match upper.as_str() {
            "AES" => Some(Self::Aes256Kw),
            "RSA" => Some(Self::RsaOaep256),
            _ => (1..=5)
                .filter_map(Self::numbered)
                .find(|wrapping| wrapping.name() == upper),
        }
    }

    /// The name that providers use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes256Kw => "A256KW",
            Self::Aes128Cbc => "A128CBC-NOPAD",
            Self::Aes192Cbc => "A192CBC-NOPAD",
            Self::Aes256Cbc => "A256CBC-NOPAD",
            Self::RsaOaep256 => "RSA-OAEP-256",
        }
    }

    fn numbered(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Aes256Kw),
            2 => Some(Self::Aes128Cbc),
            3 => Some(Self::Aes192Cbc),
            4 => Some(Self::Aes256Cbc),
            5 => Some(Self::RsaOaep256),
            _ => None,
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Aes256Kw => 1,
            Self::Aes128Cbc => 2,
            Self::Aes192Cbc => 3,
            Self::Aes256Cbc => 4,
            Self::RsaOaep256 => 5,
        }
    }
}

/// Segment ciphers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cipher {
    /// `AES-GCM` with 256 bits.
    #[default]
    AesGcm,
    /// `CHACHA20-POLY1305`.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Parses a name, in any case.
    pub fn named(name: &str) -> Option<Self> {
        match name.to_uppercase().as_str() {
            "AES-GCM" => Some(Self::AesGcm),
            "CHACHA20-POLY1305" => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::AesGcm => 1,
            Self::ChaCha20Poly1305 => 2,
        }
    }
}

/// The second line of a document.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The key that unwraps the file key, unless it is omitted.
    #[serde(rename = "k", default, skip_serializing_if = "String::is_empty")]
    pub(super) key: String,
    #[serde(rename = "kw")]
    pub(super) wrapping: Wrapping,
    /// The wrapped file key.
    #[serde(rename = "wfk", with = "base64_text")]
    pub(super) file_key: Vec<u8>,
    #[serde(rename = "cph")]
    pub(super) cipher: Cipher,
    /// The nonce prefix of all segments.
    #[serde(rename = "np", with = "base64_text")]
    pub(super) prefix: Vec<u8>,
}

impl Manifest {
    /// `None` for an invalid manifest; the sender is not told why.
    pub(super) fn parse(line: &[u8]) -> Option<(Self, [u8; PREFIX])> {
        let manifest: Self = serde_json::from_slice(line).ok()?;
        let prefix = manifest.prefix.as_slice().try_into().ok()?;
        (!manifest.file_key.is_empty()).then_some((manifest, prefix))
    }
}

impl Serialize for Wrapping {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.number())
    }
}

impl<'de> Deserialize<'de> for Wrapping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u8::deserialize(deserializer)?;
        Self::numbered(number).ok_or_else(|| D::Error::custom("unknown key wrap algorithm"))
    }
}

impl Serialize for Cipher {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.number())
    }
}

impl<'de> Deserialize<'de> for Cipher {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u8::deserialize(deserializer)? {
            1 => Ok(Self::AesGcm),
            2 => Ok(Self::ChaCha20Poly1305),
            _ => Err(D::Error::custom("unknown cipher")),
        }
    }
}

mod base64_text {
    use super::{Deserialize, Deserializer, Engine, STANDARD, Serializer};
    use serde::de::Error;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map_err(D::Error::custom)
    }
}

/// The file key of a document.
pub(super) struct FileKey(Zeroizing<[u8; KEY]>);

/// The library could not generate a key, for lack of memory or randomness.
#[derive(Debug, thiserror::Error)]
#[error("failed to generate file key")]
pub(super) struct NoKey;

struct Length;

impl KeyType for Length {
    fn len(&self) -> usize {
        KEY
    }
}

impl FileKey {
    /// A random key and a random nonce prefix.
    pub(super) fn random() -> Result<(Self, [u8; PREFIX]), NoKey> {
        let (mut key, mut prefix) = (Zeroizing::new([0; KEY]), [0; PREFIX]);
        aws_lc_rs::rand::fill(key.as_mut_slice()).map_err(|_| NoKey)?;
        aws_lc_rs::rand::fill(&mut prefix).map_err(|_| NoKey)?;
        Ok((Self(key), prefix))
    }

    /// An unwrapped key. If unwrapping failed or the length is wrong, a random key takes its place. No MAC
    /// matches it, so the sender cannot learn whether the key exists.
    pub(super) fn of(unwrapped: Option<&[u8]>) -> Result<Self, NoKey> {
        let mut key = Zeroizing::new([0; KEY]);
        aws_lc_rs::rand::fill(key.as_mut_slice()).map_err(|_| NoKey)?;
        if let Some(unwrapped) = unwrapped.filter(|unwrapped| unwrapped.len() == KEY) {
            key.copy_from_slice(unwrapped);
        }
        Ok(Self(key))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_slice()
    }

    fn derive(&self, salt: &[u8], info: &[u8]) -> Result<Zeroizing<[u8; KEY]>, NoKey> {
        let mut derived = Zeroizing::new([0; KEY]);
        Salt::new(HKDF_SHA256, salt)
            .extract(self.bytes())
            .expand(&[info], Length)
            .and_then(|material| material.fill(derived.as_mut_slice()))
            .map_err(|_| NoKey)?;
        Ok(derived)
    }

    fn header_key(&self) -> Result<hmac::Key, NoKey> {
        let key = self.derive(&[], b"header")?;
        Ok(hmac::Key::new(hmac::HMAC_SHA256, key.as_slice()))
    }

    /// The header of a document, including the last newline.
    pub(super) fn sign(&self, manifest: &str) -> Result<String, NoKey> {
        let mut header = format!("{NAME}\n{manifest}\n");
        let mac = hmac::sign(&self.header_key()?, header.as_bytes());
        STANDARD.encode_string(mac.as_ref(), &mut header);
        header.push('\n');
        Ok(header)
    }

    /// Whether `mac` matches the manifest; compared in constant time.
    pub(super) fn verifies(&self, manifest: &[u8], mac: &[u8]) -> bool {
        let Ok(key) = self.header_key() else { return false };
        let message = [NAME.as_bytes(), b"\n", manifest, b"\n"].concat();
        hmac::verify(&key, &message, mac).is_ok()
    }

    /// The segment cipher.
    pub(super) fn segments(&self, cipher: Cipher, prefix: [u8; PREFIX]) -> Result<Segments, NoKey> {
        let algorithm = match cipher {
            Cipher::AesGcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let key = self.derive(&prefix, b"payload")?;
        let key = UnboundKey::new(algorithm, key.as_slice()).map_err(|_| NoKey)?;
        Ok(Segments::new(LessSafeKey::new(key), prefix))
    }
}
