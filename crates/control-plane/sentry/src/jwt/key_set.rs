//! JWK sets (RFC 7517).

use serde_json::{Map, Value};

use super::key::PublicKey;

/// The public keys of a JWK set.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeySet {
    pub(super) keys: Vec<Jwk>,
}

/// One key of a set.
#[derive(Debug, Clone)]
pub(super) struct Jwk {
    pub kid: Option<String>,
    /// If set, the only algorithm for this key.
    pub alg: Option<String>,
    usage: Option<String>,
    /// If set, the permitted operations.
    operations: Option<Vec<Value>>,
    /// `None` for key types without supported signatures.
    pub key: Option<PublicKey>,
}

/// Why the text is not a JWK set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeySetError {
    #[error("not JSON: {0}")]
    Json(String),
    #[error("not a JWK set: want an object with a \"keys\" array")]
    Shape,
    #[error("key {0}: {1}")]
    Key(usize, String),
}

impl KeySet {
    /// Parses a set. A single key counts as a set of one.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, KeySetError> {
        let value: Value =
            serde_json::from_slice(json).map_err(|error| KeySetError::Json(error.to_string()))?;
        let Value::Object(object) = value else {
            return Err(KeySetError::Shape);
        };
        let keys = match object.get("keys") {
            Some(Value::Array(keys)) => keys.clone(),
            None if object.contains_key("kty") => vec![Value::Object(object)],
            _ => return Err(KeySetError::Shape),
        };
        let keys = keys.iter().enumerate().map(|(index, key)| {
            let key = key.as_object().ok_or(KeySetError::Shape)?;
            Jwk::parse(key).map_err(|error| KeySetError::Key(index, error))
        });
        Ok(Self {
            keys: keys.collect::<Result<_, _>>()?,
        })
    }

    /// Number of keys, supported or not.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}

impl Jwk {
    fn parse(jwk: &Map<String, Value>) -> Result<Self, String> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            kid: text("kid"),
            alg: text("alg"),
            usage: text("use"),
            operations: jwk.get("key_ops").and_then(Value::as_array).cloned(),
            key: PublicKey::from_jwk(jwk)?,
        })
    }

    /// Whether the key may verify signatures; a key without usage may.
    pub(super) fn is_for_signatures(&self) -> bool {
        let usage = self.usage.as_deref();
        let operations = self.operations.as_ref();
        usage.is_none_or(|usage| usage.is_empty() || usage == "sig")
            && operations.is_none_or(|listed| listed.iter().any(|operation| operation == "verify"))
    }
}
