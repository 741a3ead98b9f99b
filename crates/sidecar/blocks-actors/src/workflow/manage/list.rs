//! Lists instances and their status.

use futures::stream::{self, StreamExt as _};
use jiff::Timestamp;
use outrigger_blocks::state::SEPARATOR;
use outrigger_component::state::KeyPage;
use outrigger_wire::durabletask::OrchestrationStatus;
use outrigger_wire::durabletask::backend::v1::WorkflowMetadata;
use outrigger_workflow::names::METADATA;
use serde_json::{Value, json};

use super::error::{Action, WorkflowError};
use super::status::time;
use crate::actors::ActorError;
use crate::workflow::engine::MAX_CONCURRENT;
use crate::workflow::service::Workflows;

/// Default number of instances examined for one response.
const PAGE: u32 = 100;
/// Maximum number of instances examined for one response: each is read.
const MAX_PAGE: u32 = 1000;

/// Default number of ids in one response.
const IDS_PAGE: u32 = 1024;
/// Maximum number of ids in one response.
const MAX_IDS_PAGE: u32 = 16 * 1024;

/// Filter and page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Number of instances examined; `None` is 100. At most 1,000.
    pub size: Option<u32>,
    /// Continuation token.
    pub token: Option<String>,
    /// Only these statuses; empty is any.
    pub statuses: Vec<OrchestrationStatus>,
    /// Only this workflow.
    pub workflow: Option<String>,
    /// Only ids with this prefix; the store filters by it.
    pub prefix: Option<String>,
    /// Only instances created at or after this time.
    pub created_from: Option<Timestamp>,
    /// Only instances created before this time, so that later listings repeat none.
    pub created_to: Option<Timestamp>,
}

/// Prefix of the enum's status names.
const PREFIX: &str = "ORCHESTRATION_STATUS_";

impl Listing {
    /// The statuses.
    pub const STATUSES: [&str; 8] = [
        "RUNNING",
        "COMPLETED",
        "FAILED",
        "CANCELED",
        "TERMINATED",
        "PENDING",
        "SUSPENDED",
        "STALLED",
    ];

    /// Parses a status name, case-insensitively.
    pub fn status_named(name: &str) -> Option<OrchestrationStatus> {
        let name = name.to_ascii_uppercase();
        let is_one = Self::STATUSES.contains(&name.as_str());
        is_one
            .then(|| OrchestrationStatus::from_str_name(&format!("{PREFIX}{name}")))
            .flatten()
    }

    /// Parses RFC 3339.
    pub fn time_of(text: &str) -> Option<Timestamp> {
        text.parse().ok()
    }

    fn wants(&self, found: &WorkflowMetadata) -> bool {
        let created = found
            .created_at
            .and_then(|at| Timestamp::new(at.seconds, at.nanos).ok());
        let is_created = |holds: &dyn Fn(Timestamp) -> bool| created.is_some_and(holds);
        (self.statuses.is_empty() || self.statuses.contains(&found.runtime_status()))
            && self.workflow.as_ref().is_none_or(|name| *name == found.name)
            && self.created_from.is_none_or(|from| is_created(&|at| at >= from))
            && self.created_to.is_none_or(|to| is_created(&|at| at < to))
    }
}

/// A page of instances.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Instances by id, or why they cannot be read.
    instances: Vec<(String, Result<WorkflowMetadata, String>)>,
    token: Option<String>,
}

impl Listed {
    /// Renders JSON.
    pub fn to_json(&self) -> Value {
        let instances = self.instances.iter().map(|(id, instance)| match instance {
            Ok(instance) => json!({
                "instanceID": id,
                "workflowName": instance.name,
                "runtimeStatus": instance.runtime_status().as_str_name().trim_start_matches(PREFIX),
                "createdAt": time(instance.created_at),
                "lastUpdatedAt": time(instance.last_updated_at),
            }),
            Err(error) => json!({"instanceID": id, "error": error}),
        });
        let mut listed = json!({"instances": instances.collect::<Vec<_>>()});
        if let Some(token) = &self.token {
            listed["continuationToken"] = json!(token);
        }
        listed
    }
}

impl Workflows {
    /// A page of instance ids, from `token` on.
    ///
    /// # Errors
    /// [`ActorError`], also if the store cannot list keys.
    pub async fn list(&self, token: Option<String>, size: Option<u32>) -> Result<KeyPage, ActorError> {
        self.list_beginning("", token, size).await
    }

