//! Feature flags.

use std::collections::BTreeSet;

/// Accept `ttlInSeconds` on actor state writes.
pub const ACTOR_STATE_TTL: &str = "ActorStateTTL";
/// Reload components and subscriptions when their files change.
pub const HOT_RELOAD: &str = "HotReload";
/// Apps may do single operations with keys of cryptography components. Dapr decides this when it is built.
pub const SUBTLE_CRYPTO: &str = "SubtleCrypto";
/// Workflow workers of one app spread over several sidecars.
pub const WORKFLOWS_CLUSTERED: &str = "WorkflowsClusteredDeployment";
/// Results of activities of other apps come back through reminders.
pub const WORKFLOWS_REMOTE_ACTIVITY_REMINDER: &str = "WorkflowsRemoteActivityReminder";

/// All of them.
pub(super) const ALL: [&str; 5] = [
    ACTOR_STATE_TTL,
    HOT_RELOAD,
    SUBTLE_CRYPTO,
    WORKFLOWS_CLUSTERED,
    WORKFLOWS_REMOTE_ACTIVITY_REMINDER,
];

/// The enabled features, unknown names included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features(BTreeSet<String>);

impl Features {
    /// Whether a feature is on. Names are exact.
    pub fn enabled(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// The names that are on, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Later entries overrule earlier ones of the same name; nameless ones count for nothing.
    pub(super) fn from_entries(entries: impl IntoIterator<Item = (String, bool)>) -> Features {
        let mut on = BTreeSet::new();
        for (name, enabled) in entries.into_iter().filter(|(name, _)| !name.is_empty()) {
            if enabled {
                on.insert(name);
            } else {
                on.remove(&name);
            }
        }
        Features(on)
    }
}
