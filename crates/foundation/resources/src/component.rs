//! `Component` (`dapr.io/v1alpha1`).

use std::time::Duration;

use serde::Deserialize;

use crate::load::{Broken, Document, Read, V1};
use crate::meta::{Auth, NameValue, ObjectMeta, Source, find};
use crate::value::go_duration;

/// Default time limit for a component's initialization, also if its spec has an invalid one.
pub const DEFAULT_INIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A building block's backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Component {
    /// `metadata.name`, used by API callers.
    pub name: String,
    /// `metadata.namespace`; may be empty.
    pub namespace: String,
    /// `spec.type`, as `category.name`.
    pub kind: String,
    /// `spec.version`; empty, `v0` and `v1` are equivalent.
    pub version: String,
    /// `spec.ignoreErrors`: a failed initialization does not stop the sidecar.
    pub ignore_errors: bool,
    /// `spec.initTimeout`.
    pub init_timeout: Duration,
    /// `spec.metadata`.
    pub metadata: Vec<NameValue>,
    /// `auth.secretStore`; may be empty.
    pub secret_store: String,
    /// `scopes`: app IDs; empty means all.
    pub scopes: Vec<String>,
    /// Location of the definition.
    pub source: Source,
}

impl Component {
    /// `NAME (TYPE/VERSION)`, or `NAME (TYPE)` without version.
    pub fn log_name(&self) -> String {
        if self.version.is_empty() {
            format!("{} ({})", self.name, self.kind)
        } else {
            format!("{} ({}/{})", self.name, self.kind, self.version)
        }
    }

    /// The value of a metadata item by its name, ignoring case; `None` if absent or without a value.
    pub fn property(&self, name: &str) -> Option<&str> {
        find(&self.metadata, name)?.value.as_deref()
    }

    /// Whether both describe the same component, regardless of location; used by hot reload.
    pub fn same_as(&self, other: &Component) -> bool {
        let at = |c: &Component| Component {
            source: Source::default(),
            namespace: String::new(),
            ..c.clone()
        };
        at(self) == at(other)
    }
}

impl Read for Component {
    const VERSIONS: &'static [&'static str] = &[V1];

    fn read(document: &mut Document<'_>, _: &str) -> Result<Option<Self>, Broken> {
        let (raw, source) = document.decode::<Raw>()?;
        let timeout = &raw.spec.init_timeout;
        if !timeout.is_empty()
            && let Err(error) = go_duration(timeout)
        {
            let what = format!("spec.initTimeout: {error}: {DEFAULT_INIT_TIMEOUT:?} is used");
            document.warn_at(&source.of("spec.initTimeout"), what, "write it like 30s or 1m30s");
        }
        Ok(Some(raw.finish(source)))
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Raw {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: ObjectMeta,
    spec: Spec,
    auth: Auth,
    scopes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    r#type: String,
    version: String,
    ignore_errors: bool,
    init_timeout: String,
    metadata: Vec<NameValue>,
}

impl Raw {
    pub(crate) fn finish(self, source: Source) -> Component {
        Component {
            name: self.metadata.name,
            namespace: self.metadata.namespace,
            kind: self.spec.r#type,
            version: self.spec.version,
            ignore_errors: self.spec.ignore_errors,
            init_timeout: go_duration(&self.spec.init_timeout).unwrap_or(DEFAULT_INIT_TIMEOUT),
            metadata: self.spec.metadata,
            secret_store: self.auth.secret_store,
            scopes: self.scopes,
            source,
        }
    }
}
