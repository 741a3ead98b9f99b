//! `Resiliency` (`dapr.io/v1alpha1`): named policies and the targets they apply to, as written.
//!
//! Durations, codes and expressions stay text here; the policy engine reads them and reports what it
//! cannot use, because a document with one bad policy still applies in part.

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
    /// `metadata.namespace`; empty = none.
    pub namespace: String,
    /// `spec.policies`.
    pub policies: Policies,
    /// `spec.targets`.
    pub targets: Targets,
    /// `scopes`: app ids; empty = all.
    pub scopes: Vec<String>,
    /// Values of `spec` that could not be read. They count as absent above; a policy with one must not be used.
    pub mistakes: Vec<Mistake>,
    /// Where it was read.
    pub source: Source,
}

/// A value that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Its keys, as `spec.policies.retries.NAME.maxRetries`.
    pub key: String,
    /// What is wrong with it; begins with the key.
    pub what: String,
    /// Its line; 0 when it did not come from a file.
    pub line: usize,
}

impl Mistake {
    /// Whether the value is the member `name` of `section`, or in it.
    pub fn is_in(&self, section: &str, name: &str) -> bool {
        let start = self.key.get(..section.len());
        let rest = self.key.get(section.len()..).unwrap_or_default();
        let rest = rest.strip_prefix('.').and_then(|rest| rest.strip_prefix(name));
        start.is_some_and(|start| start.eq_ignore_ascii_case(section))
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

impl Resiliency {
    /// Whether both say the same, wherever they were read: what hot reload compares.
    pub fn same_as(&self, other: &Resiliency) -> bool {
        let at = |r: &Resiliency| {
            let mut r = r.clone();
            r.source = Source::default();
            r.mistakes.iter_mut().for_each(|mistake| mistake.line = 0);
            r
        };
        at(self) == at(other)
    }

    /// Whether the member `name` of `section` has a value that could not be read.
    pub fn is_wrong(&self, section: &str, name: &str) -> bool {
        self.mistakes.iter().any(|mistake| mistake.is_in(section, name))
    }
}

/// `spec.policies`: by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Policies {
    /// Time limits: integer text = milliseconds, or a Go duration.
    pub timeouts: BTreeMap<String, String>,
    /// Retry policies.
    pub retries: BTreeMap<String, Retry>,
    /// `spec.policies.circuitBreakers`, by name.
    pub circuit_breakers: BTreeMap<String, CircuitBreaker>,
}

/// A retry policy; empty texts mean the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Retry {
    /// `constant` (default) or `exponential`, in any case.
    pub policy: String,
    /// Interval of a constant policy; default 5s.
    pub duration: String,
    /// Longest interval of an exponential policy; default 60s.
    pub max_interval: String,
    /// -1 = unlimited (default), 0 = none.
    pub max_retries: Option<i64>,
    /// Which outcomes are retried; `None` = all.
    pub matching: Option<RetryMatching>,
}

/// `matching` of a retry policy: comma lists of codes and ranges `a-b`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RetryMatching {
    /// 100 to 599; empty = all.
    #[serde(rename = "httpStatusCodes")]
    pub http_status_codes: String,
    /// 0 to 16; empty = all.
    #[serde(rename = "gRPCStatusCodes")]
    pub grpc_status_codes: String,
}

/// A circuit breaker; empty texts and 0 mean the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CircuitBreaker {
    /// Calls let through when half-open; default 1.
    pub max_requests: i64,
    /// Counter reset period while closed; default 0 = never.
    pub interval: String,
    /// Open to half-open; default 60s.
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

/// Policy names for an app; empty = none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AppTarget {
    /// Name of a timeout.
    pub timeout: String,
    /// Name of a retry policy.
    pub retry: String,
    /// Name of a circuit breaker.
    pub circuit_breaker: String,
    /// Breakers kept at once; 0 = 100.
    pub circuit_breaker_cache_size: i64,
}

/// Policy names for an actor type; empty = none.
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
    /// Breakers kept at once; 0 = 5000.
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

/// Policy names; empty = none.
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

    /// Of these only the first document of a file counts, whatever its `apiVersion`.
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
