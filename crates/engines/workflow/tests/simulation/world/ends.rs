//! The ends of all instances, and their purge.

use super::*;

impl World {
    /// Removes the stored state of an instance, or the rest of an interrupted removal.
    pub(super) fn remove(&mut self, id: &str) -> Result<(), Crash> {
        self.memory.remove(id);
        let Some(metadata) = self.store.get(id).and_then(|stored| stored.get(METADATA)) else {
            return Ok(());
        };
        let counts = Counts::read(id, metadata).unwrap();
        let value = |key: &str| self.store[id].get(key).cloned();
        let instance =
            Instance::read(id, counts, value).unwrap_or_else(|_| Instance::salvage(id, counts, value));
        assert_eq!(instance.purge(), Ok(()), "{id} can be purged at any time");
        for part in instance.removal().split(self.most) {
            self.may_crash()?;
            let stored = self.store.entry(id.to_owned()).or_default();
            part.deletes.iter().for_each(|key| drop(stored.remove(key)));
            stored.extend(part.upserts);
        }
        Ok(())
    }

    /// Purges everything; the store must be empty.
    pub(super) fn purge_all(&mut self) {
        let ids: Vec<_> = self.store.keys().cloned().collect();
        for id in ids {
            // A resumed removal starts with keys that are gone; if each attempt crashed, it would never
            // finish.
            while self.remove(&id).is_err() {
                self.crashes += 1;
            }
            let left = &self.store[&id];
            assert!(left.is_empty(), "{id} leaves {:?}", left.keys());
        }
    }

    /// All ends of an instance, in order.
    pub(crate) fn all_ends(&self, id: &str) -> BTreeSet<&End> {
        let of_it = self.completed.iter().filter(|((of, _), _)| of == id);
        of_it.map(|(_, end)| end).collect()
    }

    pub(super) fn ends(&mut self) -> Ends {
        let ids: Vec<_> = self.store.keys().cloned().collect();
        let mut ends = Ends::new();
        for id in ids {
            self.memory.clear();
            let instance = self.load(&id).unwrap();
            assert!(
                instance.is_completed(),
                "{id} is stuck: {:?}, {:?} of {:?}",
                instance.status(),
                instance.history(),
                self.program
            );
            assert!(instance.inbox().is_empty(), "{id} missed results");
            check_history(&id, &instance);
            ends.insert(id, end_of(&instance));
        }
        ends
    }
}

/// The end of an instance.
pub(super) fn end_of(instance: &Instance) -> End {
    let metadata = instance.metadata();
    let status = metadata.runtime_status();
    let failure = metadata.failure_details.map(|details| details.error_message);
    (status, metadata.output, failure)
}

/// Every task was started exactly once, and ended at most once.
fn check_history(id: &str, instance: &Instance) {
    let mut begun = std::collections::HashSet::new();
    let mut ended = std::collections::HashSet::new();
    let history = instance.history();
    let is_end = |event: &&HistoryEvent| matches!(event.event_type, Some(EventType::ExecutionCompleted(_)));
    assert_eq!(
        history.iter().filter(is_end).count(),
        1,
        "{id} ends once: {history:?}"
    );
    for event in history {
        assert!(
            event.event_id < 0 || begun.insert(event.event_id),
            "{id}: {event:?} twice"
        );
        if let Some(end) = outrigger_workflow::event::ends(&event) {
            assert!(ended.insert(end), "{id}: {event:?} twice");
        }
    }
}
