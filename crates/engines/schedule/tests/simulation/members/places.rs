//! Membership agreement, and the jobs that members take over.

use super::*;

impl World {
    /// Acts on the entries.
    pub(super) fn look(&mut self, at: usize) {
        let (now, is_cut_off) = (self.now, self.members[at].is_cut_off);
        let Some(process) = &mut self.members[at].process else {
            return;
        };
        let clock = clock(now, process.skew);
        match process.phase {
            Phase::Holding { until, then } => {
                if now >= until || !process.engine.awaits_answers() {
                    process.clear(clock);
                    process.phase = Phase::Flushing(then);
                }
                return;
            }
            Phase::Flushing(then) => {
                if !process.waiting.is_empty() || process.asked.is_some() || is_cut_off {
                    return;
                }
                process.phase = Phase::Looking;
                process.fence = None;
                match then {
                    Then::Write(seen) => self.enter(at, seen),
                    Then::Look => {}
                    Then::End => {
                        if let Some(lease) = process.lease {
                            self.store.leases.remove(&lease);
                        }
                        self.members[at].process = None;
                        self.store.expire(now);
                    }
                }
                return;
            }
            Phase::Looking => {}
        }
        if is_cut_off {
            return;
        }
        let (uid, id) = (process.uid, at.to_string());
        if process.lease.is_none() {
            process.lease = Some(self.numbers + 1);
            process.until = now + LEASE - MARGIN;
            process.keep_at = now + KEEP_EVERY;
            let number = self.number();
            self.store.leases.insert(number, now + LEASE);
            return;
        }
        if process.stopping {
            self.release_assignment(at, Then::End);
            return;
        }
        let entries = self.store.entries();
        match quorum::view(&id, uid, &entries) {
            View::Absent => {
                // As after losing its lease, which it learns from the store sooner.
                if process.place.is_some() {
                    self.abort_assignment(at);
                    return;
                }
                let uids = entries.iter().map(|entry| entry.uid);
                self.enter(at, GroupMembers::of(uids.chain([uid])));
            }
            View::Taken => {}
            View::Outdated(seen) => self.release_assignment(at, Then::Write(seen)),
            View::Disagreed => {
                if process.place.is_some() {
                    self.release_assignment(at, Then::Look);
                }
            }
            View::Agreed(shard) => self.take(at, shard),
        }
    }

    /// Writes the member's entry.
    pub(super) fn enter(&mut self, at: usize, seen: GroupMembers) {
        let id = at.to_string();
        let Some(process) = &self.members[at].process else {
            return;
        };
        let Some(lease) = process
            .lease
            .filter(|lease| self.store.leases.contains_key(lease))
        else {
            return;
        };
        self.store.revision += 1;
        let modified = self.store.revision;
        let created = match self.store.entries.get(&id) {
            Some(own) if own.entry.uid == process.uid => own.created,
            Some(_) => return,
            None => modified,
        };
        let entry = Entry {
            id: id.clone(),
            uid: process.uid,
            seen,
        };
        let stored = StoredEntry {
            entry,
            lease,
            created,
            modified,
        };
        self.store.entries.insert(id, stored);
    }

    pub(super) fn take(&mut self, at: usize, shard: Shard) {
        let Some(mut process) = self.members[at].process.take() else {
            return;
        };
        let is_new = process.place.is_none();
        if process.place.is_some_and(|(place, _)| place != shard) {
            self.members[at].process = Some(process);
            self.release_assignment(at, Then::Look);
            return;
        }
        if is_new {
            self.handovers += 1;
            let own = &self.store.entries[&at.to_string()];
            // An entry with an earlier lease of this process would end with that lease.
            if process.lease != Some(own.lease) {
                let seen = own.entry.seen;
                self.members[at].process = Some(process);
                self.enter(at, seen);
                return;
            }
            let clock = self.clock(process.skew);
            process.clear(clock);
            process.fence = Some(Bound {
                tenure: process.tenure,
                created: own.created,
                modified: own.modified,
            });
            process.place = Some((shard, self.store.revision));
            for (name, stored) in &self.store.jobs {
                if shard.owns(stored.partition) {
                    let progress = self.store.counters.get(name).copied().unwrap_or_default();
                    process.put(clock, name, stored, progress);
                }
            }
        }
        self.members[at].process = Some(process);
        self.drive(at);
    }
}

impl Process {
    pub(super) fn clear(&mut self, clock: Timestamp) {
        self.engine.clear(clock);
        self.tenure += 1;
    }

    pub(super) fn put(&mut self, clock: Timestamp, name: &Name, stored: &Stored, progress: Progress) {
        let version = Version {
            revision: stored.revision,
            partition: stored.partition,
        };
        let stored = engine::Stored {
            name: name.clone(),
            target: target(stored.app),
            key: None,
            version,
            job: stored.job.clone(),
            progress,
        };
        self.engine.put(clock, stored);
    }

    /// Queues the latest progress of each job.
    pub(super) fn keep(&mut self, name: Name, version: Version, progress: Option<Progress>, rules: Rules) {
        if rules.forgets && self.tenure > self.waiting_tenure {
            self.waiting.clear();
        }
        self.waiting_tenure = self.tenure;
        let now = self
            .told
            .remove(&(name.clone(), version.revision))
            .unwrap_or_default();
        let mut answered = match self.waiting.remove(&name) {
            Some(before) if before.version == version => before.answered,
            _ => Vec::new(),
        };
        answered.extend(now);
        let save = Save {
            version,
            progress,
            answered,
        };
        self.waiting.insert(name, save);
    }
}
