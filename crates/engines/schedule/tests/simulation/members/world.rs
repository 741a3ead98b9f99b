//! Events that affect members, and a complete run.

use super::*;

impl World {
    pub(super) fn new(seed: u64, rules: Rules) -> Self {
        Self {
            rules,
            random: Random(seed),
            now: 0,
            store: Store::default(),
            members: (0..MEMBERS).map(|_| Member::default()).collect(),
            attempts: Vec::new(),
            numbers: 0,
            done: HashMap::new(),
            answered: HashMap::new(),
            wrong: None,
            tally: Tally::default(),
            handovers: 0,
            refused: 0,
        }
    }

    pub(super) fn wrong(&mut self, what: String) {
        let now = self.now;
        self.wrong.get_or_insert_with(|| format!("at {now} ms: {what}"));
    }

    pub(super) fn clock(&self, skew: i64) -> Timestamp {
        clock(self.now, skew)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn start(&mut self, at: usize) {
        let skew = i64::try_from(self.random.below(200)).unwrap() - 100;
        let uid = self.random.next();
        let process = Process {
            uid,
            skew,
            lease: None,
            until: 0,
            keep_at: 0,
            engine: Engine::new(self.clock(skew), LIMITS),
            hosts: Vec::new(),
            under_way: Vec::new(),
            place: None,
            phase: Phase::Looking,
            fence: None,
            waiting: BTreeMap::new(),
            waiting_tenure: 0,
            told: HashMap::new(),
            asked: None,
            unanswered: false,
            retry_at: 0,
            stopping: false,
            tenure: 0,
        };
        self.members[at].process = Some(process);
        self.members[at].frozen_until = 0;
    }

    pub(super) fn connect(&mut self, at: usize, app: usize) {
        let Target::App { namespace, id } = target(app) else {
            unreachable!("jobs of apps only");
        };
        if self.is_frozen(at) {
            return;
        }
        self.check_lease(at);
        if let Some(process) = &mut self.members[at].process {
            let host = process.engine.connect(Host::new(&namespace, &id, true, &[]));
            process.hosts.push((host, app));
        }
        self.collect(at);
    }

    pub(super) fn schedule(&mut self, name: &Name, app: usize, kind: Kind, skew: i64) {
        let stored = Stored {
            app,
            partition: self.random.next(),
            revision: 0,
            ticks: match kind {
                Kind::Once(_) => 1,
                Kind::Every { repeats, .. } => usize::from(repeats),
            },
            job: kind.job(self.clock(skew)),
        };
        self.store.put(name, stored);
        self.tally.acknowledged += 1;
    }

    /// A random event.
    pub(super) fn happen(&mut self) {
        let at = self.random.index(MEMBERS);
        match self.random.below(100) {
            0..20 => {
                let name: Name = format!("job{}", self.random.below(NAMES)).into();
                let app = self.random.index(APPS);
                let kind = if self.random.one_in(3) {
                    Kind::Once(u32::try_from(self.random.below(5000)).unwrap())
                } else {
                    Kind::Every {
                        seconds: u8::try_from(1 + self.random.below(4)).unwrap(),
                        repeats: u8::try_from(1 + self.random.below(20)).unwrap(),
                    }
                };
                // A running job is rarely replaced.
                if !self.store.jobs.contains_key(&name) || self.random.one_in(10) {
                    self.schedule(&name, app, kind, 0);
                }
            }
            20 => {
                let name: Name = format!("job{}", self.random.below(NAMES)).into();
                self.store.delete(&name);
            }
            21..27 => {
                let app = self.random.index(APPS);
                self.connect(at, app);
            }
            27..30 => self.disconnect(at),
            30..70 => {
                let outcome = match self.random.one_in(5) {
                    true => Outcome::Failed,
                    false => Outcome::Success,
                };
                self.answer(at, outcome, true);
            }
            // Most members run most of the time.
            70 if self.random.one_in(4) => self.members[at].process = None,
            71 if self.random.one_in(4) => {
                if let Some(process) = &mut self.members[at].process {
                    process.stopping = true;
                }
            }
            72..76 if self.members[at].process.is_none() => self.start(at),
            76 if self.random.one_in(3) => self.members[at].is_cut_off = true,
            77 => self.members[at].is_cut_off = false,
            78 if self.random.one_in(4) => {
                self.members[at].frozen_until = self.now + self.random.below(LEASE * 2);
            }
            // The watch of jobs failed: they are listed again.
            79 if self.random.one_in(3) && !self.is_frozen(at) => self.release_assignment(at, Then::Look),
            _ => {}
        }
    }

    pub(super) fn disconnect(&mut self, at: usize) {
        if self.is_frozen(at) {
            return;
        }
        self.check_lease(at);
        let chosen = self.random.next();
        if let Some(process) = &mut self.members[at].process
            && !process.hosts.is_empty()
        {
            let index = usize::try_from(chosen % process.hosts.len() as u64).unwrap();
            let (host, _) = process.hosts.swap_remove(index);
            process.under_way.retain(|other| other.host != host);
            process.engine.disconnect(host);
        }
        self.collect(at);
    }

    pub(super) fn answer(&mut self, at: usize, outcome: Outcome, silent: bool) {
        if self.is_frozen(at) {
            return;
        }
        self.check_lease(at);
        let chosen = self.random.next();
        let now = self.now;
        let Some(process) = &mut self.members[at].process else {
            return;
        };
        let may_answer = |sent: &UnderWay| {
            let app = process.hosts.iter().find(|(host, _)| *host == sent.host);
            !silent || app.is_none_or(|(_, app)| *app != SILENT)
        };
        let answering: Vec<usize> = (0..process.under_way.len())
            .filter(|index| may_answer(&process.under_way[*index]))
            .collect();
        if answering.is_empty() {
            return;
        }
        let index = answering[usize::try_from(chosen % answering.len() as u64).unwrap()];
        let sent = process.under_way.swap_remove(index);
        let answered = Answered {
            due: sent.due,
            outcome,
        };
        let key = (sent.name.clone(), sent.version.revision);
        process.told.entry(key).or_default().push(answered);
        let clock = clock(now, process.skew);
        process
            .engine
            .answer(clock, sent.host, sent.trigger, outcome)
            .unwrap();
        self.collect(at);
        // The caller has given up if the write did not arrive.
        if let Some(process) = &mut self.members[at].process {
            process.told.clear();
        }
    }

    pub(super) fn turn(&mut self, millis: u64) {
        self.now += millis;
        self.store.expire(self.now);
        self.arrive();
        let first = self.random.index(MEMBERS);
        for at in (first..MEMBERS).chain(0..first) {
            self.run(at);
        }
    }

    /// Runs with faults, then without, until every job ends.
    pub(super) fn play(mut self) -> Result<Self, String> {
        for at in 0..2 {
            self.start(at);
        }
        for _ in 0..TURNS {
            for _ in 0..self.random.below(8) {
                self.happen();
            }
            let millis = 1 + self.random.below(200);
            self.turn(millis);
            if let Some(wrong) = self.wrong {
                return Err(wrong);
            }
        }
        for at in 0..MEMBERS {
            self.members[at].is_cut_off = false;
            self.members[at].frozen_until = 0;
            if self.members[at].process.is_none() {
                self.start(at);
            }
            for app in 0..APPS {
                self.connect(at, app);
            }
        }
        for _ in 0..4_000 {
            if self.store.jobs.is_empty() {
                return self.wrong.take().map_or(Ok(self), Err);
            }
            for at in 0..MEMBERS {
                if self.members[at].process.is_none() {
                    self.start(at);
                    for app in 0..APPS {
                        self.connect(at, app);
                    }
                }
                for _ in 0..LIMIT {
                    self.answer(at, Outcome::Success, false);
                }
            }
            self.turn(250);
            if let Some(wrong) = self.wrong {
                return Err(wrong);
            }
        }
        let left: Vec<_> = self.store.jobs.keys().collect();
        Err(format!("jobs are lost, or stuck: {left:?}"))
    }
}
