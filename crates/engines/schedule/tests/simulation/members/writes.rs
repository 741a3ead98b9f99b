//! Writes of members, and their arrival.

use super::*;

impl World {
    /// Writes the progress of jobs.
    pub(super) fn write(&mut self, at: usize) {
        let (now, reaches, rules) = (self.now, self.reaches_store(at), self.rules);
        let number = self.number();
        // Most writes arrive at once; some hang in the network, and arrive after the caller has given up.
        let delay = match self.random.below(12) {
            0 => self.random.below(CALL * 4),
            _ => self.random.below(50),
        };
        let Some(process) = &mut self.members[at].process else {
            return;
        };
        match process.asked {
            Some((_, until)) if now < until => return,
            Some(_) => {
                process.asked = None;
                process.unanswered = true;
                process.retry_at = now + RETRY;
            }
            None => {}
        }
        if process.waiting.is_empty() || now < process.retry_at {
            return;
        }
        let of_now = |fence: &Bound| !rules.forgets || fence.tenure == process.waiting_tenure;
        let Some(mut fence) = process.fence.filter(of_now) else {
            process.waiting.clear();
            return;
        };
        if process.unanswered {
            if rules.fence == Fence::Written {
                if !reaches {
                    process.asked = Some((number, now + CALL));
                    return;
                }
                let id = at.to_string();
                let own = self.store.entries.get_mut(&id);
                let Some(own) =
                    own.filter(|own| own.modified == fence.modified && own.entry.uid == process.uid)
                else {
                    process.fence = None;
                    return;
                };
                self.store.revision += 1;
                own.modified = self.store.revision;
                fence.modified = own.modified;
                process.fence = Some(fence);
            }
            process.unanswered = false;
        }
        let batch = process
            .waiting
            .iter()
            .map(|(name, save)| (name.clone(), save.clone()))
            .collect();
        process.asked = Some((number, now + CALL));
        self.attempts.push(Attempt {
            number,
            member: at,
            uid: process.uid,
            fence,
            arrives: now + delay,
            batch,
        });
    }

    /// Writes in transit arrive, if the network allows.
    pub(super) fn arrive(&mut self) {
        for attempt in std::mem::take(&mut self.attempts) {
            if attempt.arrives > self.now || self.members[attempt.member].is_cut_off {
                self.attempts.push(attempt);
                continue;
            }
            self.commit(&attempt);
            // Some responses get lost.
            if !self.random.one_in(20) {
                self.settle(&attempt);
            }
        }
    }

    /// The caller receives the response, unless it is gone or has given up.
    pub(super) fn settle(&mut self, attempt: &Attempt) {
        let Some(process) = &mut self.members[attempt.member].process else {
            return;
        };
        if process.uid != attempt.uid {
            return;
        }
        if process.asked.is_some_and(|(number, _)| number == attempt.number) {
            process.asked = None;
            for (name, save) in &attempt.batch {
                // Progress made since then waits.
                if process.waiting.get(name).is_some_and(|now| {
                    now.version == save.version && now.answered.len() == save.answered.len()
                }) {
                    process.waiting.remove(name);
                }
            }
        }
    }

    pub(super) fn commit(&mut self, attempt: &Attempt) {
        let own = self.store.entries.get(&attempt.member.to_string());
        let holds = match self.rules.fence {
            Fence::Written => own.is_some_and(|own| own.modified == attempt.fence.modified),
            Fence::Entry => own.is_some_and(|own| own.created == attempt.fence.created),
            Fence::None => true,
        };
        if !holds {
            self.refused += 1;
            return;
        }
        for (name, save) in &attempt.batch {
            let Some(stored) = self.store.jobs.get(name) else {
                continue;
            };
            if stored.revision != save.version.revision {
                continue;
            }
            let ticks = stored.ticks;
            let key = (name.clone(), stored.revision);
            for answered in &save.answered {
                self.answered.entry(key.clone()).or_default().insert(answered.due);
                if answered.outcome == Outcome::Success {
                    self.done.entry(key.clone()).or_default().insert(answered.due);
                }
            }
            match save.progress {
                Some(progress) => {
                    self.store.revision += 1;
                    self.store.counters.insert(name.clone(), progress);
                }
                None => {
                    let had = self.answered.get(&key).map_or(0, BTreeSet::len);
                    if had < ticks {
                        self.tally.lost += 1;
                        self.wrong(format!("{name} was deleted after {had} of {ticks} ticks"));
                    }
                    self.store.delete(name);
                }
            }
        }
    }

    pub(super) fn release_assignment(&mut self, at: usize, then: Then) {
        let (now, releases) = (self.now, self.rules.releases);
        if let Some(process) = &mut self.members[at].process
            && matches!(process.phase, Phase::Looking)
        {
            if process.place.take().is_some() && releases {
                process.engine.pause_dispatch();
                process.phase = Phase::Holding {
                    until: now + DRAIN,
                    then,
                };
            } else {
                process.phase = Phase::Flushing(then);
            }
        }
    }
}
