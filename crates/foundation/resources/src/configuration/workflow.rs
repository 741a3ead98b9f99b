//! `workflow`: limits and retention.

use std::time::Duration;

use serde::Deserialize;

use super::raw::GoDuration;

/// `workflow`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workflow {
    /// Concurrent workflows of this sidecar; `None` means unlimited.
    pub max_workflows: Option<u32>,
    /// Concurrent activities of this sidecar; `None` means unlimited.
    pub max_activities: Option<u32>,
    /// How many workers an activity may lose before it fails; `None` means unlimited.
    pub max_activity_losses: Option<u32>,
    /// Retention of finished instances; `None` keeps them.
    pub retention: Option<Retention>,
    /// Limits over all sidecars of the app, which the scheduler applies.
    pub limits: Vec<GlobalLimit>,
}

/// A limit on steps or activities of all sidecars of an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalLimit {
    /// The kind of work that counts.
    pub of: Limited,
    /// Counts only the workflow or activity of this name.
    pub name: Option<String>,
    /// The maximum, at least 1.
    pub most: i32,
}

/// The work that a [`GlobalLimit`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    /// Steps of workflows.
    Workflows,
    /// Activities.
    Activities,
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
    global_max_concurrent_workflow_invocations: i32,
    global_max_concurrent_activity_invocations: i32,
    workflow_concurrency_limits: Vec<RawLimit>,
    activity_concurrency_limits: Vec<RawLimit>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawLimit {
    name: Option<String>,
    max_concurrent: i32,
}

impl Raw {
    /// The valid limits; Dapr skips entries without a name, and maxima below 1.
    fn limits(&mut self) -> Vec<GlobalLimit> {
        use Limited::{Activities, Workflows};
        let all = [
            (Workflows, self.global_max_concurrent_workflow_invocations),
            (Activities, self.global_max_concurrent_activity_invocations),
        ];
        let all = all.map(|(of, most)| GlobalLimit { of, name: None, most });
        let named = [
            (Workflows, std::mem::take(&mut self.workflow_concurrency_limits)),
            (Activities, std::mem::take(&mut self.activity_concurrency_limits)),
        ];
        let named = named.into_iter().flat_map(|(of, limits)| {
            let named = limits.into_iter().filter(|limit| limit.name.is_some());
            named.map(move |limit| GlobalLimit {
                of,
                name: limit.name,
                most: limit.max_concurrent,
            })
        });
        all.into_iter()
            .chain(named)
            .filter(|limit| limit.most > 0)
            .collect()
    }
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
    fn from(mut raw: Raw) -> Workflow {
        let limit = |n: i32| u32::try_from(n).ok().filter(|n| *n > 0);
        let time = |d: Option<GoDuration>| d.map(|d| d.0);
        Workflow {
            limits: raw.limits(),
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
