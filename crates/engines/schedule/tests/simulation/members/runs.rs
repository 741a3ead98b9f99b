//! The work of a running member: its lease, its shard, the jobs that it follows, and triggers.

use super::*;

impl World {
    pub(super) fn is_frozen(&self, at: usize) -> bool {
        self.members[at].frozen_until > self.now
    }

    /// Checks the engine's deliveries, and queues its writes.
    pub(super) fn collect(&mut self, at: usize) {
        let Some(mut process) = self.members[at].process.take() else {
            return;
        };
        let (clock, rules) = (self.clock(process.skew), self.rules);
        for action in process.engine.take_actions() {
            match action {
                Action::Deliver {
                    host,
                    trigger,
                    name,
                    version,
                    due,
                } => {
                    self.check(at, &process, &name, version, due, clock);
                    // Triggers sent before it released its jobs are never answered.
                    let mut sent = process
                        .under_way
                        .iter()
                        .filter(|sent| sent.tenure == process.tenure);
                    if sent.any(|sent| sent.name == name && sent.version == version) {
                        self.wrong(format!("{name} is under way twice from member {at}"));
                    }
                    self.tally.fired += 1;
                    self.tally.late += usize::from(due < clock);
                    process.under_way.push(UnderWay {
                        host,
                        trigger,
                        name,
                        version,
                        due,
                        tenure: process.tenure,
                    });
                }
                Action::Undelivered { .. } => {}
                Action::Save {
                    name,
                    version,
                    progress,
                } => process.keep(name, version, Some(progress), rules),
                Action::Delete { name, version } => process.keep(name, version, None, rules),
            }
        }
        self.members[at].process = Some(process);
    }

    /// The invariants of deliveries.
    pub(super) fn check(
        &mut self,
        at: usize,
        process: &Process,
        name: &Name,
        version: Version,
        due: Timestamp,
        clock: Timestamp,
    ) {
        if due > clock {
            self.tally.early += 1;
            self.wrong(format!("{name} came early from member {at}"));
        }
        let key = (name.clone(), version.revision);
        if self.done.get(&key).is_some_and(|ticks| ticks.contains(&due)) {
            self.wrong(format!(
                "{name} came again from member {at} after its success was stored"
            ));
        }
        let own = self.store.entries.get(&at.to_string());
        if own.is_none_or(|own| own.entry.uid != process.uid) {
            self.wrong(format!("{name} came from member {at}, which has lost its place"));
        }
        let mut others = self.members.iter().filter_map(|other| other.process.as_ref());
        // A member that has not noticed yet that its lease has ended dispatches nothing.
        if others.any(|other| {
            other.until > self.now
                && other
                    .place
                    .is_some_and(|(shard, _)| shard.owns(version.partition))
        }) {
            self.wrong(format!(
                "{name} came from member {at}, and another looks after it"
            ));
        }
    }

    /// Runs a process once.
    pub(super) fn run(&mut self, at: usize) {
        if self.is_frozen(at) || self.members[at].process.is_none() {
            return;
        }
        // Tasks of a process run in any order.
        let mut order = [0, 1, 2, 3];
        for last in (1..order.len()).rev() {
            order.swap(last, self.random.index(last + 1));
        }
        for task in order {
            match task {
                0 => self.keep_lease(at),
                1 => self.follow(at),
                2 => self.drive(at),
                _ => self.write(at),
            }
        }
        self.look(at);
    }

    pub(super) fn reaches_store(&self, at: usize) -> bool {
        !self.members[at].is_cut_off
    }

    pub(super) fn keep_lease(&mut self, at: usize) {
        let (now, reaches) = (self.now, self.reaches_store(at));
        let Some(process) = &mut self.members[at].process else {
            return;
        };
        let Some(lease) = process.lease else { return };
        let is_lost = now >= process.until
            || now >= process.keep_at
                && reaches
                && match self.store.leases.get_mut(&lease) {
                    Some(ends) => {
                        *ends = now + LEASE;
                        process.until = now + LEASE - MARGIN;
                        process.keep_at = now + KEEP_EVERY;
                        false
                    }
                    None => true,
                };
        if is_lost {
            self.abort_assignment(at);
        }
    }

    pub(super) fn abort_assignment(&mut self, at: usize) {
        let now = self.now;
        if let Some(process) = &mut self.members[at].process {
            process.lease = None;
            process.fence = None;
            process.place = None;
            process.phase = Phase::Looking;
            process.clear(clock(now, process.skew));
            if process.stopping {
                self.members[at].process = None;
            }
        }
    }

    /// Passes job changes to the engine.
    pub(super) fn follow(&mut self, at: usize) {
        let seldom = self.random.one_in(4);
        if !self.reaches_store(at) || seldom {
            return;
        }
        self.check_lease(at);
        let Some(mut process) = self.members[at].process.take() else {
            return;
        };
        let clock = self.clock(process.skew);
        if let Some((shard, followed)) = process.place {
            let from = self
                .store
                .events
                .partition_point(|(revision, ..)| *revision <= followed);
            for (revision, name, event) in &self.store.events[from..] {
                process.place = Some((shard, *revision));
                match event {
                    Some(stored) if shard.owns(stored.partition) => {
                        let progress = self.store.counters.get(name).copied().unwrap_or_default();
                        process.put(clock, name, stored, progress);
                    }
                    _ => process.engine.deleted(name, *revision),
                }
            }
        }
        self.members[at].process = Some(process);
        self.collect(at);
    }

    /// Checks the lease before any input to the engine.
    pub(super) fn check_lease(&mut self, at: usize) {
        let (now, looks) = (self.now, self.rules.looks_at_lease);
        if let Some(process) = &mut self.members[at].process
            && looks
            && now >= process.until
        {
            process.engine.pause_dispatch();
        }
    }

    pub(super) fn drive(&mut self, at: usize) {
        self.check_lease(at);
        let Some(skew) = self.members[at].process.as_ref().map(|process| process.skew) else {
            return;
        };
        let clock = self.clock(skew);
        if let Some(process) = &mut self.members[at].process {
            process.engine.unstored(process.waiting.len());
            process.engine.advance(clock);
        }
        self.collect(at);
    }
}
