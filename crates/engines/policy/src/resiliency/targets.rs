//! What policies apply to.

use std::sync::Arc;

use outrigger_resources::resiliency as spec;

use super::Policy;
use super::problem::Problems;

/// Most breakers any target may keep; a larger number in a document is lowered to this.
pub(super) const MAX_BREAKERS: usize = 1 << 20;

/// What applies to an app, an HTTPEndpoint or a URL.
#[derive(Debug, Clone, Default)]
pub struct AppPolicy {
    /// The user's policy, own or default; `None`: nothing applies, call once.
    pub policy: Option<Arc<Policy>>,
    /// Whether the app has an entry in `targets.apps`; if not, [`Builtin::ServiceRetries`] covers the connection.
    pub has_target: bool,
}

/// What applies to an actor type.
#[derive(Debug, Clone, Default)]
pub struct ActorPolicy {
    /// Retry and breaker, around waiting for the actor's turn.
    pub before_lock: Option<Arc<Policy>>,
    /// Timeout, around the turn.
    pub after_lock: Option<Arc<Policy>>,
    /// Whether the type has an entry in `targets.actors`; if not, [`Builtin::ActorNotFoundRetries`] covers routing.
    pub has_target: bool,
}

/// The kinds of component that policies tell apart.
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

/// How finely the breakers of an actor type are told apart.
pub(super) enum Scope {
    /// One for the type.
    Type,
    /// One per actor.
    Id { size: usize },
}

/// The size of a breaker cache; 0 and absurd numbers are replaced.
pub(super) fn cache_size(configured: i64, default: usize) -> usize {
    match usize::try_from(configured) {
        Ok(0) | Err(_) => default,
        Ok(size) => size.min(MAX_BREAKERS),
    }
}

/// The targets of a document over those of the ones before it.
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
