//! Access control by the callee: which callers may use which operations of this app.
//!
//! Rules are compiled once. A decision takes the caller's certified identity and the canonical operation
//! path (see [`crate::path::canonical`]), which is also the dispatched path. If the app could interpret
//! that path differently ([`crate::readings`]), all interpretations must be allowed.

mod pattern;
mod rules;

use std::borrow::Cow;
use std::collections::HashMap;

use outrigger_resources::configuration as spec;

use rules::Rules;

use crate::readings;

/// Callbacks that an app serves for its own sidecar. They name the operation inside of their messages, or
/// deliver events, so rules about methods cannot apply to them.
const CALLBACKS: &str = "/dapr.proto.runtime.v1.AppCallback";

/// The app's protocol, which decides how operations are matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppProtocol {
    /// Case-insensitive paths; rules apply per verb.
    Http,
    /// Case-sensitive; verbs are ignored.
    Grpc,
}

/// A caller, from the SPIFFE ID of its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallerId<'a> {
    /// Trust domain of the caller.
    pub trust_domain: &'a str,
    /// Namespace of the caller.
    pub namespace: &'a str,
    /// App ID of the caller.
    pub app_id: &'a str,
}

/// A decision about one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the call is allowed.
    pub allowed: bool,
    /// Whether a policy for this caller with a default action applied, instead of the global default;
    /// selects the metric family.
    pub by_app_policy: bool,
    /// Why the call is denied although its literal path is allowed.
    pub ambiguity: Option<Ambiguity>,
}

/// Why an operation is denied although its literal path is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguity {
    /// A server may interpret it as another operation, which is denied.
    #[error("servers may interpret it as {0}, which is denied")]
    ReadAs(String),
    /// It has too many interpretations to check.
    #[error("servers may interpret it in too many different ways")]
    TooManyReadings,
    /// A callback, called as a method.
    #[error("callbacks of an app are for its own sidecar; use InvokeService")]
    Callback,
}

/// Access control cannot be compiled, which is fatal at startup. The text names the apps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AccessError(String);

/// Compiled access control.
#[derive(Debug)]
pub struct AccessControl {
    protocol: AppProtocol,
    default_allows: bool,
    /// By app ID; one entry per namespace.
    callers: HashMap<String, Vec<Caller>>,
}

#[derive(Debug)]
struct Caller {
    namespace: String,
    trust_domain: String,
    /// The policy's default, if set.
    default_allows: Option<bool>,
    operations: Rules<Operation>,
}

#[derive(Debug)]
struct Operation {
    verbs: Vec<String>,
    allows: bool,
}

impl AccessControl {
    /// Compiles a specification; `None` if it is empty, which allows everything.
    ///
    /// # Errors
    /// A policy lacks its app ID, trust domain or namespace.
    pub fn build(spec: &spec::AccessControl, protocol: AppProtocol) -> Result<Option<Self>, AccessError> {
        if spec.default_action.is_empty() && spec.trust_domain.is_empty() && spec.policies.is_empty() {
            return Ok(None);
        }
        spec.check().map_err(AccessError)?;
        let mut callers: HashMap<String, Vec<Caller>> = HashMap::new();
        for policy in &spec.policies {
            let caller = Caller::compile(policy, protocol);
            let namespaces = callers.entry(policy.app_id.clone()).or_default();
            match namespaces
                .iter_mut()
                .find(|known| known.namespace == caller.namespace)
            {
                Some(known) => *known = caller,
                None => namespaces.push(caller),
            }
        }
        // An empty default action denies, even without policies: absent and empty lists are
        // indistinguishable here, and Dapr denies for the absent one.
        Ok(Some(Self {
            protocol,
            default_allows: allows(&spec.default_action),
            callers,
        }))
    }

    /// Whether it can deny anything.
    pub fn has_rules(&self) -> bool {
        !self.default_allows || !self.callers.is_empty()
    }

