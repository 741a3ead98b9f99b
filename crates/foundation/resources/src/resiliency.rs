//! `Resiliency` (`dapr.io/v1alpha1`): named policies and the targets they apply to, as written.
//!
//! Durations, codes and expressions stay text here. The policy engine parses them and reports errors,
//! because a document with one invalid policy still applies in part.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::load::{Broken, Document, Read};
use crate::meta::{ObjectMeta, Source};
use crate::yaml;

/// One Resiliency document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resiliency {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`; may be empty.
    pub namespace: String,
    /// `spec.policies`.
    pub policies: Policies,
    /// `spec.targets`.
    pub targets: Targets,
    /// `scopes`: app IDs; empty means all.
    pub scopes: Vec<String>,
    /// Values of `spec` that could not be decoded. They count as absent above; a policy with one must not
    /// be used.
    pub mistakes: Vec<Mistake>,
    /// Location of the definition.
    pub source: Source,
}

/// A value that could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Its path, such as `spec.policies.retries.NAME.maxRetries`.
    pub key: String,
    /// The error; starts with the path.
    pub what: String,
    /// Its line; 0 if it did not come from a file.
    pub line: usize,
}

impl Mistake {
    /// Whether the value is the member `name` of `section`, or inside it.
    pub fn is_in(&self, section: &str, name: &str) -> bool {
        let start = self.key.get(..section.len());
        let rest = self.key.get(section.len()..).unwrap_or_default();
        let rest = rest.strip_prefix('.').and_then(|rest| rest.strip_prefix(name));
        start.is_some_and(|start| start.eq_ignore_ascii_case(section))
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

impl Resiliency {
    /// Whether both have the same content, regardless of location; used by hot reload.
    pub fn same_as(&self, other: &Resiliency) -> bool {
        let at = |r: &Resiliency| {
            let mut r = r.clone();
            r.source = Source::default();
            r.mistakes.iter_mut().for_each(|mistake| mistake.line = 0);
            r
        };
        at(self) == at(other)
    }

    /// Whether the member `name` of `section` has a value that could not be decoded.
    pub fn is_wrong(&self, section: &str, name: &str) -> bool {
        self.mistakes.iter().any(|mistake| mistake.is_in(section, name))
    }
}

/// `spec.policies`: by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Policies {
    /// Timeouts: an integer means milliseconds, other texts are Go durations.
    pub timeouts: BTreeMap<String, String>,
    /// Retry policies.
    pub retries: BTreeMap<String, Retry>,
    /// `spec.policies.circuitBreakers`, by name.
    pub circuit_breakers: BTreeMap<String, CircuitBreaker>,
}

/// A retry policy; empty texts mean defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Retry {
    /// `constant` (default) or `exponential`, in any case.
    pub policy: String,
    /// Interval of a constant policy; default 5s.
    pub duration: String,
    /// Maximum interval of an exponential policy; default 60s.
    pub max_interval: String,
    /// -1 means unlimited (default), 0 none.
    pub max_retries: Option<i64>,
    /// The outcomes to retry; `None` means all.
    pub matching: Option<RetryMatching>,
}

/// `matching` of a retry policy: comma-separated codes and ranges `a-b`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RetryMatching {
    /// 100 to 599; empty means all.
    #[serde(rename = "httpStatusCodes")]
    pub http_status_codes: String,
    /// 0 to 16; empty means all.
    #[serde(rename = "gRPCStatusCodes")]
    pub grpc_status_codes: String,
}

/// A circuit breaker; empty texts and 0 mean defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CircuitBreaker {
    /// Calls permitted while half-open; default 1.
    pub max_requests: i64,
    /// Interval at which the counts are reset while closed; default 0 means never.
    pub interval: String,
    /// Time from open to half-open; default 60s.
    pub timeout: String,
    /// CEL expression; default `consecutiveFailures > 5`.
    pub trip: String,
}

/// `spec.targets`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Targets {
    /// Policies of apps, by app id.
    pub apps: BTreeMap<String, AppTarget>,
    /// Policies of actors, by actor type.
    pub actors: BTreeMap<String, ActorTarget>,
    /// Policies of components, by component name.
    pub components: BTreeMap<String, ComponentTarget>,
}

/// Policies of an app by name; empty means none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AppTarget {
    /// Name of a timeout.
    pub timeout: String,
    /// Name of a retry policy.
    pub retry: String,
    /// Name of a circuit breaker.
    pub circuit_breaker: String,
    /// Maximum number of cached breakers; 0 means 100.
    pub circuit_breaker_cache_size: i64,
}

/// Policies of an actor type by name; empty means none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ActorTarget {
    /// Name of a timeout.
    pub timeout: String,
    /// Name of a retry policy.
    pub retry: String,
    /// Name of a circuit breaker.
    pub circuit_breaker: String,
    /// `type`, `id` or `both`; required with a breaker.
    pub circuit_breaker_scope: String,
    /// Maximum number of cached breakers; 0 means 5000.
    pub circuit_breaker_cache_size: i64,
}

/// Policy names for a component, by direction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ComponentTarget {
    /// From the component to the app.
    pub inbound: PolicyNames,
    /// From the sidecar to the component.
    pub outbound: PolicyNames,
}

/// Policies by name; empty means none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyNames {
    /// Name of a timeout.
    pub timeout: String,
    /// Name of a retry policy.
    pub retry: String,
    /// Name of a circuit breaker.
    pub circuit_breaker: String,
}

impl Read for Resiliency {
    const VERSIONS: &'static [&'static str] = &[];

    /// Only the first document of a file counts, whatever its `apiVersion`.
    fn read(document: &mut Document<'_>, _: &str) -> Result<Option<Self>, Broken> {
        if document.index > 0 {
            document.error(
                "only the first document of a file can be a Resiliency",
                "move it to a separate file; it is not loaded",
            );
            return Ok(None);
        }
        document.decode_usable(Raw::finish).map(Some)
    }

    fn with_mistakes(self, errors: Vec<yaml::Error>) -> Result<Self, Vec<yaml::Error>> {
        let in_spec = |error: &yaml::Error| {
            let start = error.path.get(..4).unwrap_or_default();
            start.eq_ignore_ascii_case("spec")
        };
        if !errors.iter().all(in_spec) {
            return Err(errors);
        }
        let mistakes = errors.into_iter().map(|error| Mistake {
            what: error.to_string(),
            line: error.line,
            key: error.path,
        });
        Ok(Resiliency {
            mistakes: mistakes.collect(),
            ..self
        })
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
    scopes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    policies: Policies,
    targets: Targets,
}

impl Raw {
    pub(crate) fn finish(self, source: Source) -> Resiliency {
        Resiliency {
            name: self.metadata.name,
            namespace: self.metadata.namespace,
            policies: self.spec.policies,
            targets: self.spec.targets,
            scopes: self.scopes,
            mistakes: Vec::new(),
            source,
        }
    }
}
