use std::borrow::Cow;

use bytes::Bytes;
use outrigger_go_json::{Html, MAX_DEPTH, Shape, canonical, escaped};

use crate::{Error, Result};

/// A value to store. The APIs provide two forms, which Dapr's SQL layouts store differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Opaque bytes: gRPC without a JSON content type, workflow state, encrypted values.
    Bytes(Bytes),
    /// A JSON text as the caller wrote it: HTTP, and gRPC with content type `application/json`.
    Json(Bytes),
    /// JSON text rewritten by [`Value::canonical`].
    Canonical(Bytes),
}

impl Default for Value {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl Value {
    /// The bytes for a store without value kinds.
    ///
    /// # Errors
    /// [`Kind::InvalidRequest`](crate::Kind::InvalidRequest) if the text is not valid JSON.
    pub fn stored(&self, html: Html) -> Result<Cow<'_, Bytes>> {
        match self {
            Self::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::Json(text) => json(text, html).map(Cow::Owned),
            Self::Canonical(text) => Ok(match html {
                Html::Keep => Cow::Borrowed(text),
                Html::Escape => Cow::Owned(escaped(text)),
            }),
        }
    }

    /// Rewrites JSON ahead of the store, so that the caller can offload the work.
    ///
    /// # Errors
    /// Like [`Value::stored`].
    pub fn canonical(self) -> Result<Self> {
        match self {
            Self::Json(text) => json(&text, Html::Keep).map(Self::Canonical),
            done @ (Self::Bytes(_) | Self::Canonical(_)) => Ok(done),
        }
    }

    /// Current size in bytes.
    pub fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) | Self::Json(bytes) | Self::Canonical(bytes) => bytes.len(),
        }
    }
}

/// The text that Dapr's store would hold for the JSON `text`.
pub(crate) fn json(text: &[u8], html: Html) -> Result<Bytes> {
    canonical(text, html).map_err(|error| match Shape::of(text).depth {
        ..=MAX_DEPTH => Error::invalid_request("the value is not valid JSON").because(error),
        _ => Error::invalid_request(format!("the value is nested deeper than {MAX_DEPTH} levels")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_json_not_bytes() {
        let json = Value::Json(Bytes::from_static(b"{ \"a\" : 1 }"));
        assert_eq!(&json.stored(Html::Keep).unwrap()[..], b"{\"a\":1}");
        let bytes = Value::Bytes(Bytes::from_static(b"{ \"a\" : 1 }"));
        assert_eq!(&bytes.stored(Html::Keep).unwrap()[..], b"{ \"a\" : 1 }");
        assert!(Value::Json(Bytes::from_static(b"{")).stored(Html::Keep).is_err());
    }

    #[test]
    fn rejects_deeper_nesting_than_allowed() {
        let nested = |depth: usize| Value::Json(("[".repeat(depth) + &"]".repeat(depth)).into());
        assert!(nested(MAX_DEPTH).canonical().is_ok());
        let error = nested(MAX_DEPTH + 1).canonical().unwrap_err();
        assert!(
            error.to_string().contains("nested deeper than 127 levels"),
            "{error}"
        );
    }

    #[test]
    fn canonical_value_is_stored_unchanged() {
        let json = Value::Json(Bytes::from_static(b"{ \"b\": \"<&>\", \"a\" : 1.0 }"));
        let canonical = json.clone().canonical().unwrap();
        for html in [Html::Keep, Html::Escape] {
            assert_eq!(canonical.stored(html).unwrap(), json.stored(html).unwrap());
        }
        assert!(Value::Json(Bytes::from_static(b"{")).canonical().is_err());
    }
}
