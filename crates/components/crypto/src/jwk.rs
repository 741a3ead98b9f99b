//! JSON Web Keys, RFC 7517 and 7518.

use aws_lc_rs::{
    encoding::AsDer,
    rsa::{self, KeyPairComponents, PublicKeyComponents},
    signature::{
        ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING,
        EcdsaKeyPair, Ed25519KeyPair,
    },
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use outrigger_component::{Result, crypto::Secret};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use x509_parser::{prelude::FromDer, public_key::PublicKey, x509::SubjectPublicKeyInfo};

use super::{
    algorithms::Hash,
    key::{Asymmetric, AsymmetricKind, Key, Material, wrong},
};

/// DER prefix of a `SubjectPublicKeyInfo` for each curve; the point follows it.
const P256: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
const P384: &[u8] =
    b"\x30\x76\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22\x03\x62\x00";
const P521: &[u8] =
    b"\x30\x81\x9b\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x23\x03\x81\x86\x00";
const ED25519: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    #[serde(default)]
    key_ops: Vec<String>,
    #[serde(flatten)]
    members: Map<String, Value>,
}

/// A set (`{"keys": [...]}`) or a single key.
#[derive(Deserialize)]
#[serde(untagged)]
enum Set {
    Several { keys: Vec<Value> },
    One(Value),
}

fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| wrong("not a valid JSON Web Key").because(error))
}

/// Parses one key.
pub(super) fn parse(text: &[u8]) -> Result<Key> {
    read::<Jwk>(text)?.key()
}

/// Parses a key set. Unsupported keys are left out.
pub(super) fn parse_set(text: &[u8]) -> Result<Vec<Key>> {
    let keys = match read(text)? {
        Set::Several { keys } => keys,
        Set::One(key @ Value::Object(_)) => vec![key],
        Set::One(_) => return Err(wrong("not a JSON Web Key set: an object is expected")),
    };
    let mut usable = Vec::with_capacity(keys.len());
    for (index, value) in keys.into_iter().enumerate() {
        let jwk: Jwk = serde_json::from_value(value)
            .map_err(|error| wrong(format!("key {index} is not a valid JSON Web Key")).because(error))?;
        let id = jwk.kid.clone().unwrap_or_default();
        match jwk.key() {
            Ok(key) => usable.push(key),
            Err(error) => tracing::warn!("key {index} ({id}) of the JSON Web Key set is ignored: {error}"),
        }
    }
    Ok(usable)
}

impl Jwk {
    fn key(self) -> Result<Key> {
        let material = match self.kty.as_str() {
            "oct" => Material::Symmetric(self.bytes("k")?),
            "RSA" => Material::Asymmetric(self.rsa()?),
            "EC" => Material::Asymmetric(self.ec()?),
            "OKP" => Material::Asymmetric(self.okp()?),
            other => return Err(wrong(format!("unsupported key type {other:?}"))),
        };
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        Ok(Key {
            id: filled(self.kid),
            material,
            algorithm: filled(self.alg),
            usage: filled(self.usage),
            operations: self.key_ops,
        })
    }

    fn has(&self, member: &str) -> bool {
        self.members.contains_key(member)
    }

    fn bytes(&self, member: &str) -> Result<Secret> {
        let text = self.members.get(member).and_then(Value::as_str);
        let text = text.ok_or_else(|| wrong(format!("the JSON Web Key has no {member:?}")))?;
        URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .ok()
            .filter(|bytes| !bytes.is_empty())
            .map(Secret::new)
            .ok_or_else(|| wrong(format!("{member:?} of the JSON Web Key is not base64url")))
    }

    /// An integer without leading zeros.
    fn number(&self, member: &str) -> Result<Secret> {
        let bytes = self.bytes(member)?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Ok(Secret::new(bytes[zeros..].to_vec()))
    }

    /// A coordinate or scalar, zero-padded to `length`.
    fn fixed(&self, member: &str, length: usize) -> Result<Secret> {
        let bytes = self.number(member)?;
        let missing = length.checked_sub(bytes.len());
        let missing = missing.ok_or_else(|| wrong(format!("{member:?} of the JSON Web Key is too long")))?;
        let mut fixed = Secret::new(vec![0; length]);
        fixed[missing..].copy_from_slice(&bytes);
        Ok(fixed)
    }

