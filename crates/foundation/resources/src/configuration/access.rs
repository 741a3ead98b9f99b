//! `accessControl`: which apps may call this app's methods.

use serde::Deserialize;

/// `accessControl` as written; the policy engine compiles and evaluates the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessControl {
    /// `allow` or `deny`. If the file sets it empty: deny if there are policies, otherwise allow.
    pub default_action: String,
    /// The trust domain that this app requests from the CA.
    pub trust_domain: String,
    /// Rules per caller.
    pub policies: Vec<AppPolicy>,
}

impl Default for AccessControl {
    fn default() -> Self {
        AccessControl {
            default_action: "allow".to_owned(),
            trust_domain: "public".to_owned(),
            policies: Vec::new(),
        }
    }
}

/// Rules for one caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AppPolicy {
    /// Caller's app ID; required.
    pub app_id: String,
    /// Action for operations not listed; empty means the global default.
    pub default_action: String,
    /// The caller's trust domain; required.
    pub trust_domain: String,
    /// The caller's namespace; required.
    pub namespace: String,
    /// Rules in declaration order.
    pub operations: Vec<AppOperation>,
}

/// One rule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AppOperation {
    /// Path or gRPC method, possibly with wildcards.
    pub name: String,
    /// Upper-case verbs or `*`.
    pub http_verb: Vec<String>,
    /// `allow` or `deny`.
    pub action: String,
}

impl AccessControl {
    /// Checks the required fields of every policy; the error text is Dapr's.
    pub fn check(&self) -> Result<(), String> {
        let missing = |absent: fn(&AppPolicy) -> bool| -> Vec<&str> {
            self.policies
                .iter()
                .filter(|p| !p.app_id.is_empty() && absent(p))
                .map(|p| p.app_id.as_str())
                .collect()
        };
        let no_trust_domain = missing(|p| p.trust_domain.is_empty());
        let no_namespace = missing(|p| p.namespace.is_empty());
        let no_name = self.policies.iter().any(|p| p.app_id.is_empty());
        if no_trust_domain.is_empty() && no_namespace.is_empty() && !no_name {
            return Ok(());
        }
        Err(format!(
            "invalid access control spec. missing trustdomain for apps: [{}], missing namespace for apps: [{}], \
             missing app name on at least one of the app policies: {no_name}",
            no_trust_domain.join(" "),
            no_namespace.join(" "),
        ))
    }
}
