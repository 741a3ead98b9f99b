//! How the hosts of one namespace come to know the same table: rounds of three phases, without I/O.
//!
//! Every change of who hosts what is told in a round: all streams are locked, then given the table, then unlocked, and
//! a phase begins when all have answered the one before. So no two hosts that route calls do so by different tables.
//!
//! - Who goes while streams are being locked belongs to that round: no table was sent yet.
//! - Other changes wait for the round to end, and everything that waits becomes one running.
//! - Each report that changes something counts as a version, as it does with Dapr, although it may have no round of its
//!   own.
//! - Where all streams are of hosts that hand actors over, a round says so: those hosts need not stop what does not move.
//!   The phases are the same, because a phase ends with the promise of all hosts: not to begin what moves away (update).
//! - A stream without actors changes nothing, and is given the present table by itself.
//! - A leader that is new begins with a pause: see [`SETTLE`].
//! - A stream that keeps a round waiting for the time-out, in all of its phases together, is left behind, and the others
//!   go on. Nobody is left behind for the time that another took.
//!
//! Time is what the caller says it is. What has to be sent comes out as [`Effect`]s, in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outrigger_wire::placement::v1::Host;

/// Pause between two rounds: what changes within it becomes one running.
pub(crate) const GATHER: Duration = Duration::from_millis(100);

/// A leader that may follow another one begins no round before it has led for so long. Hosts that go on without a leader
/// until they find one come first, and those that cannot reach it have given up by then: a host that was cut off from the
/// leader before ends its actors within 4.5 s, and another leads 2 s after the one before at the earliest.
pub(crate) const SETTLE: Duration = Duration::from_millis(2750);

/// A stream of a host; a later one has a larger number.
pub(crate) type StreamId = u64;

/// Time since a fixed moment.
pub(crate) type Time = Duration;

/// What a round tells its streams to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Let calls under way end, begin none.
    Lock,
    /// Take the table.
    Update,
    /// Go on by the table.
    Unlock,
}

/// What a stream says.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    /// A host, with the actor types that it hosts.
    Report(Arc<Host>),
    /// A phase is done.
    Answer {
        /// The phase that is done.
        phase: Phase,
        /// Version of the table of the running.
        version: u64,
    },
    /// Hosts before 1.17 do not tell the two apart.
    ReportOrAnswer(Arc<Host>),
}

/// What has to be done, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The hosts of now are the table of this version, which `Update` sends from here on.
    Publish {
        version: u64,
        /// Only what moves is to stop.
        handover: bool,
    },
    /// Send an order.
    Order {
        /// The stream that gets the order.
        to: StreamId,
        /// The phase of the round that the order begins.
        phase: Phase,
        /// Version of the table of the running.
        version: u64,
        /// Only what moves is to stop.
        handover: bool,
    },
    /// A round ended.
    Finished {
        /// The time it took.
        took: Duration,
    },
    /// End a stream: it did not answer in time.
    Expire {
        /// The stream, which is no longer part of the namespace.
        stream: StreamId,
        /// The running.
        version: u64,
    },
}

/// The hosts of a namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    /// Time a stream has to answer in a running.
    timeout: Duration,
    /// Whether actors may be handed over where all hosts can.
    hands_over: bool,
    members: BTreeMap<StreamId, Member>,
    /// First reports that wait for a running.
    waiting: BTreeMap<StreamId, Waiting>,
    version: u64,
    published: Option<u64>,
    running: Option<Dissemination>,
    /// Hosts changed since the table was published.
    changed: bool,
    /// Reports that changed something since the last round began, first ones among them.
    reports: u64,
    /// When the next round begins.
    due: Option<Time>,
    /// That is for a round, not only for those who come before [`SETTLE`].
    wanted: bool,
    /// Not before this.
    rest_until: Time,
    /// The leader has led for long enough.
    settled_at: Time,
    effects: Vec<Effect>,
}

#[derive(Debug)]
struct Waiting {
    host: Arc<Host>,
    /// See [`Member::ahead`].
    ahead: usize,
}

#[derive(Debug)]
struct Member {
    host: Arc<Host>,
    /// Phases of its first round that it answered before they began, with the same report and no operation: a new leader lets its
    /// first round wait, and hosts of before 1.17 do not.
    ahead: usize,
    /// It has actors by the table that was published last.
    listed: bool,
    /// It had some by the one before, and has none any more.
    leaving: bool,
    /// The last phase of this round that it answered.
    reached: Option<Phase>,
    /// When it was told of the phase.
    asked: Time,
    /// The time that it took to answer those before.
    spent: Duration,
}

#[derive(Debug)]
struct Dissemination {
    phase: Phase,
    opened: Time,
    /// Until then no member's time is up.
    deadline: Time,
    /// Members that did not answer the phase yet.
    missing: usize,
    /// All members hand actors over.
    handover: bool,
}

impl Member {
    /// When its time is up, unless it answers.
    fn deadline(&self, timeout: Duration) -> Time {
        self.asked + timeout.saturating_sub(self.spent)
    }
}

/// Whether a host is part of the table.
fn has_actors(host: &Host) -> bool {
    !host.entities.is_empty()
}

