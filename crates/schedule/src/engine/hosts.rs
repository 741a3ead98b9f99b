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

    /// What it takes.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }
}

#[derive(Debug)]
struct Connected {
    host: Host,
    next: TriggerId,
    /// `None`: the job of that trigger was changed or deleted.
    under_way: HashMap<TriggerId, Option<Name>>,
}

/// Which hosts there are, and what they have not answered.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    connected: HashMap<HostId, Connected>,
    by_target: HashMap<Target, Ring>,
    sent: HashMap<Name, (HostId, TriggerId)>,
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

    pub(super) fn add(&mut self, host: Host) -> HostId {
        let id = HostId(self.next);
        self.next += 1;
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
    pub(super) fn remove(&mut self, id: HostId) -> Vec<Name> {
        let Some(gone) = self.connected.remove(&id) else {
            return Vec::new();
        };
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
        let names: Vec<Name> = unanswered.into_iter().filter_map(|(_, name)| name).collect();
        for name in &names {
            self.sent.remove(name);
        }
        names
    }

    /// Chooses the host whose turn it is, and notes the trigger; `None` when no host takes the target.
    pub(super) fn send(&mut self, target: &Target, name: &Name) -> Option<(HostId, TriggerId)> {
        let host = self.by_target.get_mut(target)?.next()?;
        let connected = self.connected.get_mut(&host)?;
        let trigger = connected.next;
        connected.next += 1;
        connected.under_way.insert(trigger, Some(Arc::clone(name)));
        self.sent.insert(Arc::clone(name), (host, trigger));
        self.in_flight += 1;
        Some((host, trigger))
    }

    /// Ends a trigger; `None` when its job was changed or deleted meanwhile.
    pub(super) fn finish(
        &mut self,
        host: HostId,
        trigger: TriggerId,
    ) -> Result<Option<Name>, UnknownTrigger> {
        let unknown = UnknownTrigger(trigger);
        let connected = self.connected.get_mut(&host).ok_or(unknown)?;
        let name = connected.under_way.remove(&trigger).ok_or(unknown)?;
        self.in_flight -= 1;
        if let Some(name) = &name {
            self.sent.remove(name);
        }
        Ok(name)
    }

    /// The answer to a job's trigger does not matter any more.
    pub(super) fn forget(&mut self, name: &str) {
        let Some((host, trigger)) = self.sent.remove(name) else {
            return;
        };
        if let Some(connected) = self.connected.get_mut(&host)
            && let Some(under_way) = connected.under_way.get_mut(&trigger)
        {
            *under_way = None;
        }
    }

    /// No answer to what is under way matters any more.
    pub(super) fn forget_all(&mut self) {
        self.sent.clear();
        for connected in self.connected.values_mut() {
            connected.under_way.values_mut().for_each(|name| *name = None);
        }
    }

    /// Whether the answer to something that is under way still matters.
    pub(super) fn awaits(&self) -> bool {
        !self.sent.is_empty()
    }
}
