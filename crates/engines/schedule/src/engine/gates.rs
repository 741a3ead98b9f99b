//! Limits on triggers in flight, which hosts announce for the actor types of their app.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{HostId, Target};
use crate::shard::Shard;

/// A property that jobs under one limit share, such as the name of an activity.
pub type Key = Arc<String>;

/// The triggers in flight that a limit counts: those of a target, or those of one key of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Gate {
    /// The actor type.
    pub target: Arc<Target>,
    /// The key; `None` means all jobs of the target.
    pub key: Option<Key>,
}

/// A limit on the triggers in flight over all members of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The jobs that count.
    pub gate: Gate,
    /// The maximum.
    pub most: usize,
}

/// The state of a limit at this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateCounts {
    /// Triggers in flight.
    pub in_flight: usize,
    /// Due jobs that wait.
    pub waiting: usize,
    /// Jobs that became due while the limit was full, since it exists.
    pub throttled: u64,
}

/// The limits of connected hosts. If several hosts announce one, the newest value holds.
#[derive(Debug)]
pub(super) struct Gates {
    announced: HashMap<Gate, Announced>,
    by_host: HashMap<HostId, HashSet<Gate>>,
    shard: Shard,
}

#[derive(Debug, Default)]
struct Announced {
    most: usize,
    hosts: usize,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            announced: HashMap::new(),
            by_host: HashMap::new(),
            shard: Shard::ALL,
        }
    }
}

impl Gates {
    /// Adds the limits of a host; returns those of this member.
    pub(super) fn announce(&mut self, host: HostId, limits: Vec<Limit>) -> Vec<(Gate, usize)> {
        let mut gates = HashSet::new();
        for Limit { gate, most } in limits {
            let announced = self.announced.entry(gate.clone()).or_default();
            announced.most = most;
            announced.hosts += usize::from(gates.insert(gate));
        }
        let of_host = gates.iter().filter_map(|gate| {
            let most = self.announced.get(gate)?.most;
            Some((gate.clone(), self.shard.part_of(most)))
        });
        let of_host = of_host.collect();
        if !gates.is_empty() {
            self.by_host.insert(host, gates);
        }
        of_host
    }

    /// Removes the limits of a host; returns those that no other host announces.
    pub(super) fn withdraw(&mut self, host: HostId) -> Vec<Gate> {
        let mut gone = Vec::new();
        for gate in self.by_host.remove(&host).unwrap_or_default() {
            let Some(announced) = self.announced.get_mut(&gate) else {
                continue;
            };
            announced.hosts -= 1;
            if announced.hosts == 0 {
                self.announced.remove(&gate);
                gone.push(gate);
            }
        }
        gone
    }

    /// Sets this member's place in the group; returns all limits of this member.
    pub(super) fn share(&mut self, shard: Shard) -> Vec<(Gate, usize)> {
        self.shard = shard;
        self.announced
            .iter()
            .map(|(gate, announced)| (gate.clone(), shard.part_of(announced.most)))
            .collect()
    }
}
