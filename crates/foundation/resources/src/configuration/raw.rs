//! The document as written, before defaults.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Visitor;

use super::{
    AccessControl, ApiLogging, ApiRule, AppPolicy, Configuration, Features, Handler, NameResolution,
    SecretScope, metrics, mtls, secrets, tracing, workflow,
};
use crate::meta::ObjectMeta;
use crate::value::go_duration;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Raw {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: ObjectMeta,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    http_pipeline: Pipeline,
    app_http_pipeline: Pipeline,
    tracing: tracing::Raw,
    metric: metrics::Raw,
    metrics: metrics::Raw,
    mtls: mtls::Raw,
    secrets: Secrets,
    access_control: RawAccessControl,
    name_resolution: NameResolution,
    features: Vec<Feature>,
    api: Api,
    components: Components,
    logging: Logging,
    wasm: Wasm,
    workflow: workflow::Raw,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pipeline {
    handlers: Vec<Handler>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Secrets {
    scopes: Vec<SecretScope>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawAccessControl {
    default_action: Option<String>,
    trust_domain: Option<String>,
    policies: Vec<AppPolicy>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Feature {
    name: String,
    enabled: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Api {
    allowed: Vec<ApiRule>,
    denied: Vec<ApiRule>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Components {
    deny: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Logging {
    api_logging: ApiLogging,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wasm {
    strict_sandbox: bool,
}

impl Raw {
    pub(super) fn finish(self) -> Result<Configuration, String> {
        let spec = self.spec;
        let wrong = secrets::check(&spec.secrets.scopes);
        if !wrong.is_empty() {
            let all: Vec<_> = wrong.into_iter().map(|wrong| wrong.what).collect();
            return Err(all.join("; "));
        }
        let access = AccessControl::default();
        Ok(Configuration {
            name: self.metadata.name,
            http_pipeline: spec.http_pipeline.handlers,
            app_http_pipeline: spec.app_http_pipeline.handlers,
            tracing: spec.tracing.into(),
            metrics: spec.metric.finish(spec.metrics),
            mtls: spec.mtls.into(),
            secrets: spec.secrets.scopes,
            access_control: AccessControl {
                default_action: spec
                    .access_control
                    .default_action
                    .unwrap_or(access.default_action),
                trust_domain: spec.access_control.trust_domain.unwrap_or(access.trust_domain),
                policies: spec.access_control.policies,
            },
            name_resolution: spec.name_resolution,
            features: Features::from_entries(spec.features.into_iter().map(|f| (f.name, f.enabled))),
            api_allowed: spec.api.allowed,
            api_denied: spec.api.denied,
            denied_components: spec.components.deny,
            api_logging: spec.logging.api_logging,
            wasm_strict_sandbox: spec.wasm.strict_sandbox,
            workflow: spec.workflow.into(),
        })
    }
}

/// A Go duration, or an integer number of nanoseconds.
pub(super) struct GoDuration(pub(super) Duration);

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: serde::Deserializer<'de>>(de: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = GoDuration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as 72h or 30m")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<GoDuration, E> {
                go_duration(text).map(GoDuration).map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, nanos: i64) -> Result<GoDuration, E> {
                let nanos = u64::try_from(nanos).map_err(|_| E::custom("a duration may not be negative"))?;
                Ok(GoDuration(Duration::from_nanos(nanos)))
            }
        }
        de.deserialize_any(Text)
    }
}
