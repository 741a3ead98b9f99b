//! Which instances there are, and how they are, for whoever asks.

use futures::stream::{self, StreamExt as _};
use outrigger_wire::durabletask::OrchestrationStatus;
use outrigger_wire::durabletask::backend::v1::OrchestrationMetadata;
use serde_json::{Value, json};

use super::dispatch::AT_ONCE;
use super::waits::time;
use super::{Action, WorkflowError, Workflows};
use crate::actors::ActorError;

/// Instances that one answer looks at, where the client does not say how many.
const PAGE: u32 = 100;
/// Instances that one answer looks at, at most: each is read.
const MAX_PAGE: u32 = 1000;

/// Which instances are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// How many are looked at; `None` = 100. At most 1,000.
    pub size: Option<u32>,
    /// Where the answer before left off.
    pub token: Option<String>,
    /// Only those of this status.
    pub status: Option<OrchestrationStatus>,
}

/// What an enum's names of statuses begin with.
const PREFIX: &str = "ORCHESTRATION_STATUS_";

impl Listing {
    /// Statuses of instances.
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

    /// The status of this name, in capitals or not; `None` for others.
    pub fn status_named(name: &str) -> Option<OrchestrationStatus> {
        let name = name.to_ascii_uppercase();
        let is_one = Self::STATUSES.contains(&name.as_str());
        is_one
            .then(|| OrchestrationStatus::from_str_name(&format!("{PREFIX}{name}")))
            .flatten()
    }
}

/// Some of the instances.
#[derive(Clone, Debug)]
pub struct Listed {
    /// By their ids, or why they cannot be read.
    instances: Vec<(String, Result<OrchestrationMetadata, String>)>,
    token: Option<String>,
}

impl Listed {
    /// As JSON.
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
    /// Some of the instances of this app, with those that cannot be read. An answer may have fewer than were looked at:
    /// of another status, or purged meanwhile.
    ///
    /// # Errors
    /// [`WorkflowError`]; a store that cannot list keys says so.
    pub async fn manage_list(&self, listing: Listing) -> Result<Listed, WorkflowError> {
        self.check().map_err(WorkflowError::Unavailable)?;
        let failed =
            |error: ActorError| WorkflowError::Failed(Action::List, String::new(), error.to_string());
        let size = listing.size.unwrap_or(PAGE).min(MAX_PAGE);
        let page = self.list(listing.token, Some(size)).await.map_err(failed)?;
        let read = page.keys.into_iter().map(|id| async move {
            let found = self.get(&id).await.map_err(|error| error.to_string());
            (id, found.transpose())
        });
        let read: Vec<_> = read.collect();
        let found: Vec<_> = stream::iter(read).buffered(AT_ONCE).collect().await;
        let is_wanted = |found: &OrchestrationMetadata| {
            listing
                .status
                .is_none_or(|status| found.runtime_status() == status)
        };
        let instances = found.into_iter().filter_map(|(id, found)| match found? {
            Ok(found) if !is_wanted(&found) => None,
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
    fn statuses_have_the_names_that_are_told() {
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
}
