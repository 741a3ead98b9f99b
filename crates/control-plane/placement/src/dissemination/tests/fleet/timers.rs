//! Timers, in the memory of the host at which an actor registered them, and lost with it. A due timer is a
//! call, wherever the actor lives by then.

use jiff::{SignedDuration, Timestamp};
use outrigger_actors::recurrence::Recurrence;

use super::*;

pub(super) struct Timer {
    host: usize,
    life: u32,
    actor: u32,
    /// `None` when it is over.
    times: Option<Recurrence>,
    /// Expected due times, in order.
    expected: Vec<Time>,
    due: usize,
}

/// Simulation time as a timestamp.
fn clock(time: Time) -> Timestamp {
    let since = SignedDuration::try_from(time).expect("a short time");
    Timestamp::UNIX_EPOCH + since
}

impl World {
    pub(super) fn may_register_timer(&mut self, host: usize, actor: u32) {
        if self.random.random_bool(0.97) {
            return;
        }
        let milliseconds = self.random.random_range(0..2000_u64);
        let (every, times) = (
            self.random.random_range(1..4_u64),
            self.random.random_range(1..5_u32),
        );
        // As long as some of its repetitions, or unlimited.
        let lasts = self.random.random_range(1..20_u64);
        let ttl = if lasts < 10 {
            format!("{lasts}s")
        } else {
            String::new()
        };
        let period = format!("R{times}/PT{every}S");
        let made = Recurrence::timer(&format!("{milliseconds}ms"), &period, &ttl, clock(self.now));
        let made = made.expect("times of a timer");
        let first = self.now + Duration::from_millis(milliseconds);
        let expected = (0..times)
            .map(|number| Duration::from_secs(every) * number)
            .filter(|after| ttl.is_empty() || after.is_zero() || *after < Duration::from_secs(lasts))
            .map(|after| first + after);
        let timer = Timer {
            host,
            life: self.hosts[host].life,
            actor,
            expected: expected.collect(),
            times: Some(made),
            due: 0,
        };
        self.timers.push(timer);
        self.plan_timer(self.timers.len() - 1);
    }

    fn plan_timer(&mut self, number: usize) {
        let timer = &self.timers[number];
        if let Some(times) = &timer.times {
            let wait = times.wait(clock(self.now));
            self.after(wait, Event::TimerDue(number));
        }
    }

    fn lives(&self, timer: &Timer) -> bool {
        let host = &self.hosts[timer.host];
        host.is_up && host.life == timer.life
    }

    pub(super) fn timer_due(&mut self, number: usize) {
        let timer = &self.timers[number];
        if !self.lives(timer) {
            return;
        }
        let (host, actor) = (timer.host, timer.actor);
        let expected = timer.expected.get(timer.due).copied();
        let due = timer.times.as_ref().map(Recurrence::next);
        assert!(expected.is_some(), "timer {number} is due too often");
        assert_eq!(expected.map(clock), due, "timer {number} is due at another time");
        assert!(expected <= Some(self.now), "timer {number} is due early");
        self.timers[number].due += 1;
        self.counts.timers += 1;
        let mut call = Call::new(actor, host);
        call.timer = Some(number);
        self.calls.push(call);
        self.visit(self.calls.len() - 1);
    }

    /// A timer's call succeeded or failed: it advances either way.
    pub(super) fn timer_ran(&mut self, number: usize) {
        let timer = &mut self.timers[number];
        timer.times = timer.times.take().and_then(Recurrence::passed);
        self.plan_timer(number);
    }

    /// Timers whose host is still up fired as requested.
    pub(super) fn check_timers(&self) {
        for (number, timer) in self.timers.iter().enumerate() {
            if self.lives(timer) {
                assert_eq!(
                    timer.due,
                    timer.expected.len(),
                    "timer {number} was due too seldom"
                );
                assert_eq!(timer.times, None, "timer {number} has no end");
            }
        }
    }
}
