//! What a member of a group has taken of its partitions: up to where everything is done, and what has to come again. No
//! I/O; time comes in as an argument.
//!
//! A position is committed once the app is done with all records before it. A record that was returned holds back the
//! later ones of its key, and blocks no other key. Once it is done the later ones come one after another; those without a key
//! come together where whoever takes them keeps their order, or there is none as in bulks.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::retry::Retry;

/// Records of a partition that may be between the first open one and the last one taken.
pub(super) const WINDOW: usize = 10_000;
/// Records of a partition that may wait here behind one that was returned.
pub(super) const MAX_BLOCKED: usize = 256;

/// A record that was taken.
#[derive(Debug, PartialEq)]
pub(super) struct TakenRecord<R> {
    pub(super) partition: i32,
    pub(super) offset: i64,
    /// Records of one key keep their order; those without one are a key of their own.
    pub(super) key: Option<Bytes>,
    pub(super) epoch: Option<i32>,
    pub(super) record: R,
}

/// What became of a record that was returned.
#[derive(Debug, PartialEq)]
pub(super) enum Returned {
    /// It comes again after this time.
    Redeliver(Duration),
    /// It does not come again: the settings say so.
    Skip,
    /// Its partition is not this member's any more.
    Gone,
}

/// Where the group continues in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) partition: i32,
    /// Of the next record.
    pub(super) offset: i64,
    pub(super) epoch: Option<i32>,
}

#[derive(Debug)]
pub(super) struct Offsets<R> {
    retry: Option<Retry>,
    /// Records without a key that waited do not wait for each other.
    together: bool,
    partitions: BTreeMap<i32, Partition<R>>,
}

#[derive(Debug)]
struct Partition<R> {
    /// Taken and not passed: whether it is done, and its epoch.
    open: BTreeMap<i64, (bool, Option<i32>)>,
    /// Behind everything that is done.
    position: Option<(i64, Option<i32>)>,
    committed: Option<i64>,
    /// Failed attempts at records that were returned.
    failed: HashMap<i64, u32>,
    /// By key, where a record was returned.
    blocked: HashMap<Option<Bytes>, Blocked<R>>,
}

/// The records of a key that wait for one that was returned, itself among them.
#[derive(Debug)]
struct Blocked<R> {
    waiting: BTreeMap<i64, Arc<TakenRecord<R>>>,
    /// Handed out; the next one waits for it.
    out: Option<i64>,
    due: Instant,
    /// The first one was postponed.
    postponed: bool,
    /// Those that wait come together: what they waited for is done.
    flows: bool,
}

impl<R> Default for Partition<R> {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            position: None,
            committed: None,
            failed: HashMap::new(),
            blocked: HashMap::new(),
        }
    }
}

impl<R> Partition<R> {
    fn waiting(&self) -> usize {
        self.blocked.values().map(|blocked| blocked.waiting.len()).sum()
    }

    /// Blocks the key of a record until the record is due.
    fn block(&mut self, taken: Arc<TakenRecord<R>>, due: Instant, postponed: bool) {
        let blocked = self.blocked.entry(taken.key.clone());
        let blocked = blocked.or_insert_with(|| Blocked {
            waiting: BTreeMap::new(),
            out: None,
            due,
            postponed,
            flows: false,
        });
        blocked.flows = false;
        if blocked.out == Some(taken.offset) {
            blocked.out = None;
        }
        let first = blocked.waiting.first_key_value().map(|(offset, _)| *offset);
        if first.is_none_or(|first| taken.offset < first) {
            blocked.due = due;
            blocked.postponed = postponed;
        }
        blocked.waiting.insert(taken.offset, taken);
    }

    fn done(&mut self, offset: i64, key: &Option<Bytes>, together: bool, now: Instant) {
        self.failed.remove(&offset);
        if let Some((done, _)) = self.open.get_mut(&offset) {
            *done = true;
        }
        while let Some(first) = self.open.first_entry() {
            let (done, epoch) = *first.get();
            if !done {
                break;
            }
            self.position = Some((first.key() + 1, epoch));
            first.remove();
        }
        if let Some(blocked) = self.blocked.get_mut(key) {
            if blocked.out == Some(offset) {
                blocked.out = None;
                blocked.due = now;
                blocked.postponed = false;
                blocked.flows = together && key.is_none();
            }
            if blocked.out.is_none() && blocked.waiting.is_empty() {
                self.blocked.remove(key);
            }
        }
    }
}

impl<R> Offsets<R> {
    /// `retry`: when records come again; `None`: they do not. `together`: records without a key that waited for one that was
    /// returned come at once when it is done.
    pub(super) fn new(retry: Option<Retry>, together: bool) -> Self {
        Self {
            retry,
            together,
            partitions: BTreeMap::new(),
        }
    }

    /// A partition becomes this member's.
    pub(super) fn assign(&mut self, partition: i32) {
        self.partitions.insert(partition, Partition::default());
    }

