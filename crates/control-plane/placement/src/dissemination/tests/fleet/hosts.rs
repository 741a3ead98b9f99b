//! Hosts: how a sidecar handles orders, joins and leaves.

use outrigger_actors::dissemination::{self, Dissemination, Order, Step};
use outrigger_actors::routes::{Routes, Stamp};
use outrigger_actors::shard::Shard;

use super::calls::Stage;
use super::*;

/// Drain time of calls when a table changes.
const DRAIN: Duration = Duration::from_secs(2);
/// Placement gives a host's actors away after this long without a ping.
pub(super) const SILENCE_AT_PLACEMENT: Duration = Duration::from_secs(5);
/// Pause between searches for a leader, and the timeout of a search.
pub(super) const SEARCH_INTERVAL: Duration = Duration::from_millis(200);
const SEARCH_TIMEOUT: Duration = Duration::from_millis(300);
/// A host that left forwards calls for this long.
const LINGER: Duration = Duration::from_millis(500);
const RECONNECT: Duration = Duration::from_millis(500);

/// Peers that a host cannot reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cut {
    Nobody,
    Placement,
    All,
}

/// Wakers of a shard.
pub(super) enum Wake {
    /// A call, at this step.
    Call(usize, u32),
    /// The last turn of an actor, in this life of the host.
    Last(u32, u32),
}

/// The work a host finishes before it answers.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum WaitsFor {
    Nothing,
    /// Running calls; then it installs [`Member::next_table`].
    Drain(u64),
    /// Actors that move; the dissemination is then acknowledged.
    Moves(u64),
    /// Calls, then actors: the stream is lost.
    Close,
}

pub(super) struct Member {
    pub(super) name: String,
    pub(super) hands_over: bool,
    pub(super) life: u32,
    pub(super) is_up: bool,
    pub(super) slow: bool,
    pub(super) cut: Cut,
    pub(super) leaving: bool,
    /// It keeps its last table because there is no leader.
    pub(super) alone: bool,
    pub(super) stream: Option<StreamId>,
    pub(super) dissemination: Dissemination,
    pub(super) routes: Routes,
    /// The table to install, and whether the current one precedes it.
    next_table: (Tables, bool),
    pub(super) is_open: bool,
    pub(super) shard: Shard<Wake>,
    /// The last turns of actors.
    last: HashMap<u32, Ticket>,
    /// Actors whose last turn has begun.
    pub(super) halting: HashSet<u32>,
    /// Idle actors that are being deactivated.
    pub(super) idle: BTreeMap<u32, Ticket>,
    /// When actors last had a turn begin or requested.
    pub(super) used: HashMap<u32, Time>,
    /// The next idle scan.
    pub(super) looks_at: Option<Time>,
    pub(super) waits: WaitsFor,
    pub(super) wait: u32,
    /// Earliest arrival of messages to and from it.
    pub(super) down: Time,
    up: Time,
}

impl Member {
    pub(super) fn is_well(&self) -> bool {
        self.is_up && !self.leaving && self.cut == Cut::Nobody
    }
}

impl World {
    pub(super) fn start_host(&mut self) {
        let name = format!("h{}:1", self.hosts.len());
        let hands_over = match self.weather {
            Weather::Fair => true,
            Weather::Mixed => self.random.random_bool(0.6),
            Weather::Rough => self.random.random_bool(0.95),
        };
        self.hosts.push(Member {
            routes: Routes::new(&name),
            next_table: <(Tables, bool)>::default(),
            name,
            hands_over,
            life: 0,
            is_up: true,
            slow: false,
            cut: Cut::Nobody,
            leaving: false,
            alone: false,
            stream: None,
            dissemination: Dissemination::new(dissemination::TIMEOUT),
            is_open: false,
            shard: Shard::new(self.idle),
            last: HashMap::new(),
            halting: HashSet::new(),
            idle: BTreeMap::new(),
            used: HashMap::new(),
            looks_at: None,
            waits: WaitsFor::Nothing,
            wait: 0,
            down: self.now,
            up: self.now,
        });
        let host = self.hosts.len() - 1;
        self.after(Duration::ZERO, Event::Connect(host, 0));
    }

    pub(super) fn report(&self, host: usize) -> Arc<Host> {
        let host = &self.hosts[host];
        let entities = if host.leaving {
            Vec::new()
        } else {
            vec!["T".to_owned()]
        };
        Arc::new(super::Host {
            name: host.name.clone(),
            entities,
            hands_over: host.hands_over && !host.alone,
            ..super::Host::default()
        })
    }