    /// As [`Workflows::list`], with a prefix.
    async fn list_beginning(
        &self,
        prefix: &str,
        token: Option<String>,
        size: Option<u32>,
    ) -> Result<KeyPage, ActorError> {
        let size = Some(size.unwrap_or(IDS_PAGE).clamp(1, MAX_IDS_PAGE));
        let page = self
            .actors
            .actor_ids_with(&self.engine.types.workflow, prefix, METADATA, token, size);
        let mut page = page.await?;
        // Ids may contain the separator, and patterns of some stores are case-insensitive.
        let before = [&*self.engine.app_id, &self.engine.types.workflow, ""].join(SEPARATOR);
        let after = ["", METADATA].join(SEPARATOR);
        let id = |key: &String| Some(key.strip_prefix(&before)?.strip_suffix(&after)?.to_owned());
        let ids = page.keys.iter().filter_map(id);
        page.keys = ids.filter(|id| id.starts_with(prefix)).collect();
        Ok(page)
    }

    /// A page of this app's instances, including unreadable ones. It may have fewer than were examined:
    /// filtered out, or purged since.
    ///
    /// # Errors
    /// [`WorkflowError`], also if the store cannot list keys.
    pub async fn manage_list(&self, listing: Listing) -> Result<Listed, WorkflowError> {
        self.check().map_err(WorkflowError::Unavailable)?;
        let failed =
            |error: ActorError| WorkflowError::Failed(Action::List, String::new(), error.to_string());
        let size = listing.size.unwrap_or(PAGE).min(MAX_PAGE);
        let prefix = listing.prefix.as_deref().unwrap_or_default();
        let page = self.list_beginning(prefix, listing.token.clone(), Some(size));
        let page = page.await.map_err(failed)?;
        let read = page.keys.into_iter().map(|id| async move {
            let found = self.get(&id).await.map_err(|error| error.to_string());
            (id, found.transpose())
        });
        let read: Vec<_> = read.collect();
        let found: Vec<_> = stream::iter(read).buffered(MAX_CONCURRENT).collect().await;
        let instances = found.into_iter().filter_map(|(id, found)| match found? {
            Ok(found) if !listing.wants(&found) => None,
            found => Some((id, found)),
        });
        Ok(Listed {
            instances: instances.collect(),
            token: page.token,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_listed_status_names() {
        for name in Listing::STATUSES {
            let status = Listing::status_named(&name.to_lowercase()).unwrap();
            assert_eq!(status.as_str_name(), format!("{PREFIX}{name}"));
        }
        assert_eq!(
            Listing::status_named("CONTINUED_AS_NEW"),
            None,
            "no instance stays so"
        );
        assert_eq!(Listing::status_named(""), None);
    }

    #[test]
    fn filters_by_status_name_and_time() {
        let at = |seconds| Listing::time_of(&format!("2026-03-01T00:00:{seconds:02}Z"));
        let mut found = WorkflowMetadata {
            name: "order".to_owned(),
            created_at: at(10).map(|at| prost_types::Timestamp {
                seconds: at.as_second(),
                nanos: at.subsec_nanosecond(),
            }),
            ..WorkflowMetadata::default()
        };
        found.set_runtime_status(OrchestrationStatus::Failed);
        let (failed, running) = (OrchestrationStatus::Failed, OrchestrationStatus::Running);
        let any = Listing::default();
        let of = |workflow: &str| Listing {
            workflow: Some(workflow.to_owned()),
            ..any.clone()
        };
        let created = |created_from, created_to| Listing {
            created_from,
            created_to,
            ..any.clone()
        };
        let being = |statuses: &[OrchestrationStatus]| Listing {
            statuses: statuses.to_vec(),
            ..any.clone()
        };
        for (listing, expected) in [
            (any.clone(), true),
            (of("order"), true),
            (of("Order"), false),
            (being(&[running, failed]), true),
            (being(&[running]), false),
            (created(at(10), at(11)), true),
            (created(at(11), None), false),
            (created(None, at(10)), false),
        ] {
            assert_eq!(listing.wants(&found), expected, "{listing:?}");
        }
        found.created_at = None;
        assert!(!created(at(0), None).wants(&found), "unknown time");
        assert_eq!(Listing::time_of("2026-03-01T02:00:00+02:00"), at(0));
        assert_eq!(Listing::time_of("yesterday"), None);
    }
}
