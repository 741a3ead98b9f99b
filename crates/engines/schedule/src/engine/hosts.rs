use std::collections::HashMap;
use std::sync::Arc;

use super::{Key, Limit, Name, Target, TriggerId, UnknownTrigger};

/// ID of a connected host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(u64);

/// A host and the targets it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    targets: Vec<Target>,
    pub(super) limits: Vec<Limit>,
}

impl Host {
    /// A host of an app that serves its jobs, if `takes_jobs`, and reminders of these actor types.
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
        Self {
            targets,
            limits: Vec::new(),
        }
    }

    /// The same host, with limits on triggers in flight; each is at least 1.
    #[must_use]
    pub fn limited(mut self, limits: Vec<Limit>) -> Self {
        self.limits = limits;
        self
    }

    /// Its namespace; `None` if it serves nothing.
    fn namespace(&self) -> Option<&Arc<str>> {
        self.targets.first().map(Target::namespace)
    }

    /// The apps and actor types that it serves.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }
}

/// A trigger in flight.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) target: Arc<Target>,
    pub(super) key: Option<Key>,
    /// The job; `None` if it was changed or deleted.
    pub(super) name: Option<Name>,
}

#[derive(Debug)]
struct Connected {
    host: Host,
    next: TriggerId,
    under_way: HashMap<TriggerId, Unfinished>,
}

/// The connected hosts and their triggers in flight.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    connected: HashMap<HostId, Connected>,
    by_target: HashMap<Target, Ring>,
    sent: HashMap<Name, (HostId, TriggerId)>,
    /// Number of hosts per namespace.
    namespaces: HashMap<Arc<str>, usize>,
    next: u64,
    in_flight: usize,
}

/// Hosts that serve the same target, in round-robin order.
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

    /// Number of namespaces with hosts.
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

    /// Removes a host; returns its unanswered triggers in the order they were sent.
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
        for name in unanswered
            .iter()
            .filter_map(|(_, under_way)| under_way.name.as_ref())
        {
            self.sent.remove(name);
        }
        unanswered.into_iter().map(|(_, under_way)| under_way).collect()
    }

    /// Selects the next host in turn and records the trigger; `None` if no host serves the target.
    pub(super) fn send(
        &mut self,
        target: &Arc<Target>,
        key: Option<&Key>,
        name: &Name,
    ) -> Option<(HostId, TriggerId)> {
        let host = self.by_target.get_mut(&**target)?.next()?;
        let connected = self.connected.get_mut(&host)?;
        let trigger = connected.next;
        connected.next += 1;
        let under_way = Unfinished {
            target: Arc::clone(target),
            key: key.cloned(),
            name: Some(Arc::clone(name)),
        };
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
        if let Some(name) = &under_way.name {
            self.sent.remove(name);
        }
        Ok(under_way)
    }

    /// Ignores the answer to a job's trigger from now on.
    pub(super) fn forget(&mut self, name: &str) {
        let Some((host, trigger)) = self.sent.remove(name) else {
            return;
        };
        if let Some(connected) = self.connected.get_mut(&host)
            && let Some(under_way) = connected.under_way.get_mut(&trigger)
        {
            under_way.name = None;
        }
    }

    /// Ignores all answers to triggers in flight.
    pub(super) fn forget_all(&mut self) {
        self.sent.clear();
        for connected in self.connected.values_mut() {
            connected
                .under_way
                .values_mut()
                .for_each(|under_way| under_way.name = None);
        }
    }

    /// Whether an answer to a trigger in flight still matters.
    pub(super) fn awaits(&self) -> bool {
        !self.sent.is_empty()
    }
}