/// Whether the table changes when the report `old` becomes `new`.
fn differs(old: &Host, new: &Host) -> bool {
    match (has_actors(old), has_actors(new)) {
        (false, false) => false,
        (true, true) => {
            (&old.name, &old.id, &old.namespace, &old.entities)
                != (&new.name, &new.id, &new.namespace, &new.entities)
        }
        _ => true,
    }
}

impl Namespace {
    /// A namespace without hosts. `hands_over`: hosts that can may hand actors over. Before `settled_at` there is no running.
    pub(crate) fn new(timeout: Duration, hands_over: bool, settled_at: Time) -> Self {
        Self {
            timeout,
            hands_over,
            members: BTreeMap::new(),
            waiting: BTreeMap::new(),
            version: 0,
            published: None,
            running: None,
            changed: false,
            reports: 0,
            due: None,
            wanted: false,
            rest_until: Time::ZERO,
            settled_at,
            effects: Vec::new(),
        }
    }

    /// A stream begins, with its first report. Its entities are sorted.
    pub(crate) fn join(&mut self, now: Time, stream: StreamId, host: Arc<Host>) {
        if self.running.is_none() && !has_actors(&host) && now >= self.settled_at {
            self.admit(now, stream, host, 0);
            self.tell_alone(stream);
            return;
        }
        let wanted = has_actors(&host);
        self.waiting.insert(stream, Waiting { host, ahead: 0 });
        if self.running.is_none() {
            match wanted {
                true => self.request(now),
                false => self.due = self.due.or(Some(self.settled_at)),
            }
        }
    }

    /// A stream says something. What an unknown one says is ignored.
    pub(crate) fn message(&mut self, now: Time, stream: StreamId, message: Message) {
        if let Some(waiting) = self.waiting.get_mut(&stream) {
            let may_answer = self.running.is_none() && matches!(message, Message::ReportOrAnswer(_));
            if let Message::Report(new) | Message::ReportOrAnswer(new) = message {
                waiting.ahead += usize::from(may_answer && !differs(&waiting.host, &new));
                waiting.host = new;
            }
            return;
        }
        match (message, &self.running) {
            (Message::Report(host), _) | (Message::ReportOrAnswer(host), None) => {
                self.report(now, stream, host);
            }
            (Message::ReportOrAnswer(_), Some(running)) => {
                let (phase, version) = (running.phase, self.version);
                self.answer(now, stream, phase, version);
            }
            (Message::Answer { phase, version }, _) => self.answer(now, stream, phase, version),
        }
    }

    /// A stream ended.
    pub(crate) fn leave(&mut self, now: Time, stream: StreamId) {
        if self.waiting.remove(&stream).is_some() {
            return;
        }
        let Some(member) = self.members.remove(&stream) else {
            return;
        };
        if let Some(running) = &mut self.running
            && member.reached < Some(running.phase)
        {
            running.missing -= 1;
        }
        if has_actors(&member.host) {
            match &self.running {
                // Its table is made when all are locked.
                Some(running) if running.phase == Phase::Lock => {}
                Some(_) => self.changed = true,
                None => self.request(now),
            }
        }
        self.advance(now);
    }

