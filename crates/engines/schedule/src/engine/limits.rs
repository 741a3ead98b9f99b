//! Limits on triggers in flight, which hosts announce for the actor types of their app.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{HostId, Target};
use crate::shard::Shard;

/// A property that jobs under one limit share, such as the name of an activity.
pub type Key = Arc<String>;

/// The triggers in flight that a limit counts: those of a target, or those of one key of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LimitScope {
    /// The actor type.
    pub target: Arc<Target>,
    /// The key; `None` means all jobs of the target.
    pub key: Option<Key>,
}

/// A limit on the triggers in flight over all members of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// The jobs that count.
    pub scope: LimitScope,
    /// The maximum.
    pub most: usize,
}

/// The state of a limit at this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitCounts {
    /// Triggers in flight.
    pub in_flight: usize,
    /// Due jobs that wait.
    pub waiting: usize,
    /// Jobs that became due while the limit was full, since it exists.
    pub throttled: u64,
}

/// The limits of connected hosts. If several hosts announce one, the newest value holds.
#[derive(Debug)]
pub(super) struct AnnouncedLimits {
    announced: HashMap<LimitScope, Announced>,
    by_host: HashMap<HostId, HashSet<LimitScope>>,
    shard: Shard,
}

#[derive(Debug, Default)]
struct Announced {
    most: usize,
    hosts: usize,
}

impl Default for AnnouncedLimits {
    fn default() -> Self {
        Self {
            announced: HashMap::new(),
            by_host: HashMap::new(),
            shard: Shard::ALL,
        }
    }
}

impl AnnouncedLimits {
    /// Adds the limits of a host; returns those of this member.
    pub(super) fn announce(&mut self, host: HostId, limits: Vec<Limit>) -> Vec<(LimitScope, usize)> {
        let mut scopes = HashSet::new();
        for Limit { scope, most } in limits {
            let announced = self.announced.entry(scope.clone()).or_default();
            announced.most = most;
            announced.hosts += usize::from(scopes.insert(scope));
        }
        let of_host = scopes.iter().filter_map(|scope| {
            let most = self.announced.get(scope)?.most;
            Some((scope.clone(), self.shard.part_of(most)))
        });
        let of_host = of_host.collect();
        if !scopes.is_empty() {
            self.by_host.insert(host, scopes);
        }
        of_host
    }

    /// Removes the limits of a host; returns those that no other host announces.
    pub(super) fn withdraw(&mut self, host: HostId) -> Vec<LimitScope> {
        let mut gone = Vec::new();
        for scope in self.by_host.remove(&host).unwrap_or_default() {
            let Some(announced) = self.announced.get_mut(&scope) else {
                continue;
            };
            announced.hosts -= 1;
            if announced.hosts == 0 {
                self.announced.remove(&scope);
                gone.push(scope);
            }
        }
        gone
    }

    /// Sets this member's place in the group; returns all limits of this member.
    pub(super) fn share(&mut self, shard: Shard) -> Vec<(LimitScope, usize)> {
        self.shard = shard;
        self.announced
            .iter()
            .map(|(scope, announced)| (scope.clone(), shard.part_of(announced.most)))
            .collect()
    }
}
