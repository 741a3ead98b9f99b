//! `workflow`: limits and retention.

use std::time::Duration;

use serde::Deserialize;

use super::raw::GoDuration;

/// `workflow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workflow {
    /// Concurrent workflows of this sidecar; `None` means unlimited.
    pub max_workflows: Option<u32>,
    /// Concurrent activities of this sidecar; `None` means unlimited.
    pub max_activities: Option<u32>,
    /// How many workers an activity may lose before it fails; `None` means unlimited.
    pub max_activity_losses: Option<u32>,
    /// Retention of finished instances; `None` keeps them.
    pub retention: Option<Retention>,
}

/// Default number of workers that an activity may lose.
const MAX_ACTIVITY_LOSSES: u32 = 10;

impl Default for Workflow {
    fn default() -> Self {
        Raw::default().into()
    }
}

/// Retention of finished instances by final state. Zero purges at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// Final states without an entry.
    pub any: Option<Duration>,
    /// `completed`.
    pub completed: Option<Duration>,
    /// `failed`.
    pub failed: Option<Duration>,
    /// `terminated`.
    pub terminated: Option<Duration>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Raw {
    max_concurrent_workflow_invocations: i32,
    max_concurrent_activity_invocations: i32,
    max_activity_losses: Option<i32>,
    state_retention_policy: Option<RawRetention>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawRetention {
    any_terminal: Option<GoDuration>,
    completed: Option<GoDuration>,
    failed: Option<GoDuration>,
    terminated: Option<GoDuration>,
}

impl From<Raw> for Workflow {
    fn from(raw: Raw) -> Workflow {
        let limit = |n: i32| u32::try_from(n).ok().filter(|n| *n > 0);
        let time = |d: Option<GoDuration>| d.map(|d| d.0);
        Workflow {
            max_workflows: limit(raw.max_concurrent_workflow_invocations),
            max_activities: limit(raw.max_concurrent_activity_invocations),
            max_activity_losses: match raw.max_activity_losses {
                None => Some(MAX_ACTIVITY_LOSSES),
                Some(most) => limit(most),
            },
            retention: raw.state_retention_policy.map(|r| Retention {
                any: time(r.any_terminal),
                completed: time(r.completed),
                failed: time(r.failed),
                terminated: time(r.terminated),
            }),
        }
    }
}