    fn rsa(&self) -> Result<Asymmetric> {
        let unusable = || wrong("unusable RSA key: 2048 to 8192 bits with consistent members are supported");
        let public_key = PublicKeyComponents {
            n: self.number("n")?,
            e: self.number("e")?,
        };
        if !self.has("d") {
            let spki = public_key.as_der().map_err(|_| unusable())?;
            return Asymmetric::from_spki(spki.as_ref()).ok_or_else(unusable);
        }
        let components = KeyPairComponents {
            public_key,
            d: self.bytes("d")?,
            p: self.bytes("p")?,
            q: self.bytes("q")?,
            dP: self.bytes("dp")?,
            dQ: self.bytes("dq")?,
            qInv: self.bytes("qi")?,
        };
        rsa::KeyPair::from_components(&components)
            .ok()
            .and_then(Asymmetric::from_rsa_pair)
            .ok_or_else(unusable)
    }

    fn curve(&self) -> &str {
        self.members
            .get("crv")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn ec(&self) -> Result<Asymmetric> {
        let (hash, algorithm, length, prefix) = match self.curve() {
            "P-256" => (Hash::Sha256, &ECDSA_P256_SHA256_ASN1_SIGNING, 32, P256),
            "P-384" => (Hash::Sha384, &ECDSA_P384_SHA384_ASN1_SIGNING, 48, P384),
            "P-521" => (Hash::Sha512, &ECDSA_P521_SHA512_ASN1_SIGNING, 66, P521),
            other => return Err(wrong(format!("unsupported curve {other:?}"))),
        };
        let unusable =
            || wrong("unusable EC key: the point is not on the curve, or does not match the private key");
        let (x, y) = (self.fixed("x", length)?, self.fixed("y", length)?);
        let point = [&[4], x.as_slice(), y.as_slice()].concat();
        if self.has("d") {
            let scalar = self.fixed("d", length)?;
            EcdsaKeyPair::from_private_key_and_public_key(algorithm, &scalar, &point)
                .ok()
                .and_then(|pair| Asymmetric::from_ec_pair(hash, pair))
                .ok_or_else(unusable)
        } else {
            Asymmetric::from_spki(&[prefix, &point].concat()).ok_or_else(unusable)
        }
    }

    fn okp(&self) -> Result<Asymmetric> {
        if self.curve() != "Ed25519" {
            return Err(wrong(format!("unsupported curve {:?}", self.curve())));
        }
        let unusable = || wrong("unusable Ed25519 key");
        let public = self.bytes("x")?;
        if !self.has("d") {
            return Asymmetric::from_spki(&[ED25519, public.as_slice()].concat()).ok_or_else(unusable);
        }
        Ed25519KeyPair::from_seed_and_public_key(&self.bytes("d")?, &public)
            .ok()
            .and_then(Asymmetric::from_ed25519_pair)
            .ok_or_else(unusable)
    }
}

/// The public half of `key` as a JSON Web Key.
pub(super) fn public(key: &Key, half: &Asymmetric) -> Option<String> {
    let (_, info) = SubjectPublicKeyInfo::from_der(&half.spki).ok()?;
    let encode = |bytes: &[u8]| Value::from(URL_SAFE_NO_PAD.encode(bytes));
    let mut jwk = Map::new();
    let mut set = |name: &str, value: Value| jwk.insert(name.to_owned(), value);
    match (half.kind, info.parsed().ok()?) {
        (AsymmetricKind::Rsa, PublicKey::RSA(rsa)) => {
            let number = |bytes: &[u8]| {
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                encode(&bytes[zeros..])
            };
            set("kty", "RSA".into());
            set("n", number(rsa.modulus));
            set("e", number(rsa.exponent));
        }
        (AsymmetricKind::Ec(hash), PublicKey::EC(point)) => {
            let curve = match hash {
                Hash::Sha256 => "P-256",
                Hash::Sha384 => "P-384",
                Hash::Sha512 => "P-521",
            };
            let (x, y) = point.data().get(1..)?.split_at(point.data().len() / 2);
            set("kty", "EC".into());
            set("crv", curve.into());
            set("x", encode(x));
            set("y", encode(y));
        }
        (AsymmetricKind::Ed25519, _) => {
            set("kty", "OKP".into());
            set("crv", "Ed25519".into());
            set("x", encode(&info.subject_public_key.data));
        }
        _ => return None,
    }
    for (name, value) in [("kid", &key.id), ("alg", &key.algorithm), ("use", &key.usage)] {
        if let Some(value) = value {
            set(name, value.as_str().into());
        }
    }
    Some(Value::Object(jwk).to_string())
}

/// Parses `text` as a key and as a key set.
///
/// # Panics
///
/// If the encoded public half of a key is not a valid key.
#[cfg(feature = "fuzzing")]
pub fn fuzz_jwk(text: &[u8]) {
    let keys = parse_set(text).unwrap_or_default();
    for key in keys.iter().chain(&parse(text).ok()) {
        if let Material::Asymmetric(half) = &key.material {
            let written = public(key, half).expect("a key that is read can be written");
            assert!(parse(written.as_bytes()).is_ok(), "{written}");
        }
    }
}
