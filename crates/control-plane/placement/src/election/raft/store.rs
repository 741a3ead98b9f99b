//! The group's log, vote and applied state, in memory.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Cursor;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::impls::EmptyNode;
use openraft::storage::{LogFlushed, LogState, RaftLogStorage, RaftStateMachine, Snapshot};
use openraft::{
    Entry, EntryPayload, LogId, OptionalSend, RaftLogReader, RaftSnapshotBuilder, SnapshotMeta, StorageError,
    StoredMembership, Vote,
};

use super::Types;

type Fallible<T> = Result<T, StorageError<u64>>;
type Members = StoredMembership<u64, EmptyNode>;

/// The in-memory log; lost with the process.
#[derive(Debug, Default, Clone)]
pub(super) struct Log(Arc<Mutex<Written>>);

#[derive(Debug, Default)]
struct Written {
    entries: BTreeMap<u64, Entry<Types>>,
    purged: Option<LogId<u64>>,
    vote: Option<Vote<u64>>,
}

impl Log {
    fn written(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<R>(&mut self, range: R) -> Fallible<Vec<Entry<Types>>>
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let written = self.written();
        Ok(written
            .entries
            .range(range)
            .map(|(_, entry)| entry.clone())
            .collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Fallible<LogState<Types>> {
        let written = self.written();
        let last = written.entries.values().next_back().map(|entry| entry.log_id);
        Ok(LogState {
            last_purged_log_id: written.purged,
            last_log_id: last.or(written.purged),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Fallible<()> {
        self.written().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Fallible<Option<Vote<u64>>> {
        Ok(self.written().vote)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Fallible<()>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().map(|entry| (entry.log_id.index, entry));
        self.written().entries.extend(entries);
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Fallible<()> {
        self.written().entries.split_off(&from.index);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId<u64>) -> Fallible<()> {
        let mut written = self.written();
        written.entries = written.entries.split_off(&(upto.index + 1));
        written.purged = Some(upto);
        Ok(())
    }
}

/// The applied state: only the membership.
#[derive(Debug, Default, Clone)]
pub(super) struct Applied {
    last: Option<LogId<u64>>,
    members: Members,
    snapshot: Option<SnapshotMeta<u64, EmptyNode>>,
}

impl Applied {
    fn meta(&self) -> SnapshotMeta<u64, EmptyNode> {
        SnapshotMeta {
            last_log_id: self.last,
            last_membership: self.members.clone(),
            snapshot_id: self
                .last
                .map_or_else(|| "0".to_owned(), |last| last.index.to_string()),
        }
    }
}

fn snapshot(meta: SnapshotMeta<u64, EmptyNode>) -> Snapshot<Types> {
    Snapshot {
        meta,
        snapshot: Box::new(Cursor::new(Vec::new())),
    }
}

impl RaftSnapshotBuilder<Types> for Applied {
    async fn build_snapshot(&mut self) -> Fallible<Snapshot<Types>> {
        Ok(snapshot(self.meta()))
    }
}

impl RaftStateMachine<Types> for Applied {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Fallible<(Option<LogId<u64>>, Members)> {
        Ok((self.last, self.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Fallible<Vec<()>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut results = Vec::new();
        for entry in entries {
            self.last = Some(entry.log_id);
            if let EntryPayload::Membership(members) = entry.payload {
                self.members = StoredMembership::new(Some(entry.log_id), members);
            }
            results.push(());
        }
        Ok(results)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.snapshot = Some(self.meta());
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Fallible<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, EmptyNode>,
        _: Box<Cursor<Vec<u8>>>,
    ) -> Fallible<()> {
        self.last = meta.last_log_id;
        self.members = meta.last_membership.clone();
        self.snapshot = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Fallible<Option<Snapshot<Types>>> {
        Ok(self.snapshot.clone().map(snapshot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Builder;

    impl openraft::testing::StoreBuilder<Types, Log, Applied> for Builder {
        async fn build(&self) -> Fallible<((), Log, Applied)> {
            Ok(((), Log::default(), Applied::default()))
        }
    }

    #[test]
    fn passes_openraft_storage_tests() {
        openraft::testing::Suite::test_all(Builder).unwrap();
    }
}