    /// Decides about a call. `caller` is `None` if mTLS is off; the caller must reject malformed identities
    /// before. `verb` is the HTTP method; a verb unknown to the protocol counts as absent.
    pub fn decide(&self, caller: Option<CallerId<'_>>, operation: &str, verb: &str) -> Decision {
        let global = Decision {
            allowed: self.default_allows,
            by_app_policy: false,
            ambiguity: None,
        };
        // Without rules, a callback circumvents nothing.
        if self.has_rules() && operation.starts_with(CALLBACKS) {
            return Decision {
                allowed: false,
                ambiguity: global.allowed.then_some(Ambiguity::Callback),
                ..global
            };
        }
        let Some(caller) = caller else {
            return global;
        };
        let policy = self
            .callers
            .get(caller.app_id)
            .and_then(|namespaces| {
                namespaces
                    .iter()
                    .find(|policy| policy.namespace == caller.namespace)
            })
            .filter(|policy| policy.trust_domain == caller.trust_domain);
        let Some(policy) = policy else {
            return global;
        };
        let by_app_policy = policy.default_allows.is_some();
        let ambiguity = if self.allows(policy, operation, verb) {
            self.ambiguity(policy, operation, verb)
        } else {
            return Decision {
                allowed: false,
                by_app_policy,
                ambiguity: None,
            };
        };
        Decision {
            allowed: ambiguity.is_none(),
            by_app_policy,
            ambiguity,
        }
    }

    /// The ambiguity of an operation whose literal path is allowed, if any.
    fn ambiguity(&self, policy: &Caller, operation: &str, verb: &str) -> Option<Ambiguity> {
        let Some(readings) = readings::others(operation) else {
            return Some(Ambiguity::TooManyReadings);
        };
        let denied = |reading: &String| !self.allows(policy, reading, verb);
        readings.into_iter().find(denied).map(Ambiguity::ReadAs)
    }

    /// The decision about one interpretation of an operation.
    fn allows(&self, policy: &Caller, operation: &str, verb: &str) -> bool {
        let default = policy.default_allows.unwrap_or(self.default_allows);
        let operation = match self.protocol {
            AppProtocol::Http => fold(operation),
            AppProtocol::Grpc => Cow::Borrowed(operation),
        };
        match (policy.operations.find(&operation), self.protocol) {
            (None, _) => default,
            (Some(rule), AppProtocol::Grpc) => rule.allows,
            (Some(rule), AppProtocol::Http) => match verb {
                verb if !is_verb(verb) => policy.default_allows.unwrap_or(false),
                verb if rule.verbs.iter().any(|known| known == verb || known == "*") => rule.allows,
                _ => default,
            },
        }
    }
}

impl Caller {
    fn compile(policy: &spec::AppPolicy, protocol: AppProtocol) -> Self {
        let mut operations = Rules::new();
        for operation in &policy.operations {
            let path = match protocol {
                AppProtocol::Http => fold(&operation.name),
                AppProtocol::Grpc => Cow::Borrowed(operation.name.as_str()),
            };
            let rule = Operation {
                verbs: operation.http_verb.clone(),
                allows: allows(&operation.action),
            };
            operations.add(&path, rule);
        }
        Self {
            namespace: policy.namespace.clone(),
            trust_domain: policy.trust_domain.clone(),
            default_allows: (!policy.default_action.is_empty()).then(|| allows(&policy.default_action)),
            operations,
        }
    }
}

/// The text of a denial; `id` is the caller's SPIFFE ID. Sent as gRPC `PermissionDenied`.
pub fn denial(id: &str, operation: &str, verb: &str, ambiguity: Option<&Ambiguity>) -> String {
    let verb = if is_verb(verb) { verb } else { "NONE" };
    let text =
        format!("access control policy has denied access to id: {id} operation: {operation} verb: {verb}");
    match ambiguity {
        Some(ambiguity) => format!("{text} ({ambiguity})"),
        None => text,
    }
}

fn allows(action: &str) -> bool {
    action.eq_ignore_ascii_case("allow")
}

/// The verbs of the protocol between sidecars.
fn is_verb(verb: &str) -> bool {
    matches!(
        verb,
        "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH"
    )
}

/// Lower case by character, so that rule and request fold alike at any position.
fn fold(text: &str) -> Cow<'_, str> {
    if text
        .bytes()
        .all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase())
    {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.chars().flat_map(char::to_lowercase).collect())
    }
}

#[cfg(test)]
mod tests;