    pub(super) fn connect(&mut self, host: usize, life: u32) {
        let member = &self.hosts[host];
        if member.life != life
            || !member.is_up
            || member.stream.is_some()
            || member.waits != WaitsFor::Nothing
        {
            return;
        }
        if member.leaving {
            return self.stop(host);
        }
        let reaches = member.cut == Cut::Nobody;
        if member.alone && !reaches {
            return self.after(SEARCH_TIMEOUT, Event::Unreached(host, life));
        }
        let pause = if member.alone { SEARCH_INTERVAL } else { RECONNECT };
        let (now, report) = (self.now, self.report(host));
        self.next += 1;
        let stream = self.next;
        match self.namespace.as_mut().filter(|_| reaches) {
            None => self.after(pause, Event::Connect(host, life)),
            Some(namespace) => {
                self.streams.insert(stream, host);
                let member = &mut self.hosts[host];
                (member.stream, member.dissemination, member.down, member.up) =
                    (Some(stream), Dissemination::new(dissemination::TIMEOUT), now, now);
                namespace.join(now, stream, report);
            }
        }
    }

    fn say(&mut self, host: usize, message: Message) {
        let delay = self.delay();
        let member = &mut self.hosts[host];
        let Some(stream) = member.stream.filter(|_| member.cut == Cut::Nobody) else {
            return;
        };
        member.up = member.up.max(self.now + delay);
        let at = member.up;
        self.at(at, Event::Said(stream, message));
    }

    fn answer(&mut self, host: usize, phase: Phase, version: u64) {
        self.say(host, Message::Answer { phase, version });
    }

    /// An order arrives.
    pub(super) fn ordered(
        &mut self,
        stream: StreamId,
        phase: Phase,
        version: u64,
        term: u64,
        table: &Published,
    ) {
        let Some(&host) = self.streams.get(&stream) else {
            return;
        };
        if self.hosts[host].cut != Cut::Nobody || self.hosts[host].stream != Some(stream) {
            return;
        }
        let order = match phase {
            Phase::Lock => Order::Lock,
            Phase::Update => Order::Update,
            Phase::Unlock => Order::Unlock,
        };
        let now = self.began + self.now;
        match self.hosts[host].dissemination.order(order, version, now) {
            Step::Ignore => {}
            Step::Reconnect => self.lose(host),
            Step::Await(version) => {
                assert!(term == 0 || self.hosts[host].hands_over);
                self.answer(host, phase, version);
            }
            Step::Install(version) => self.install(host, version, term, table),
            Step::Open(version) => {
                let member = &mut self.hosts[host];
                member.routes = member.routes.settled();
                member.is_open = true;
                let was_alone = std::mem::take(&mut member.alone);
                self.answer(host, phase, version);
                if was_alone {
                    let report = self.report(host);
                    self.say(host, Message::Report(report));
                }
                self.go_on(host);
                let member = &self.hosts[host];
                if member.leaving && !member.routes.tables().name(&member.name) {
                    self.after(LINGER, Event::Gone(host));
                }
            }
        }
    }

    fn install(&mut self, host: usize, version: u64, term: u64, table: &Published) {
        let tables = self.table(&table.hosts);
        let member = &mut self.hosts[host];
        let known = member.is_open;
        if term == 0 {
            assert!(self.weather != Weather::Fair, "a host stops what does not move");
            if member.routes.tables().differ(&tables, "T") {
                member.is_open = false;
            }
            let waits = !member.is_open;
            member.next_table = (tables, known);
            return match waits {
                true => self.begin_wait(host, WaitsFor::Drain(version), DRAIN),
                false => self.replace(host, version),
            };
        }
        let leaving = table.leaving.iter().map(String::as_str);
        let stamp = Stamp { term, version };
        member.routes = member.routes.handing_over(stamp, tables, known, leaving);
        member.is_open = true;
        self.end_moving(host, version);
    }

    /// Installs a table without handover.
    fn replace(&mut self, host: usize, version: u64) {
        let member = &mut self.hosts[host];
        let (tables, known) = std::mem::take(&mut member.next_table);
        member.routes = member.routes.replaced(tables, known);
        self.end_moving(host, version);
    }

    fn end_moving(&mut self, host: usize, version: u64) {
        let routes = self.hosts[host].routes.clone();
        self.begin_wait(host, WaitsFor::Moves(version), DRAIN);
        self.end_actors(host, |id| !routes.owns("T", id));
        self.go_on(host);
    }

    fn go_on(&mut self, host: usize) {
        if self.hosts[host].is_open {
            self.revisit(host, Stage::AtStep);
            self.revisit(host, Stage::AtGate);
        }
        self.look(host);
    }

    pub(super) fn begin_wait(&mut self, host: usize, waits: WaitsFor, time: Duration) {
        let member = &mut self.hosts[host];
        member.wait += 1;
        member.waits = waits;
        let wait = member.wait;
        self.after(time, Event::Cut(host, wait));
        self.look(host);
    }

