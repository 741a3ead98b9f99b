//! Workloads that create pods: deployments, stateful sets, rollouts.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use outrigger_kube::annotations::{
    APP_ID, Annotations, DEFAULT_GRPC_PORT, DEFAULT_INTERNAL_GRPC_PORT, DEFAULT_METRICS_PORT, ENABLE_METRICS,
    ENABLED, GRPC_PORT, INTERNAL_GRPC_PORT, METRICS_PORT, SERVICE_ANNOTATIONS, service_name,
};
use outrigger_kube::{Kind, Meta, Watched};
use serde::Deserialize;
use serde_json::Value;

const LOG: &str = "dapr.operator.handlers";

/// A kind of workloads.
pub(super) trait Owner: Send + Sync + 'static {
    const KIND: Kind;
    const API_VERSION: &'static str;
    const NAME: &'static str;
}

macro_rules! owners {
    ($($name:ident $kind:ident $version:literal $text:literal;)*) => {$(
        #[derive(Debug)]
        pub(super) struct $name;

        impl Owner for $name {
            const KIND: Kind = Kind::$kind;
            const API_VERSION: &'static str = $version;
            const NAME: &'static str = $text;
        }
    )*};
}

owners! {
    Deployment DEPLOYMENTS "apps/v1" "Deployment";
    StatefulSet STATEFUL_SETS "apps/v1" "StatefulSet";
    Rollout ROLLOUTS "argoproj.io/v1alpha1" "Rollout";
}

/// A workload whose pods have sidecars.
#[derive(Debug)]
pub(super) struct Workload<K> {
    pub(super) uid: String,
    pub(super) app_id: String,
    /// Name of the service.
    pub(super) service: String,
    /// Labels of its pods.
    pub(super) selector: BTreeMap<String, String>,
    pub(super) metrics: bool,
    pub(super) grpc: i32,
    pub(super) internal: i32,
    pub(super) metrics_port: i32,
    /// Additional annotations for the service.
    pub(super) annotations: Vec<(String, String)>,
    kind: PhantomData<fn() -> K>,
}

impl<K> PartialEq for Workload<K> {
    fn eq(&self, other: &Self) -> bool {
        let of = |one: &Self| (one.metrics, one.grpc, one.internal, one.metrics_port);
        of(self) == of(other)
            && self.uid == other.uid
            && self.app_id == other.app_id
            && self.selector == other.selector
            && self.annotations == other.annotations
    }
}

#[derive(Deserialize)]
struct Object {
    metadata: ObjectMeta,
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMeta {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(default)]
    selector: Option<Selector>,
    /// A rollout may refer to a deployment instead, which is handled by itself.
    #[serde(default)]
    template: Template,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    #[serde(default)]
    match_labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
struct Template {
    #[serde(default)]
    metadata: TemplateMeta,
}

#[derive(Default, Deserialize)]
struct TemplateMeta {
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

impl<K: Owner> Watched for Workload<K> {
    const KIND: Kind = K::KIND;

    fn read(meta: &Meta, object: Value) -> Result<Option<Self>, String> {
        let object: Object = serde_json::from_value(object).map_err(|error| error.to_string())?;
        let annotations = object.spec.template.metadata.annotations.unwrap_or_default();
        let annotations = Annotations(&annotations);
        // Any value that means true, as in Dapr: a service without sidecars is harmless.
        if object.metadata.deletion_timestamp.is_some() || !annotations.boolean(ENABLED, false) {
            return Ok(None);
        }
        let app_id = annotations.text(APP_ID).unwrap_or_default();
        let service = match service_name(app_id) {
            Ok(service) => service,
            Err(cause) => {
                let Meta { namespace, name } = meta;
                tracing::error!(target: LOG, "no service for {} {namespace}/{name}: {cause}", K::NAME);
                return Ok(None);
            }
        };
        let port = |name, default| annotations.number(name).unwrap_or(default);
        Ok(Some(Self {
            uid: object.metadata.uid,
            app_id: app_id.to_owned(),
            service,
            selector: object
                .spec
                .selector
                .unwrap_or_default()
                .match_labels
                .unwrap_or_default(),
            metrics: annotations.boolean(ENABLE_METRICS, true),
            grpc: port(GRPC_PORT, DEFAULT_GRPC_PORT),
            internal: port(INTERNAL_GRPC_PORT, DEFAULT_INTERNAL_GRPC_PORT),
            metrics_port: port(METRICS_PORT, DEFAULT_METRICS_PORT),
            annotations: pairs(annotations.text(SERVICE_ANNOTATIONS).unwrap_or_default()),
            kind: PhantomData,
        }))
    }

    fn size(&self) -> usize {
        let texts = [&self.uid, &self.app_id, &self.service].map(String::len);
        let pair = |key: &String, value: &String| 2 * size_of::<String>() + key.len() + value.len();
        let selector = self.selector.iter().map(|(key, value)| pair(key, value));
        let annotations = self.annotations.iter().map(|(key, value)| pair(key, value));
        let pairs: usize = selector.chain(annotations).sum();
        size_of_val(self) + texts.iter().sum::<usize>() + pairs
    }
}

/// Parses `k=v,k2=v2`; other entries are ignored.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        let (key, value) = (key.trim(), value.trim());
        (!key.is_empty()).then(|| (key.to_owned(), value.to_owned()))
    };
    text.split(',').filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_service_annotations() {
        let expected = [("a", "1"), ("b", "x=y")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(pairs(" a = 1 ,b=x=y, none,=x,"), expected);
        assert!(pairs("").is_empty());
    }
}
