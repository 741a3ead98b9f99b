//! Idle actors: hosts scan for them while calls are admitted, and deactivate a few at a time.

use super::hosts::Member;
use super::*;

/// Actors deactivated concurrently by a host.
const AT_ONCE: usize = 2;

impl Member {
    /// The next idle scan of a host, if it can deactivate any.
    fn next_look(&self) -> Option<Time> {
        let looks = self.is_up && self.is_open && self.idle.len() < AT_ONCE;
        looks.then(|| self.shard.next_look()).flatten()
    }
}

impl World {
    /// Schedules idle scans.
    pub(super) fn plan_looks(&mut self) {
        for host in 0..self.hosts.len() {
            let member = &self.hosts[host];
            let next = member.next_look().map(|at| at.max(self.now));
            if next.is_some() && (member.looks_at.is_none() || next < member.looks_at) {
                self.hosts[host].looks_at = next;
                self.at(next.unwrap_or_default(), Event::LooksForIdle(host));
            }
        }
    }

    pub(super) fn looks_for_idle(&mut self, host: usize) {
        let now = self.now;
        let member = &mut self.hosts[host];
        if member.looks_at != Some(now) {
            return;
        }
        member.looks_at = None;
        if member.next_look().is_none() {
            return;
        }
        let most = AT_ONCE - member.idle.len();
        let (life, found) = (member.life, member.shard.take_idle(now, most));
        assert!(found.len() <= most);
        for (id, ticket) in found {
            let actor = id.parse().expect("a number");
            self.check_ends(host, actor);
            let used = self.hosts[host].used.get(&actor).copied().unwrap_or_default();
            // The engine counts milliseconds.
            let left_alone = now - used + Duration::from_millis(1);
            assert!(
                left_alone >= self.idle,
                "actor {actor} was used {left_alone:?} ago"
            );
            let is_ending = self.hosts[host].halting.contains(&actor);
            let before = self.hosts[host].idle.insert(actor, ticket);
            assert!(before.is_none() && !is_ending, "actor {actor} ends already");
            let time = match self.hosts[host].slow && self.random.random_bool(0.3) {
                true => Duration::from_millis(self.random.random_range(0..2000)),
                false => Duration::from_micros(self.random.random_range(0..5000)),
            };
            self.after(time, Event::IdleEnded(host, life, actor, ticket));
        }
    }

    /// The app has deactivated an idle actor.
    pub(super) fn idle_ended(&mut self, host: usize, life: u32, actor: u32, ticket: Ticket) {
        let member = &mut self.hosts[host];
        if member.life != life || member.idle.get(&actor) != Some(&ticket) {
            return;
        }
        member.idle.remove(&actor);
        self.counts.rested += 1;
        self.active.remove(&actor);
        let woken = member.shard.deactivated(&actor.to_string(), ticket, self.now);
        self.wake(host, woken);
        self.look(host);
    }

    /// A table changes: idle actors being deactivated stay for now.
    pub(super) fn stay_idle(&mut self, host: usize) {
        for (actor, ticket) in std::mem::take(&mut self.hosts[host].idle) {
            let woken = self.hosts[host].shard.leave(&actor.to_string(), ticket, self.now);
            self.wake(host, woken);
        }
    }

    /// All actors idle for long enough have ended.
    pub(super) fn check_idle(&self) {
        for host in self.hosts.iter().filter(|host| host.is_up && host.is_open) {
            let left = host.shard.len();
            assert!(
                self.idle == Duration::MAX || left == 0,
                "{} has {left} actors",
                host.name
            );
        }
    }
}