    /// The drain time of a host is over.
    pub(super) fn cut(&mut self, host: usize, wait: u32) {
        let member = &self.hosts[host];
        if member.wait != wait {
            return;
        }
        match member.waits {
            WaitsFor::Nothing => {}
            WaitsFor::Drain(_) | WaitsFor::Close => {
                self.stay_idle(host);
                self.cancel(host, |_| true);
            }
            WaitsFor::Moves(_) => {
                let routes = member.routes.clone();
                self.cancel(host, |actor| !routes.owns("T", &actor.to_string()));
            }
        }
        self.look(host);
    }

    /// Checks whether a host has finished waiting.
    pub(super) fn look(&mut self, host: usize) {
        let held = !self.hosts[host].idle.is_empty() || self.calls.iter().any(|call| call.holds(host));
        let member = &mut self.hosts[host];
        match member.waits {
            WaitsFor::Drain(version) if !held => {
                member.waits = WaitsFor::Nothing;
                self.replace(host, version);
            }
            WaitsFor::Moves(version) => {
                let routes = &member.routes;
                if member.shard.ids().iter().all(|id| routes.owns("T", id)) {
                    member.waits = WaitsFor::Nothing;
                    self.answer(host, Phase::Update, version);
                }
            }
            WaitsFor::Close if !held => {
                if member.shard.is_empty() {
                    member.waits = WaitsFor::Nothing;
                    let life = member.life;
                    self.after(Duration::ZERO, Event::Connect(host, life));
                } else {
                    self.end_actors(host, |_| true);
                }
            }
            _ => {}
        }
    }

    fn end_actors(&mut self, host: usize, wanted: impl Fn(&str) -> bool) {
        let mut ids = self.hosts[host].shard.ids();
        ids.sort();
        for id in ids.into_iter().filter(|id| wanted(id)) {
            let (actor, life) = (id.parse().expect("a number"), self.hosts[host].life);
            let last = self.hosts[host].shard.last(&id, || Wake::Last(actor, life));
            let Some((ticket, begins)) = last else { continue };
            self.hosts[host].last.insert(actor, ticket);
            if begins {
                self.end_actor(host, life, actor);
            }
        }
    }

    /// The last turn of an actor begins and the app deactivates it.
    pub(super) fn end_actor(&mut self, host: usize, life: u32, actor: u32) {
        if self.hosts[host].life != life {
            return;
        }
        if let Some(ticket) = self.hosts[host].last.remove(&actor) {
            self.check_ends(host, actor);
            self.hosts[host].halting.insert(actor);
            let time = Duration::from_micros(self.random.random_range(0..5000));
            self.after(time, Event::ActorEnded(host, life, actor, ticket));
        }
    }

    pub(super) fn actor_ended(&mut self, host: usize, life: u32, actor: u32, ticket: Ticket) {
        if self.hosts[host].life != life {
            return;
        }
        self.counts.moved += 1;
        self.active.remove(&actor);
        self.hosts[host].halting.remove(&actor);
        let woken = self.hosts[host]
            .shard
            .deactivated(&actor.to_string(), ticket, self.now);
        self.wake(host, woken);
        self.look(host);
    }

    pub(super) fn leave_on_purpose(&mut self, host: usize) {
        let member = &mut self.hosts[host];
        if !member.is_open || member.stream.is_none() {
            return;
        }
        member.leaving = true;
        let report = self.report(host);
        self.say(host, Message::Report(report));
    }

    /// Removes a host that left; calls that wait there are routed again.
    fn stop(&mut self, host: usize) {
        self.hosts[host].is_up = false;
        for call in 0..self.calls.len() {
            let waits = matches!(
                self.calls[call].stage,
                Stage::AtGate | Stage::AtStep | Stage::Queued
            );
            if self.calls[call].at == host && waits {
                self.retry(call);
            }
        }
    }

    pub(super) fn kill(&mut self, host: usize) {
        let member = &mut self.hosts[host];
        (member.life, member.shard) = (member.life + 1, Shard::new(self.idle));
        member.halting.clear();
        member.idle.clear();
        member.used.clear();
        member.waits = WaitsFor::Nothing;
        member.wait += 1;
        let stream = member.stream.take();
        for call in 0..self.calls.len() {
            if self.calls[call].at == host && self.calls[call].stage == Stage::Runs {
                self.calls[call].ticket = None;
                self.leave_turn(call, Stage::Failed);
            }
        }
        self.calls
            .iter_mut()
            .filter(|call| call.at == host)
            .for_each(|call| call.ticket = None);
        self.active.retain(|_, at| *at != host);
        self.stop(host);
        if let Some(stream) = stream {
            self.streams.remove(&stream);
            // The peer's machine reports the closed port, or is gone as well.
            let notice = if self.random.random_bool(0.5) {
                self.delay()
            } else {
                SILENCE_AT_PLACEMENT
            };
            self.after(notice, Event::Left(stream));
        }
    }
}
