//! Access control on the callee's side: which callers may use which operations of this app.
//!
//! Rules are compiled once. A decision takes the caller's certified identity and the canonical operation path
//! (see [`crate::path::canonical`]), the same value that is then dispatched. Where the app behind could read that path
//! in another way ([`crate::readings`]), every reading has to be allowed.

mod pattern;
mod rules;

use std::borrow::Cow;
use std::collections::HashMap;

use outrigger_resources::configuration as spec;

use rules::Rules;

use crate::readings;

/// Callbacks that an app offers to its own sidecar: they name what they do inside of their messages, or tell the app
/// of events, so that a rule about methods cannot speak of them.
const CALLBACKS: &str = "/dapr.proto.runtime.v1.AppCallback";

/// What the app speaks, which decides how operations are matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppProtocol {
    /// Paths without regard to case; rules apply per verb.
    Http,
    /// Exact case; verbs are ignored.
    Grpc,
}

/// A caller, from the SPIFFE id of its certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallerId<'a> {
    /// Trust domain of the caller's SPIFFE id.
    pub trust_domain: &'a str,
    /// Namespace of the caller's SPIFFE id.
    pub namespace: &'a str,
    /// App id of the caller's SPIFFE id.
    pub app_id: &'a str,
}

/// A decision about one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether the call may go on.
    pub allowed: bool,
    /// Whether a policy for this caller with its own default action was in force, rather than the global default:
    /// the metric families are told apart by this.
    pub by_app_policy: bool,
    /// Why it may not go on although no rule says so of the operation as it stands.
    pub ambiguity: Option<Ambiguity>,
}

/// Why an operation is denied that is allowed by its spelling.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguity {
    /// Servers may read it as another operation, which is denied.
    #[error("a server may read it as {0}, which is denied")]
    ReadAs(String),
    /// There are more ways to read it than are looked at.
    #[error("a server may read it in too many different ways")]
    TooManyReadings,
    /// A callback of the app, called as a method.
    #[error("callbacks of an app are for its own sidecar; use InvokeService")]
    Callback,
}

/// Access control cannot be compiled; fatal at startup. The text names the apps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AccessError(String);

/// Compiled access control.
#[derive(Debug)]
pub struct AccessControl {
    protocol: AppProtocol,
    default_allows: bool,
    /// By app id; one entry per namespace.
    callers: HashMap<String, Vec<Caller>>,
}

#[derive(Debug)]
struct Caller {
    namespace: String,
    trust_domain: String,
    /// The policy's own default, if it has one.
    default_allows: Option<bool>,
    operations: Rules<Operation>,
}

#[derive(Debug)]
struct Operation {
    verbs: Vec<String>,
    allows: bool,
}

impl AccessControl {
    /// Compiles a specification; `None` when it says nothing at all, and everything is allowed.
    ///
    /// # Errors
    /// A policy lacks its app id, trust domain or namespace.
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
        // An empty default action denies, also without policies: an absent list and an empty one cannot be told
        // apart here, and the reference denies for the absent one.
        Ok(Some(Self {
            protocol,
            default_allows: allows(&spec.default_action),
            callers,
        }))
    }

    /// Whether there is anything that it could deny.
    pub fn has_rules(&self) -> bool {
        !self.default_allows || !self.callers.is_empty()
    }

    /// Decides about a call. `caller` is `None` when there is no peer identity because mTLS is off; a malformed
    /// identity must be refused before. `verb` is the HTTP method; anything that is not one of the protocol's
    /// verbs counts as absent.
    pub fn decide(&self, caller: Option<CallerId<'_>>, operation: &str, verb: &str) -> Decision {
        let global = Decision {
            allowed: self.default_allows,
            by_app_policy: false,
            ambiguity: None,
        };
        // Without a single rule there is nothing that a callback could be used to get around.
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

    /// What speaks against an operation that is allowed as it stands.
    fn ambiguity(&self, policy: &Caller, operation: &str, verb: &str) -> Option<Ambiguity> {
        let Some(readings) = readings::others(operation) else {
            return Some(Ambiguity::TooManyReadings);
        };
        let denied = |reading: &String| !self.allows(policy, reading, verb);
        readings.into_iter().find(denied).map(Ambiguity::ReadAs)
    }

    /// The decision about one reading of an operation.
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

/// The text of a refusal; `id` is the caller's SPIFFE id. Answered as gRPC `PermissionDenied`.
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

/// The verbs the protocol between sidecars can express.
fn is_verb(verb: &str) -> bool {
    matches!(
        verb,
        "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH"
    )
}

/// Lower case, character by character, so that rule and request fold alike wherever a character stands.
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
