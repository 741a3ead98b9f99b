//! Kinds of objects, and their URL paths.

use std::fmt::Write;

/// A kind of objects, by the path of its collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind {
    /// `api/v1`, or `apis/<group>/<version>`.
    pub prefix: &'static str,
    /// Plural name, as in URLs.
    pub plural: &'static str,
}

macro_rules! kinds {
    ($($name:ident: $prefix:literal $plural:literal, $doc:literal;)*) => {
        impl Kind {
            $(#[doc = $doc] pub const $name: Self = Self { prefix: $prefix, plural: $plural };)*
        }
    };
}

kinds! {
    COMPONENTS: "apis/dapr.io/v1alpha1" "components", "Components.";
    CONFIGURATIONS: "apis/dapr.io/v1alpha1" "configurations", "Configurations.";
    HTTP_ENDPOINTS: "apis/dapr.io/v1alpha1" "httpendpoints", "HTTP endpoints.";
    MCP_SERVERS: "apis/dapr.io/v1alpha1" "mcpservers", "MCP servers.";
    RESILIENCIES: "apis/dapr.io/v1alpha1" "resiliencies", "Resiliency policies.";
    WORKFLOW_ACCESS_POLICIES: "apis/dapr.io/v1alpha1" "workflowaccesspolicies", "Access policies of workflows.";
    SUBSCRIPTIONS: "apis/dapr.io/v2alpha1" "subscriptions", "Subscriptions, as version 2.";
    CONFIG_MAPS: "api/v1" "configmaps", "Config maps.";
    NAMESPACES: "api/v1" "namespaces", "Namespaces.";
    PODS: "api/v1" "pods", "Pods.";
    SECRETS: "api/v1" "secrets", "Secrets.";
    SERVICES: "api/v1" "services", "Services.";
    DEPLOYMENTS: "apis/apps/v1" "deployments", "Deployments.";
    STATEFUL_SETS: "apis/apps/v1" "statefulsets", "Stateful sets.";
    ROLLOUTS: "apis/argoproj.io/v1alpha1" "rollouts", "Rollouts of Argo.";
    LEASES: "apis/coordination.k8s.io/v1" "leases", "Leases.";
    TOKEN_REVIEWS: "apis/authentication.k8s.io/v1" "tokenreviews", "Reviews of tokens.";
    CUSTOM_RESOURCE_DEFINITIONS: "apis/apiextensions.k8s.io/v1" "customresourcedefinitions", "Definitions of kinds.";
    MUTATING_WEBHOOKS: "apis/admissionregistration.k8s.io/v1" "mutatingwebhookconfigurations", "Mutating webhooks.";
}

impl Kind {
    /// The path of the collection, or of an object in it.
    pub(crate) fn path(self, namespace: Option<&str>, name: Option<&str>) -> String {
        let mut path = format!("/{}", self.prefix);
        // Writing to a String cannot fail.
        if let Some(namespace) = namespace {
            let _ = write!(path, "/namespaces/{namespace}");
        }
        let _ = write!(path, "/{}", self.plural);
        if let Some(name) = name {
            let _ = write!(path, "/{name}");
        }
        path
    }
}

/// Maximum length of an object name.
const MAX_NAME: usize = 253;

/// Whether a text is a valid object name and thus safe in a URL.
pub fn is_object_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inner = |byte: u8| letter(byte) || matches!(byte, b'-' | b'.' | b':' | b'_');
    let bytes = name.as_bytes();
    (1..=MAX_NAME).contains(&bytes.len())
        && letter(bytes[0])
        && letter(bytes[bytes.len() - 1])
        && bytes.iter().all(|&byte| inner(byte) || byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_paths() {
        assert_eq!(Kind::PODS.path(None, None), "/api/v1/pods");
        assert_eq!(
            Kind::COMPONENTS.path(Some("ns"), Some("a")),
            "/apis/dapr.io/v1alpha1/namespaces/ns/components/a"
        );
        assert_eq!(
            Kind::MUTATING_WEBHOOKS.path(None, Some("w")),
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/w"
        );
    }

    #[test]
    fn rejects_invalid_names() {
        for good in ["a", "dapr-system", "operator.dapr.io", "a1"] {
            assert!(is_object_name(good), "{good}");
        }
        let long = "a".repeat(254);
        for bad in ["", "a/b", "..", "a?b", "-a", "a-", "a%2f", "ä", long.as_str()] {
            assert!(!is_object_name(bad), "{bad}");
        }
    }
}
