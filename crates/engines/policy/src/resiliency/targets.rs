//! Targets of policies.

use std::sync::Arc;

use outrigger_resources::resiliency as spec;

use super::Policy;
use super::problem::Problems;

/// Maximum size of a breaker cache; larger configured numbers are lowered to this.
pub(super) const MAX_BREAKERS: usize = 1 << 20;

/// The policy of an app, an HTTPEndpoint or a URL.
#[derive(Debug, Clone, Default)]
pub struct AppPolicy {
    /// The user's policy, own or default; `None` means to call once without a policy.
    pub policy: Option<Arc<Policy>>,
    /// Whether the app has an entry in `targets.apps`; if not,
    /// [`ServiceRetries`](super::Builtin::ServiceRetries) applies to the connection.
    pub has_target: bool,
}

/// The policy of an actor type.
#[derive(Debug, Clone, Default)]
pub struct ActorPolicy {
    /// Retry and breaker, around the wait for the actor's turn.
    pub before_lock: Option<Arc<Policy>>,
    /// Timeout, around the turn.
    pub after_lock: Option<Arc<Policy>>,
    /// Whether the type has an entry in `targets.actors`; if not,
    /// [`ActorNotFoundRetries`](super::Builtin::ActorNotFoundRetries) applies to routing.
    pub has_target: bool,
}

/// Component kinds with separate default policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ComponentKind {
    /// Input and output bindings.
    Binding,
    /// Configuration stores.
    Configuration,
    /// Lock stores.
    Lock,
    /// Message brokers.
    Pubsub,
    /// Key vaults and cryptography.
    Crypto,
    /// Language models.
    Conversation,
    /// Secret stores.
    Secretstore,
    /// State stores.
    Statestore,
}

impl ComponentKind {
    /// The name in default policy names and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Binding => "Binding",
            Self::Configuration => "Configuration",
            Self::Lock => "Lock",
            Self::Pubsub => "Pubsub",
            Self::Crypto => "Crypto",
            Self::Conversation => "Conversation",
            Self::Secretstore => "Secretstore",
            Self::Statestore => "Statestore",
        }
    }
}

/// Scope of the breakers of an actor type.
pub(super) enum Scope {
    /// One for the type.
    Type,
    /// One per actor.
    Id { size: usize },
}

/// The size of a breaker cache; replaces 0 and excessive numbers.
pub(super) fn cache_size(configured: i64, default: usize) -> usize {
    match usize::try_from(configured) {
        Ok(0) | Err(_) => default,
        Ok(size) => size.min(MAX_BREAKERS),
    }
}

/// Merges the targets of a document over earlier ones.
pub(super) fn add_targets<'d>(
    targets: &mut spec::Targets,
    doc: &'d spec::Resiliency,
    problems: &mut Problems<'d>,
) {
    targets.apps.extend(doc.targets.apps.clone());
    targets.components.extend(doc.targets.components.clone());
    for (kind, target) in &doc.targets.actors {
        let mut target = target.clone();
        let section = "spec.targets.actors";
        let unread = |mistake: &spec::Mistake| {
            let key = mistake.key.to_ascii_lowercase();
            mistake.is_in(section, kind) && key.ends_with(".circuitbreakerscope")
        };
        let key = format!("{section}.{kind}");
        let refused = match target.circuit_breaker_scope.as_str() {
            _ if target.circuit_breaker.is_empty() => None,
            "type" | "id" | "both" => None,
            "" if doc.mistakes.iter().any(unread) => {
                target.circuit_breaker.clear();
                None
            }
            "" => Some((key, "actor circuit breakers must include scope".to_owned())),
            unknown => Some((
                format!("{key}.circuitBreakerScope"),
                format!("unknown circuit breaker scope {unknown:?}"),
            )),
        };
        if let Some((key, why)) = refused {
            target.circuit_breaker.clear();
            let effect = format!("actors.{kind} has no circuit breaker");
            problems.target(doc, &key, &why, effect);
        }
        targets.actors.insert(kind.clone(), target);
    }
}