    /// It is so no more: nothing of it is committed from now on.
    pub(super) fn revoke(&mut self, partition: i32) {
        self.partitions.remove(&partition);
    }

    /// This member's partitions.
    pub(super) fn assigned(&self) -> impl Iterator<Item = i32> + '_ {
        self.partitions.keys().copied()
    }

    /// Whether no more should be read of a partition for now.
    pub(super) fn is_full(&self, partition: i32) -> bool {
        let found = self.partitions.get(&partition);
        found.is_some_and(|it| it.open.len() >= WINDOW || it.waiting() >= MAX_BLOCKED)
    }

    /// Takes a record. It comes back if it is to be handed out now.
    pub(super) fn take(&mut self, taken: TakenRecord<R>) -> Option<Arc<TakenRecord<R>>> {
        let partition = self.partitions.get_mut(&taken.partition)?;
        partition.open.insert(taken.offset, (false, taken.epoch));
        let taken = Arc::new(taken);
        match partition.blocked.get_mut(&taken.key) {
            Some(blocked) => {
                blocked.waiting.insert(taken.offset, taken);
                None
            }
            None => Some(taken),
        }
    }

    /// The app is done with a record.
    pub(super) fn done(&mut self, taken: &TakenRecord<R>, now: Instant) {
        if let Some(partition) = self.partitions.get_mut(&taken.partition) {
            partition.done(taken.offset, &taken.key, self.together, now);
        }
    }

    /// The app is not: the record comes again as the settings say.
    pub(super) fn returned(&mut self, taken: Arc<TakenRecord<R>>, now: Instant) -> Returned {
        let Some(partition) = self.partitions.get_mut(&taken.partition) else {
            return Returned::Gone;
        };
        let failed = partition.failed.entry(taken.offset).or_insert(0);
        *failed = failed.saturating_add(1);
        let Some(pause) = self.retry.as_ref().and_then(|retry| retry.pause(*failed)) else {
            partition.done(taken.offset, &taken.key, self.together, now);
            return Returned::Skip;
        };
        partition.block(taken, now + pause, false);
        Returned::Redeliver(pause)
    }

    /// It was not attempted, because one before it of its key was returned: it comes behind that.
    pub(super) fn behind(&mut self, taken: Arc<TakenRecord<R>>, now: Instant) {
        if let Some(partition) = self.partitions.get_mut(&taken.partition) {
            partition.block(taken, now, false);
        }
    }

    /// A record cannot be handed out yet, which is no attempt at it: it comes when it is due, or [`Offsets::wake`] says so.
    pub(super) fn postponed(&mut self, taken: Arc<TakenRecord<R>>, due: Instant) {
        if let Some(partition) = self.partitions.get_mut(&taken.partition) {
            partition.block(taken, due, true);
        }
    }

    /// Of the records that were postponed, these come now.
    pub(super) fn wake(&mut self, now: Instant, which: impl Fn(&R) -> bool) {
        let all = self
            .partitions
            .values_mut()
            .flat_map(|partition| partition.blocked.values_mut());
        for blocked in all.filter(|blocked| blocked.postponed) {
            let first = blocked.waiting.first_key_value();
            if first.is_some_and(|(_, taken)| which(&taken.record)) {
                blocked.due = blocked.due.min(now);
            }
        }
    }

    /// The next record that is to be handed out again, and how often it was before.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<(Arc<TakenRecord<R>>, u32)> {
        for partition in self.partitions.values_mut() {
            let due = partition
                .blocked
                .values_mut()
                .find(|blocked| blocked.is_ready() && blocked.due <= now);
            let Some(blocked) = due else { continue };
            let Some((offset, taken)) = blocked.waiting.pop_first() else {
                continue;
            };
            if !blocked.flows {
                blocked.out = Some(offset);
            } else if blocked.waiting.is_empty() {
                partition.blocked.remove(&taken.key);
            }
            return Some((taken, partition.failed.get(&offset).copied().unwrap_or(0)));
        }
        None
    }

    /// When [`Offsets::next_due`] has something.
    pub(super) fn due(&self) -> Option<Instant> {
        let blocked = self
            .partitions
            .values()
            .flat_map(|partition| partition.blocked.values());
        blocked
            .filter(|blocked| blocked.is_ready())
            .map(|blocked| blocked.due)
            .min()
    }

    /// Positions that the broker does not know yet.
    pub(super) fn to_commit(&self) -> Vec<Position> {
        let moved = self.partitions.iter().filter_map(|(partition, it)| {
            let (offset, epoch) = it.position?;
            (it.committed != Some(offset)).then_some(Position {
                partition: *partition,
                offset,
                epoch,
            })
        });
        moved.collect()
    }

    /// The broker knows them.
    pub(super) fn committed(&mut self, positions: &[Position]) {
        for position in positions {
            if let Some(partition) = self.partitions.get_mut(&position.partition) {
                partition.committed = Some(position.offset);
            }
        }
    }
}

impl<R> Blocked<R> {
    fn is_ready(&self) -> bool {
        self.out.is_none() && !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests;