    /// When [`Namespace::wake`] has something to do.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.running.as_ref().map(|running| running.deadline).or(self.due)
    }

    /// Does what is due.
    pub(crate) fn wake(&mut self, now: Time) {
        match &self.running {
            Some(running) if running.deadline <= now => self.expire(now),
            None if self.due.is_some_and(|due| due <= now) => {
                self.due = None;
                match self.wanted {
                    true => self.begin(now),
                    false => self.tell_waiting(now),
                }
            }
            _ => {}
        }
    }

    /// Takes out what has to be done.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The hosts of the table, later streams last.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Arc<Host>> {
        self.members
            .values()
            .map(|member| &member.host)
            .filter(|host| has_actors(host))
    }

    /// The names of the hosts that left with the table that was published last, and still have their streams.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = &str> {
        let leaving = self.members.values().filter(|member| member.leaving);
        leaving.map(|member| member.host.name.as_str())
    }

    /// The version of the last running.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Whether it has no streams.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.waiting.is_empty()
    }

    fn report(&mut self, now: Time, stream: StreamId, host: Arc<Host>) {
        let Some(member) = self.members.get_mut(&stream) else {
            return;
        };
        let old = std::mem::replace(&mut member.host, host);
        if differs(&old, &member.host) {
            self.reports += 1;
            match self.running {
                Some(_) => self.changed = true,
                None => self.request(now),
            }
        } else if !has_actors(&old) && self.running.is_none() {
            self.tell_alone(stream);
        }
    }

    fn answer(&mut self, now: Time, stream: StreamId, phase: Phase, version: u64) {
        let (Some(running), Some(member)) = (&mut self.running, self.members.get_mut(&stream)) else {
            return;
        };
        if version == self.version && phase == running.phase && member.reached < Some(phase) {
            member.reached = Some(phase);
            member.spent += now.saturating_sub(member.asked);
            running.missing -= 1;
            self.advance(now);
        }
    }

    /// A round, as soon as the last one is long enough ago.
    fn request(&mut self, now: Time) {
        self.wanted = true;
        let earliest = self.rest_until.max(self.settled_at);
        self.due = Some(self.due.unwrap_or(now).max(earliest));
        self.wake(now);
    }

    fn begin(&mut self, now: Time) {
        self.wanted = false;
        for (stream, Waiting { host, ahead }) in std::mem::take(&mut self.waiting) {
            self.reports += u64::from(has_actors(&host));
            self.admit(now, stream, host, ahead);
        }
        if self.members.is_empty() {
            return;
        }
        self.version += self.reports.max(1);
        (self.changed, self.reports) = (false, 0);
        let handover = self.hands_over && self.members.values().all(|member| member.host.hands_over);
        self.running = Some(Dissemination {
            phase: Phase::Lock,
            opened: now,
            deadline: now + self.timeout,
            missing: self.members.len(),
            handover,
        });
        for member in self.members.values_mut() {
            (member.reached, member.spent) = (None, Duration::ZERO);
        }
        self.order_all(now, Phase::Lock);
        self.advance(now);
    }

    /// Goes from phase to phase while nobody is missing.
    fn advance(&mut self, now: Time) {
        while let Some(running) = self.running.as_mut().filter(|running| running.missing == 0) {
            let next = match running.phase {
                _ if self.members.is_empty() => None,
                Phase::Lock => Some(Phase::Update),
                Phase::Update => Some(Phase::Unlock),
                Phase::Unlock => None,
            };
            let Some(next) = next else {
                return self.finish(now);
            };
            running.phase = next;
            running.missing = self.members.len();
            if next == Phase::Update {
                self.publish();
            }
            self.order_all(now, next);
        }
    }

    fn finish(&mut self, now: Time) {
        if let Some(running) = self.running.take() {
            let took = now.saturating_sub(running.opened);
            self.effects.push(Effect::Finished { took });
        }
        self.members.values_mut().for_each(|member| member.ahead = 0);
        self.rest_until = now + GATHER;
        self.tell_waiting(now);
        if self.changed || !self.waiting.is_empty() {
            self.request(now);
        }
    }

    /// Gives the present table to those who wait and have no actors.
    fn tell_waiting(&mut self, now: Time) {
        let (with_actors, without): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(_, waiting)| has_actors(&waiting.host));
        self.waiting = with_actors;
        for (stream, Waiting { host, .. }) in without {
            self.admit(now, stream, host, 0);
            self.tell_alone(stream);
        }
    }

    /// Goes on without those whose time is up.
    fn expire(&mut self, now: Time) {
        let Some(running) = &mut self.running else {
            return;
        };
        let (phase, timeout, version) = (running.phase, self.timeout, self.version);
        for (stream, member) in self.members.extract_if(.., |_, member| {
            member.reached < Some(phase) && member.deadline(timeout) <= now
        }) {
            running.missing -= 1;
            self.effects.push(Effect::Expire { stream, version });
            self.changed |= phase != Phase::Lock && has_actors(&member.host);
        }
        self.set_deadline();
        self.advance(now);
    }

    fn set_deadline(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        let missing = self
            .members
            .values()
            .filter(|member| member.reached < Some(running.phase));
        if let Some(first) = missing.map(|member| member.deadline(self.timeout)).min() {
            running.deadline = first;
        }
    }

    fn admit(&mut self, now: Time, stream: StreamId, host: Arc<Host>, ahead: usize) {
        let member = Member {
            host,
            ahead,
            listed: false,
            leaving: false,
            reached: None,
            asked: now,
            spent: Duration::ZERO,
        };
        self.members.insert(stream, member);
    }

    /// Gives the present table to one stream.
    fn tell_alone(&mut self, stream: StreamId) {
        if self.published != Some(self.version) {
            self.publish();
        }
        for phase in [Phase::Lock, Phase::Update, Phase::Unlock] {
            self.order(stream, phase);
        }
    }

    fn hands_over_now(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.handover)
    }

    fn publish(&mut self) {
        self.published = Some(self.version);
        for member in self.members.values_mut() {
            let listed = has_actors(&member.host);
            member.leaving = member.listed && !listed;
            member.listed = listed;
        }
        self.effects.push(Effect::Publish {
            version: self.version,
            handover: self.hands_over_now(),
        });
    }

    fn order_all(&mut self, now: Time, phase: Phase) {
        let version = self.version;
        let handover = self.hands_over_now();
        for (&to, member) in &mut self.members {
            member.asked = now;
            self.effects.push(Effect::Order {
                to,
                phase,
                version,
                handover,
            });
            if member.ahead > 0
                && let Some(running) = &mut self.running
            {
                member.ahead -= 1;
                member.reached = Some(phase);
                running.missing -= 1;
            }
        }
        self.set_deadline();
    }

    fn order(&mut self, to: StreamId, phase: Phase) {
        self.effects.push(Effect::Order {
            to,
            phase,
            version: self.version,
            handover: false,
        });
    }
}

#[cfg(test)]
mod tests;
