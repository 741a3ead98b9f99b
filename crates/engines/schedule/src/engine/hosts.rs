use std::collections::HashMap;
use std::sync::Arc;

use super::{Name, Target, TriggerId, UnknownTrigger};

/// A connected host's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(u64);

/// A host that connects, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    targets: Vec<Target>,
}

impl Host {
    /// A host of an app: of its jobs, if it takes those, and of reminders of these actor types.
    pub fn new(namespace: &str, app: &str, takes_jobs: bool, actor_types: &[&str]) -> Self {
        let namespace: Arc<str> = namespace.into();
        let mut targets: Vec<Target> = actor_types
            .iter()
            .map(|name| Target::ActorType {
                namespace: Arc::clone(&namespace),
                name: (*name).into(),
            })
            .collect();
        if takes_jobs {
            targets.push(Target::App {
                namespace,
                id: app.into(),
            });
        }
        targets.sort_unstable();
        targets.dedup();
        Self { targets }
    }

    /// Where it lives; `None` where it takes nothing.
    fn namespace(&self) -> Option<&Arc<str>> {
        self.targets.first().map(Target::namespace)
    }

    /// The apps and actor types whose triggers it accepts.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }
}

/// Whose trigger it is, and of which job; `None`: that was changed or deleted.
pub(super) type Unfinished = (Arc<Target>, Option<Name>);

#[derive(Debug)]
struct Connected {
    host: Host,
    next: TriggerId,
    under_way: HashMap<TriggerId, Unfinished>,
}

/// Which hosts there are, and what they have not answered.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    connected: HashMap<HostId, Connected>,
    by_target: HashMap<Target, Ring>,
    sent: HashMap<Name, (HostId, TriggerId)>,
    /// How many hosts there are of each.
    namespaces: HashMap<Arc<str>, usize>,
    next: u64,
    in_flight: usize,
}

/// Hosts that take the same target, in turn.
#[derive(Debug, Default)]
struct Ring {
    hosts: Vec<HostId>,
    turn: usize,
}

impl Ring {
    fn next(&mut self) -> Option<HostId> {
        let at = self.turn.checked_rem(self.hosts.len())?;
        self.turn = at + 1;
        self.hosts.get(at).copied()
    }
}

impl Hosts {
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Namespaces that have hosts.
    pub(super) fn namespaces(&self) -> usize {
        self.namespaces.len()
    }

    pub(super) fn add(&mut self, host: Host) -> HostId {
        let id = HostId(self.next);
        self.next += 1;
        if let Some(namespace) = host.namespace() {
            *self.namespaces.entry(Arc::clone(namespace)).or_default() += 1;
        }
        for target in &host.targets {
            self.by_target.entry(target.clone()).or_default().hosts.push(id);
        }
        let connected = Connected {
            host,
            next: 1,
            under_way: HashMap::new(),
        };
        self.connected.insert(id, connected);
        id
    }

    /// Takes a host out; what it has not answered comes back, in the order it was sent.
    pub(super) fn remove(&mut self, id: HostId) -> Vec<Unfinished> {
        let Some(gone) = self.connected.remove(&id) else {
            return Vec::new();
        };
        if let Some(namespace) = gone.host.namespace()
            && let Some(hosts) = self.namespaces.get_mut(namespace)
        {
            *hosts -= 1;
            if *hosts == 0 {
                self.namespaces.remove(namespace);
            }
        }
        for target in &gone.host.targets {
            if let Some(ring) = self.by_target.get_mut(target) {
                ring.hosts.retain(|other| *other != id);
                if ring.hosts.is_empty() {
                    self.by_target.remove(target);
                }
            }
        }
        self.in_flight -= gone.under_way.len();
        let mut unanswered: Vec<_> = gone.under_way.into_iter().collect();
        unanswered.sort_unstable_by_key(|(trigger, _)| *trigger);
        for name in unanswered.iter().filter_map(|(_, (_, name))| name.as_ref()) {
            self.sent.remove(name);
        }
        unanswered.into_iter().map(|(_, under_way)| under_way).collect()
    }

    /// Chooses the host whose turn it is, and notes the trigger; `None` when no host takes the target.
    pub(super) fn send(&mut self, target: &Arc<Target>, name: &Name) -> Option<(HostId, TriggerId)> {
        let host = self.by_target.get_mut(&**target)?.next()?;
        let connected = self.connected.get_mut(&host)?;
        let trigger = connected.next;
        connected.next += 1;
        let under_way = (Arc::clone(target), Some(Arc::clone(name)));
        connected.under_way.insert(trigger, under_way);
        self.sent.insert(Arc::clone(name), (host, trigger));
        self.in_flight += 1;
        Some((host, trigger))
    }

    /// Ends a trigger.
    pub(super) fn finish(&mut self, host: HostId, trigger: TriggerId) -> Result<Unfinished, UnknownTrigger> {
        let unknown = UnknownTrigger(trigger);
        let connected = self.connected.get_mut(&host).ok_or(unknown)?;
        let under_way = connected.under_way.remove(&trigger).ok_or(unknown)?;
        self.in_flight -= 1;
        if let (_, Some(name)) = &under_way {
            self.sent.remove(name);
        }
        Ok(under_way)
    }

    /// The answer to a job's trigger does not matter any more.
    pub(super) fn forget(&mut self, name: &str) {
        let Some((host, trigger)) = self.sent.remove(name) else {
            return;
        };
        if let Some(connected) = self.connected.get_mut(&host)
            && let Some((_, job)) = connected.under_way.get_mut(&trigger)
        {
            *job = None;
        }
    }

    /// No answer to what is under way matters any more.
    pub(super) fn forget_all(&mut self) {
        self.sent.clear();
        for connected in self.connected.values_mut() {
            connected
                .under_way
                .values_mut()
                .for_each(|(_, name)| *name = None);
        }
    }

    /// Whether the answer to something that is under way still matters.
    pub(super) fn awaits(&self) -> bool {
        !self.sent.is_empty()
    }
}
