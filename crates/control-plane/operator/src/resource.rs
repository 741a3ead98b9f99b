//! Resources as stored in the copies: the manifest for sidecars, and the data that decides which of them get
//! it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::marker::PhantomData;

use bytes::Bytes;
use outrigger_kube::annotations::{APP_ID, CONFIG};
use outrigger_kube::{Kind, Meta, Watched};
use serde_json::Value;

use crate::secrets;

/// A kind of resources.
pub(crate) trait ResourceKind: Send + Sync + 'static {
    const KIND: Kind;
    /// The fields with references to secrets.
    const SECRETS: secrets::SecretFields;
}

macro_rules! kinds {
    ($($name:ident $kind:ident $secrets:ident;)*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name;

        impl ResourceKind for $name {
            const KIND: Kind = Kind::$kind;
            const SECRETS: secrets::SecretFields = secrets::$secrets;
        }
    )*};
}

kinds! {
    Component COMPONENTS COMPONENT;
    Configuration CONFIGURATIONS CONFIGURATION;
    HttpEndpoint HTTP_ENDPOINTS HTTP_ENDPOINT;
    McpServer MCP_SERVERS MCP_SERVER;
    Resiliency RESILIENCIES NONE;
    Subscription SUBSCRIPTIONS NONE;
    WorkflowAccessPolicy WORKFLOW_ACCESS_POLICIES NONE;
}

#[derive(Debug)]
pub(crate) struct Resource<K> {
    /// The manifest, JSON.
    pub(crate) manifest: Bytes,
    /// App ids that it is limited to; empty means all apps.
    scopes: Vec<String>,
    /// Whether it refers to secrets of the cluster.
    pub(crate) has_secrets: bool,
    /// Hash of the relevant contents.
    fingerprint: u64,
    kind: PhantomData<fn() -> K>,
}

impl<K> Resource<K> {
    /// Whether it applies to an app.
    pub(crate) fn is_for(&self, app_id: &str) -> bool {
        self.scopes.is_empty() || self.scopes.iter().any(|scope| scope == app_id)
    }
}

/// Compares relevant contents only; the resource version also counts irrelevant changes.
impl<K> PartialEq for Resource<K> {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl<K: ResourceKind> Watched for Resource<K> {
    const KIND: Kind = K::KIND;

    fn read(_: &Meta, mut object: Value) -> Result<Option<Self>, String> {
        let Some(fields) = object.as_object_mut() else {
            return Err("it is not a JSON object".to_owned());
        };
        let metadata = fields.get_mut("metadata").and_then(Value::as_object_mut);
        let metadata = metadata.ok_or_else(|| "its metadata is missing".to_owned())?;
        // Field ownership is long and irrelevant to sidecars.
        metadata.remove("managedFields");
        let version = metadata.remove("resourceVersion");
        let mut hasher = DefaultHasher::new();
        object.to_string().hash(&mut hasher);
        if let Some(version) = version {
            object["metadata"]["resourceVersion"] = version;
        }
        let scopes = object["scopes"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(Some(Self {
            scopes: scopes
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
            has_secrets: secrets::needed(K::SECRETS, &object),
            fingerprint: hasher.finish(),
            // Without spare capacity.
            manifest: object.to_string().into_boxed_str().into_boxed_bytes().into(),
            kind: PhantomData,
        }))
    }

    fn size(&self) -> usize {
        let scopes = self.scopes.iter().map(|scope| size_of::<String>() + scope.len());
        size_of_val(self) + self.manifest.len() + scopes.sum::<usize>()
    }
}

/// A pod of an app with a Configuration.
#[derive(Debug, PartialEq)]
pub(crate) struct AppPod {
    app_id: Box<str>,
    configuration: Box<str>,
}

impl AppPod {
    /// The pods that the injector has changed.
    pub(crate) const SELECTOR: &str = "labelSelector=dapr.io%2Fsidecar-injected%3Dtrue";

    /// Whether an app uses a Configuration.
    pub(crate) fn uses(&self, app_id: &str, configuration: &str) -> bool {
        *self.app_id == *app_id && *self.configuration == *configuration
    }
}

impl Watched for AppPod {
    const KIND: Kind = Kind::PODS;

    fn read(meta: &Meta, object: Value) -> Result<Option<Self>, String> {
        let annotation = |name| object["metadata"]["annotations"][name].as_str();
        let configuration = annotation(CONFIG).filter(|name| !name.is_empty());
        Ok(configuration.map(|configuration| Self {
            app_id: annotation(APP_ID).unwrap_or(&meta.name).into(),
            configuration: configuration.into(),
        }))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.app_id.len() + self.configuration.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn component(object: Value) -> Resource<Component> {
        let meta = Meta::of(&object);
        Resource::read(&meta, object).unwrap().unwrap()
    }

    #[test]
    fn passes_manifests_unchanged() {
        let object = json!({"metadata": {"name": "a", "creationTimestamp": null, "labels": {"x": "y"}},
            "spec": {"unknown": [1, {"b": null}], "metadata": []}, "auth": {"secretStore": ""}});
        let read = component(object.clone());
        assert_eq!(serde_json::from_slice::<Value>(&read.manifest).unwrap(), object);
        assert!(!read.has_secrets);
    }

    #[test]
    fn ignores_version_and_field_managers() {
        let of = |version: &str, value: &str| {
            component(
                json!({"metadata": {"name": "a", "resourceVersion": version, "managedFields": [version]},
                "spec": {"type": value}}),
            )
        };
        assert!(of("1", "x") == of("2", "x"));
        assert!(of("1", "x") != of("1", "y"));
        assert!(!String::from_utf8_lossy(&of("1", "x").manifest).contains("managedFields"));
    }

    #[test]
    fn applies_scopes() {
        let of = |scopes: Value| component(json!({"metadata": {"name": "a"}, "scopes": scopes}));
        assert!(of(Value::Null).is_for("a") && of(json!([])).is_for("a"));
        assert!(of(json!(["b", "a"])).is_for("a") && !of(json!(["b"])).is_for("a"));
    }

    #[test]
    fn size_counts_stored_bytes() {
        let long = "x".repeat(5000);
        let plain = component(json!({"metadata": {"name": "a"}}));
        let data = component(json!({"metadata": {"name": "a"}, "spec": {"a": long}}));
        let scopes = component(json!({"metadata": {"name": "a"}, "scopes": [long]}));
        assert!(plain.size() < 1000);
        // The scope is in the manifest, too.
        assert!(data.size() > 5000 && scopes.size() > 10_000);
    }

    #[test]
    fn finds_configuration_of_app() {
        let read = |annotations: Value| {
            let object = json!({"metadata": {"name": "pod-1", "annotations": annotations}});
            AppPod::read(&Meta::of(&object), object).unwrap()
        };
        let named = read(json!({"dapr.io/app-id": "cart", "dapr.io/config": "c"})).unwrap();
        assert!(named.uses("cart", "c") && !named.uses("pod-1", "c") && !named.uses("cart", "d"));
        assert!(read(json!({"dapr.io/config": "c"})).unwrap().uses("pod-1", "c"));
        assert!(read(json!({"dapr.io/app-id": "cart"})).is_none());
        assert!(read(json!({"dapr.io/config": ""})).is_none());
    }

    #[test]
    fn refuses_non_objects() {
        let meta = Meta::of(&Value::Null);
        assert!(Resource::<Component>::read(&meta, json!([])).is_err());
        assert!(Resource::<Component>::read(&meta, json!({})).is_err());
    }
}
