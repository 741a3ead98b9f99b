//! Shared parts of the resource kinds: metadata, scopes, name/value items.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The serde name that makes the decoder return a value's JSON text, whatever its type.
pub(crate) const JSON_TEXT: &str = "outrigger:json-text";
/// The serde name of `metadata`, whose unknown keys (labels, annotations) are not reported.
pub(crate) const OBJECT_META: &str = "outrigger:object-meta";

/// Location of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Source {
    /// The file; empty if the resource did not come from a file.
    pub file: PathBuf,
    /// Line of the start of the document, 1-based; 0 if it did not come from a file.
    pub line: usize,
    /// Lines of its values, by the key for [`Source::of`].
    pub(crate) values: BTreeMap<String, usize>,
}

impl Source {
    /// A location in a file.
    pub fn new(file: impl AsRef<Path>, line: usize) -> Source {
        Source {
            file: file.as_ref().to_owned(),
            line,
            values: BTreeMap::new(),
        }
    }

    /// The location of a value: `spec.type`, `spec.version`, `spec.initTimeout`,
    /// `spec.routes.rules[0].match` (from 0), anything in `spec.policies` and `spec.targets`
    /// (`spec.policies.timeouts.NAME`), or an item of `spec.metadata` by its name, ignoring case. Falls
    /// back to the location of the document.
    pub fn of(&self, value: &str) -> Source {
        let line = self.values.get(&value.to_lowercase()).copied();
        Source::new(&self.file, line.unwrap_or(self.line))
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file.display()),
            line => write!(f, "{}:{line}", self.file.display()),
        }
    }
}

/// A value of any YAML type, as the text that components see.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename = "outrigger:json-text")]
pub(crate) struct JsonText(pub(crate) String);

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename = "outrigger:object-meta")]
pub(crate) struct ObjectMeta {
    pub(crate) name: String,
    pub(crate) namespace: String,
}

/// `auth` of components and HTTP endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Auth {
    pub(crate) secret_store: String,
}

/// A named value: component metadata, an endpoint's header.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameValue {
    /// Name; components match it ignoring case.
    pub name: String,
    /// Text of the value: strings verbatim, other types as JSON. `None` if no value was given.
    pub value: Option<String>,
    /// The secret that holds the value. Kept after resolution, because state encryption needs it.
    pub secret: Option<SecretKeyRef>,
    /// The environment variable that holds the value, used only if `value` is `None`.
    pub env: Option<String>,
}

impl NameValue {
    /// An item with a plain value.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> NameValue {
        NameValue {
            name: name.into(),
            value: Some(value.into()),
            secret: None,
            env: None,
        }
    }

    /// The value, or an empty text.
    pub fn text(&self) -> &str {
        self.value.as_deref().unwrap_or("")
    }
}

/// A field of a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretKeyRef {
    /// The secret.
    pub name: String,
    /// The field; empty means the same as `name`.
    pub key: String,
}

impl SecretKeyRef {
    /// The field to read: the key, or the secret's name if there is no key.
    pub fn field(&self) -> &str {
        if self.key.is_empty() {
            &self.name
        } else {
            &self.key
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawSecretKeyRef {
    name: String,
    key: String,
}

impl From<RawSecretKeyRef> for Option<SecretKeyRef> {
    fn from(raw: RawSecretKeyRef) -> Self {
        (!raw.name.is_empty()).then_some(SecretKeyRef {
            name: raw.name,
            key: raw.key,
        })
    }
}

impl<'de> Deserialize<'de> for NameValue {
    fn deserialize<D: serde::Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Raw {
            #[serde(default)]
            name: String,
            #[serde(default)]
            value: Option<JsonText>,
            #[serde(default)]
            secret_key_ref: RawSecretKeyRef,
            #[serde(default)]
            env_ref: String,
        }
        let raw = Raw::deserialize(de)?;
        Ok(NameValue {
            name: raw.name,
            value: raw.value.map(|text| text.0),
            secret: raw.secret_key_ref.into(),
            env: (!raw.env_ref.is_empty()).then_some(raw.env_ref),
        })
    }
}

/// Finds an item by name, ignoring case; the last one of duplicates.
pub fn find<'a>(items: &'a [NameValue], name: &str) -> Option<&'a NameValue> {
    items
        .iter()
        .rev()
        .find(|item| item.name.eq_ignore_ascii_case(name))
}

/// Whether a resource with these scopes applies to an app. No scopes means all apps.
pub fn in_scope(scopes: &[String], app_id: &str) -> bool {
    scopes.is_empty() || scopes.iter().any(|scope| scope == app_id)
}

/// Whether a name is valid in paths: not `.` or `..`, no `/`, no `%`.
pub(crate) fn valid_name(name: &str) -> Result<(), String> {
    match name {
        "." | ".." => Err(format!("may not be {name:?}")),
        _ => match name.chars().find(|c| matches!(c, '/' | '%')) {
            Some(c) => Err(format!("may not contain {c:?}")),
            None => Ok(()),
        },
    }
}
