//! The connection of a host to placement: how it is lost, and how the host reacts.

use super::hosts::{Cut, SEARCH_INTERVAL, SILENCE_AT_PLACEMENT, WaitsFor};
use super::*;

/// Drain time after the stream to placement is lost.
const REVOKE_TIMEOUT: Duration = Duration::from_millis(500);
/// By then all actors have ended, plus the time that they take to end.
const ENDED: Duration = Duration::from_millis(600);
/// Ping interval of placement and hosts.
const PING: Duration = Duration::from_secs(2);
/// A host considers itself isolated after this long without a ping; placement waits longer.
const SILENCE: Duration = Duration::from_secs(4);

impl World {
    /// A host closes its stream and stops everything that depends on the table.
    pub(super) fn lose(&mut self, host: usize) {
        let delay = self.delay();
        if let Some(stream) = self.hosts[host].stream {
            self.streams.remove(&stream);
            self.after(delay, Event::Left(stream));
        }
        self.close(host);
    }

    /// The leader closed a host's stream. A host with handover continues while there is no leader; a living
    /// leader has given its actors away.
    pub(super) fn lost(&mut self, host: usize) {
        let nobody_leads = self.namespace.is_none();
        let member = &mut self.hosts[host];
        let steady = self.handover
            && member.hands_over
            && member.is_open
            && member.waits == WaitsFor::Nothing
            && member.dissemination.is_over();
        if steady && member.is_up && !member.leaving && nobody_leads {
            (member.stream, member.alone) = (None, true);
            let life = member.life;
            return self.after(SEARCH_INTERVAL, Event::Connect(host, life));
        }
        self.close(host);
    }

    pub(super) fn unreached(&mut self, host: usize, life: u32) {
        if self.hosts[host].life == life && self.hosts[host].alone {
            self.close(host);
        }
    }

    /// A host has lost its stream: it starts no calls, and ends running calls and all actors.
    pub(super) fn close(&mut self, host: usize) {
        let member = &mut self.hosts[host];
        if member.is_up {
            (member.stream, member.is_open, member.alone) = (None, false, false);
            self.begin_wait(host, WaitsFor::Close, REVOKE_TIMEOUT);
        }
    }

    /// The connection flaps. Placement notices when this host has stopped its actors, or by the timeout: the
    /// host may be back before and is then listed twice.
    pub(super) fn flap(&mut self, host: usize, life: u32, times: u32) {
        let member = &self.hosts[host];
        if times == 0 || member.life != life || !member.is_up || member.cut != Cut::Nobody {
            return;
        }
        if let Some(stream) = member.stream {
            let notice = self.random.random_range(ENDED..SILENCE_AT_PLACEMENT);
            self.streams.remove(&stream);
            self.after(notice, Event::Left(stream));
            self.close(host);
            self.counts.flaps += 1;
        }
        let pause = Duration::from_millis(self.random.random_range(20..1500));
        self.after(pause, Event::Flap(host, life, times - 1));
    }

    /// Neither side receives from the other.
    pub(super) fn cut_off(&mut self, host: usize, cut: Cut) {
        if self.hosts[host].alone && self.hosts[host].stream.is_none() {
            self.hosts[host].cut = cut;
            let heals = Duration::from_millis(self.random.random_range(8_000..20_000));
            return self.after(heals, Event::Heal(host));
        }
        let Some(stream) = self.hosts[host].stream.filter(|_| self.namespace.is_some()) else {
            return;
        };
        let last_heard = PING.mul_f64(self.random.random());
        let member = &mut self.hosts[host];
        member.cut = cut;
        let life = member.life;
        self.after(SILENCE - last_heard, Event::Silence(host, life));
        self.after(SILENCE_AT_PLACEMENT - last_heard, Event::Left(stream));
        let heals = Duration::from_millis(self.random.random_range(8_000..20_000));
        self.after(heals, Event::Heal(host));
    }

    pub(super) fn silence(&mut self, host: usize, life: u32) {
        if self.hosts[host].life == life {
            if let Some(stream) = self.hosts[host].stream {
                self.streams.remove(&stream);
            }
            self.close(host);
        }
    }

    pub(super) fn heal(&mut self, host: usize) {
        self.hosts[host].cut = Cut::Nobody;
    }
}
