//! Dissemination of the table of one namespace, in three phases, without I/O.
//!
//! Each change of the hosts is disseminated to all streams: they are locked, get the table, and are unlocked.
//! A phase starts when all hosts have acknowledged the previous one. An acknowledged `update` means that the
//! host has ended the actors that move away, so no two hosts have the same actor.
//!
//! - A stream that ends during the lock phase is left out of the table, which has not been sent yet.
//! - Other changes wait for the end of the dissemination, and for the coalesce window after it, and are batched
//!   into the next one.
//! - Each report that changes the table increases the version, as with Dapr, even if it is batched with
//!   others.
//! - If all hosts support handover, the dissemination is marked so: hosts stop and delay only actors that move.
//! - A stream without actors changes nothing and gets the current table alone.
//! - A new leader starts with a pause: see [`SETTLE`].
//! - A stream that exceeds the timeout, over all phases of a dissemination, is dropped and the others
//!   continue. Delays of other streams do not count against it.
//!
//! The caller provides the time and performs the [`Effect`]s, in order.

mod protocol;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outrigger_wire::placement::v1::Host;

pub(crate) use protocol::{Effect, Message, Phase, StreamId, Time};

/// A leader that may follow another one starts its first dissemination after this time. Hosts that kept their
/// actors without a leader report first. By the end, hosts that cannot reach the new leader have stopped: a
/// host cut off from the old leader stops its actors within 4.5 s, and a new leader is elected after 2 s at
/// the earliest.
pub(crate) const SETTLE: Duration = Duration::from_millis(2750);

/// Settings of all namespaces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Time to answer a dissemination.
    pub(crate) timeout: Duration,
    /// Pause after a dissemination; changes within it are batched.
    pub(crate) window: Duration,
    /// Sent to sidecars with each table.
    pub(crate) replication_factor: i64,
    /// Whether hosts may hand actors over.
    pub(crate) handover: bool,
}

/// The hosts of a namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    rules: Rules,
    members: BTreeMap<StreamId, Member>,
    /// Streams that wait for their first dissemination.
    waiting: BTreeMap<StreamId, Waiting>,
    version: u64,
    published: Option<u64>,
    running: Option<Dissemination>,
    /// The hosts differ from the published table.
    changed: bool,
    /// Reports that changed the table since the last dissemination, including first reports.
    reports: u64,
    /// When the next dissemination starts.
    due: Option<Time>,
    /// `due` is for a dissemination, not only for streams without actors that joined before [`SETTLE`].
    wanted: bool,
    /// Earliest start of the next dissemination.
    rest_until: Time,
    /// The end of [`SETTLE`].
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
    /// Phases of its first dissemination that it acknowledged early, by repeating its report without an
    /// operation. A new leader delays its first dissemination, but hosts before 1.17 do not wait.
    ahead: usize,
    /// The published table has actors of this host.
    listed: bool,
    /// The previous table had actors of this host, the published one has none.
    leaving: bool,
    /// The last phase it acknowledged.
    reached: Option<Phase>,
    /// When the current phase was ordered.
    asked: Time,
    /// Time it took to acknowledge the previous phases.
    spent: Duration,
}

#[derive(Debug)]
struct Dissemination {
    phase: Phase,
    opened: Time,
    /// The earliest deadline of a member.
    deadline: Time,
    /// Members that have not acknowledged the phase.
    missing: usize,
    /// All members support handover.
    handover: bool,
}

impl Member {
    /// When it is dropped, unless it answers.
    fn deadline(&self, timeout: Duration) -> Time {
        self.asked + timeout.saturating_sub(self.spent)
    }
}

/// Whether the table includes a host.
fn has_actors(host: &Host) -> bool {
    !host.entities.is_empty()
}

/// Whether replacing report `old` with `new` changes the table.
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
    /// An empty namespace. No dissemination starts before `settled_at`.
    pub(crate) fn new(rules: Rules, settled_at: Time) -> Self {
        Self {
            rules,
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

    /// A stream joins with its first report, whose entities are sorted.
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

    /// Handles a message of a stream; messages of unknown streams are ignored.
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

    /// A stream has ended.
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
                // The table is built after the lock phase.
                Some(running) if running.phase == Phase::Lock => {}
                Some(_) => self.changed = true,
                None => self.request(now),
            }
        }
        self.advance(now);
    }

    /// When to call [`Namespace::wake`] next.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.running.as_ref().map(|running| running.deadline).or(self.due)
    }

    /// Handles timeouts and due disseminations.
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

    /// Takes the pending effects.
    pub(crate) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The hosts of the table, in the order of their streams.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Arc<Host>> {
        self.members
            .values()
            .map(|member| &member.host)
            .filter(|host| has_actors(host))
    }

    /// The hosts that left with the last published table and still have their streams.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = &str> {
        let leaving = self.members.values().filter(|member| member.leaving);
        leaving.map(|member| member.host.name.as_str())
    }

    /// Version of the last dissemination.
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

    /// Schedules a dissemination, after the pause since the last one.
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
        let handover = self.rules.handover && self.members.values().all(|member| member.host.hands_over);
        self.running = Some(Dissemination {
            phase: Phase::Lock,
            opened: now,
            deadline: now + self.rules.timeout,
            missing: self.members.len(),
            handover,
        });
        for member in self.members.values_mut() {
            (member.reached, member.spent) = (None, Duration::ZERO);
        }
        self.order_all(now, Phase::Lock);
        self.advance(now);
    }

    /// Moves to the next phase while no acknowledgement is missing.
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
        self.rest_until = now + self.rules.window;
        self.tell_waiting(now);
        if self.changed || !self.waiting.is_empty() {
            self.request(now);
        }
    }

    /// Sends the current table to waiting streams without actors.
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

    /// Drops the streams that have exceeded the timeout.
    fn expire(&mut self, now: Time) {
        let Some(running) = &mut self.running else {
            return;
        };
        let (phase, timeout, version) = (running.phase, self.rules.timeout, self.version);
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
        if let Some(first) = missing.map(|member| member.deadline(self.rules.timeout)).min() {
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

    /// Sends the current table to one stream.
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
