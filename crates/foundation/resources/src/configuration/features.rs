//! Feature flags.

use std::collections::BTreeSet;

/// Accepts `ttlInSeconds` on actor state writes.
pub const ACTOR_STATE_TTL: &str = "ActorStateTTL";
/// Reloads resources when they change.
pub const HOT_RELOAD: &str = "HotReload";
/// Lets apps call single operations with keys of cryptography components. In Dapr this is a build option.
pub const SUBTLE_CRYPTO: &str = "SubtleCrypto";
/// Spreads the workflow workers of one app over several sidecars.
pub const WORKFLOWS_CLUSTERED: &str = "WorkflowsClusteredDeployment";
/// Signs the histories of workflows.
pub const WORKFLOW_HISTORY_SIGNING: &str = "WorkflowHistorySigning";
/// Returns results of activities of other apps through reminders.
pub const WORKFLOWS_REMOTE_ACTIVITY_REMINDER: &str = "WorkflowsRemoteActivityReminder";

/// All known features.
pub(super) const ALL: [&str; 6] = [
    ACTOR_STATE_TTL,
    HOT_RELOAD,
    SUBTLE_CRYPTO,
    WORKFLOW_HISTORY_SIGNING,
    WORKFLOWS_CLUSTERED,
    WORKFLOWS_REMOTE_ACTIVITY_REMINDER,
];

/// Features that are enabled unless an entry disables them.
const ON: [&str; 2] = [HOT_RELOAD, WORKFLOWS_REMOTE_ACTIVITY_REMINDER];

/// The enabled features, including unknown names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features(BTreeSet<String>);

impl Default for Features {
    fn default() -> Self {
        Self(ON.map(str::to_owned).into())
    }
}

impl Features {
    /// Whether a feature is enabled. Names are case-sensitive.
    pub fn enabled(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// The enabled names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Later entries override earlier ones of the same name; entries without a name are ignored.
    pub(super) fn from_entries(entries: impl IntoIterator<Item = (String, bool)>) -> Features {
        let Features(mut on) = Features::default();
        for (name, enabled) in entries.into_iter().filter(|(name, _)| !name.is_empty()) {
            if enabled {
                on.insert(name);
            } else {
                on.remove(&name);
            }
        }
        Self(on)
    }
}
