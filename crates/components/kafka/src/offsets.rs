//! A group member's progress in its partitions: commit positions and records to redeliver. No I/O; time is an
//! argument.
//!
//! A position is committed once the app has finished all earlier records. A returned record blocks later
//! records of its key, and no other key. Once it is done, the blocked records follow one by one. Records
//! without a key follow together if the consumer keeps their order, or if order does not matter, as for bulk
//! deliveries.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::retry::Retry;

/// Maximum distance between the first unfinished record of a partition and the last one taken.
pub(super) const WINDOW: usize = 10_000;
/// Maximum records of a partition blocked by returned ones.
pub(super) const MAX_BLOCKED: usize = 256;

/// A record taken from the client.
#[derive(Debug, PartialEq)]
pub(super) struct TakenRecord<R> {
    pub(super) partition: i32,
    pub(super) offset: i64,
    /// Records of one key keep their order; records without a key count as one key.
    pub(super) key: Option<Bytes>,
    pub(super) epoch: Option<i32>,
    pub(super) record: R,
}

/// Outcome of a returned record.
#[derive(Debug, PartialEq)]
pub(super) enum Returned {
    /// Redelivery after this delay.
    Redeliver(Duration),
    /// No redelivery, as configured.
    Skip,
    /// The partition belongs to another member.
    Gone,
}

/// Where the group continues in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) partition: i32,
    /// Offset of the next record.
    pub(super) offset: i64,
    pub(super) epoch: Option<i32>,
}

#[derive(Debug)]
pub(super) struct Offsets<R> {
    retry: Option<Retry>,
    /// Blocked records without a key are released together.
    together: bool,
    partitions: BTreeMap<i32, Partition<R>>,
}

#[derive(Debug)]
struct Partition<R> {
    /// Records taken but not passed by the position: whether each is done, and its epoch.
    open: BTreeMap<i64, (bool, Option<i32>)>,
    /// After the last consecutive record that is done.
    position: Option<(i64, Option<i32>)>,
    committed: Option<i64>,
    /// Failed attempts of returned records.
    failed: HashMap<i64, u32>,
    /// Keys with a returned record.
    blocked: HashMap<Option<Bytes>, Blocked<R>>,
}

/// A returned record and the later records of its key.
#[derive(Debug)]
struct Blocked<R> {
    waiting: BTreeMap<i64, Arc<TakenRecord<R>>>,
    /// Offset of the record handed out; the next one waits for it.
    out: Option<i64>,
    due: Instant,
    /// The first record was postponed.
    postponed: bool,
    /// The record that blocked them is done, so they are released together.
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

    /// Blocks the record's key until the record is due.
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
    /// `retry`: the redelivery policy; `None` disables it. `together`: release blocked records without a key
    /// together.
    pub(super) fn new(retry: Option<Retry>, together: bool) -> Self {
        Self {
            retry,
            together,
            partitions: BTreeMap::new(),
        }
    }

    /// Adds a partition to this member.
    pub(super) fn assign(&mut self, partition: i32) {
        self.partitions.insert(partition, Partition::default());
    }

    /// Removes a partition; its positions are no longer committed.
    pub(super) fn revoke(&mut self, partition: i32) {
        self.partitions.remove(&partition);
    }

    /// Partitions of this member.
    pub(super) fn assigned(&self) -> impl Iterator<Item = i32> + '_ {
        self.partitions.keys().copied()
    }

    /// Whether reading the partition should pause.
    pub(super) fn is_full(&self, partition: i32) -> bool {
        let found = self.partitions.get(&partition);
        found.is_some_and(|it| it.open.len() >= WINDOW || it.waiting() >= MAX_BLOCKED)
    }

    /// Takes a record. Returns it if it can be handed out now.
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

    /// The app has finished a record.
    pub(super) fn done(&mut self, taken: &TakenRecord<R>, now: Instant) {
        if let Some(partition) = self.partitions.get_mut(&taken.partition) {
            partition.done(taken.offset, &taken.key, self.together, now);
        }
    }

    /// The app failed a record, which is redelivered as configured.
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

    /// The record was not attempted, because an earlier record of its key was returned. It follows that one.
    pub(super) fn behind(&mut self, taken: Arc<TakenRecord<R>>, now: Instant) {
        if let Some(partition) = self.partitions.get_mut(&taken.partition) {
            partition.block(taken, now, false);
        }
    }

    /// A record cannot be handed out yet. This counts as no attempt; it follows when due or after
    /// [`Offsets::wake`].
    pub(super) fn postponed(&mut self, taken: Arc<TakenRecord<R>>, due: Instant) {
        if let Some(partition) = self.partitions.get_mut(&taken.partition) {
            partition.block(taken, due, true);
        }
    }

    /// Releases the matching postponed records.
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

    /// The next record to hand out again, with its number of failed attempts.
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

    /// When [`Offsets::next_due`] returns a record.
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

    /// Positions not yet committed.
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

    /// The broker has committed these positions.
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
