//! Finds reminders that Dapr before 1.16 kept in the state store. As with Dapr 1.17 they are not delivered; a
//! log line says so.

use std::collections::HashSet;
use std::time::Duration;

use outrigger_blocks::outbound::Cause;
use outrigger_blocks::state::{SEPARATOR, Store};
use outrigger_component::Pairs;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{ActorError, Actors};

const LOG: &str = "dapr.runtime.actors.reminders";
/// Prefix of a list in protobuf instead of JSON.
const PROTOBUF: &[u8] = b"\0pb";
/// Pause between attempts while there is no readable store.
const RETRY: Duration = Duration::from_secs(30);
/// Partitions read concurrently.
const MAX_CONCURRENT: u32 = 64;
/// Maximum partitions read of a type: the reads load the store at every start.
const MAX_PARTITIONS: u32 = 1024;

/// The record of a type with partitioned reminders.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TypeRecord {
    id: String,
    #[serde(rename = "actorRemindersMetadata")]
    reminders: Partitions,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Partitions {
    partition_count: u32,
}

/// Whether a list has reminders; true if it cannot be decoded.
fn has_some(list: &[u8]) -> bool {
    match list.strip_prefix(PROTOBUF) {
        Some(list) => !list.is_empty(),
        None if list.is_empty() => false,
        // `null` is an empty list.
        None => serde_json::from_slice::<Option<Vec<IgnoredAny>>>(list)
            .map_or(true, |list| list.is_some_and(|list| !list.is_empty())),
    }
}

impl Actors {
    /// Checks each type once, when placement first announces it; never returns.
    pub(super) async fn report_old_reminders(&self) {
        let mut announced = self.announced.subscribe();
        let (mut looked, mut asked) = (HashSet::new(), HashSet::new());
        loop {
            let names = announced.borrow_and_update().clone();
            // Without a store there is nothing to find; one may be loaded later.
            if let Ok(store) = &self.store(ActorError::StateGet) {
                for kind in names.iter() {
                    if !looked.contains(kind) && report(store, kind, asked.insert(kind.clone())).await {
                        looked.insert(kind.clone());
                    }
                }
            }
            let is_done = names.iter().all(|kind| looked.contains(kind));
            tokio::select! {
                changed = announced.changed() => {
                    if changed.is_err() {
                        return std::future::pending().await;
                    }
                }
                () = tokio::time::sleep(RETRY), if !is_done => {}
            }
        }
    }
}

/// Returns whether the store could be read.
async fn report(store: &Store, kind: &str, is_first: bool) -> bool {
    let found = find(store, kind).await;
    match &found {
        Ok(None) => {}
        Ok(Some(key)) => tracing::warn!(
            target: LOG,
            "the state store {} has reminders of the actor type {kind} under the key {key:?}, which are not delivered: since \
             Dapr 1.16 only the scheduler stores reminders. Unless Dapr 1.15 has copied them to a scheduler, run it once \
             with this store and a scheduler, or register them again; then delete the key",
            store.name()
        ),
        Err(error) if is_first => tracing::warn!(
            target: LOG,
            "cannot look for old reminders of the actor type {kind} in the state store {}: {error}; trying again every {} s",
            store.name(),
            RETRY.as_secs()
        ),
        Err(error) => tracing::debug!(
            target: LOG,
            "cannot look for old reminders of the actor type {kind} in the state store {}: {error}",
            store.name()
        ),
    }
    found.is_ok()
}

/// The first key with reminders of a type.
async fn find(store: &Store, kind: &str) -> Result<Option<String>, Cause> {
    let whole = ["actors", kind].join(SEPARATOR);
    let record = [whole.as_str(), "metadata"].join(SEPARATOR);
    let found = store
        .get_all_whole(vec![whole.clone(), record], in_partition(&whole))
        .await?;
    let mut found = found.into_iter();
    let (list, record) = (found.next().flatten(), found.next().flatten());
    if list.is_some_and(|list| has_some(&list.data)) {
        return Ok(Some(whole));
    }
    // Any other record has another meaning.
    let record = record.and_then(|record| serde_json::from_slice::<TypeRecord>(&record.data).ok());
    let TypeRecord { id, reminders } = record.unwrap_or_default();
    let last = reminders.partition_count.min(MAX_PARTITIONS);
    let key = |number: u32| [whole.as_str(), &id, "reminders", &number.to_string()].join(SEPARATOR);
    for first in (1..=last).step_by(MAX_CONCURRENT as usize) {
        let keys: Vec<_> = (first..=last.min(first + MAX_CONCURRENT - 1)).map(key).collect();
        let lists = store.get_all_whole(keys.clone(), in_partition(&id)).await?;
        let mut lists = keys.into_iter().zip(lists);
        let found = lists.find(|(_, list)| list.as_ref().is_some_and(|list| has_some(&list.data)));
        if let Some((key, _)) = found {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

fn in_partition(key: &str) -> Pairs {
    Pairs::from([("partitionKey".to_owned(), key.to_owned())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undecodable_list_may_have_reminders() {
        for (list, some) in [
            (&b""[..], false),
            (b"[]", false),
            (b" null ", false),
            (b"\0pb", false),
            (b"[{}]", true),
            (b"\0pb\x0a\x00", true),
            (b"{}", true),
            (b"\xff", true),
        ] {
            assert_eq!(has_some(list), some, "{list:?}");
        }
    }
}
