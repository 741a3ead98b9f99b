//! Calls and their routing through the fleet.

use outrigger_actors::routes::Route;
use outrigger_actors::turns::Entry;

use super::hosts::{Cut, Wake};
use super::turns::Id;
use super::*;

/// Pause between attempts of a call that did not reach its actor.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    /// In transit, or waiting for a retry.
    Travels,
    AtGate,
    /// Waits for the next step of a dissemination.
    AtStep,
    /// Waits for its turn, or for the end of the actor.
    Queued,
    Runs,
    Done,
    Failed,
    /// Rejected: its turn is too deep.
    Refused,
    /// The caller gave up before the call began.
    GivenUp,
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) actor: u32,
    pub(super) from: usize,
    pub(super) at: usize,
    origin: Origin,
    pub(super) stage: Stage,
    pub(super) ticket: Option<Ticket>,
    /// Events for an earlier step are void.
    pub(super) step: u32,
    runs: u32,
    /// How often a host without handover interrupted it; the contract then retries the call.
    pub(super) cut: u32,
    /// Sequence number of its turn among those of the actor at this host.
    pub(super) turn: u64,
    /// The id of the turn that made it.
    pub(super) made_in: Option<Id>,
    /// The waiting call, at this step.
    pub(super) parent: Option<(usize, u32)>,
    /// The call that it waits for.
    pub(super) child: Option<usize>,
    /// The actors of the turns that it is part of, and its own.
    pub(super) chain: Vec<u32>,
    /// Calls that it may still make.
    pub(super) makes: u32,
    /// It takes as long as the calls that it waits for, or that are part of its turn.
    pub(super) is_long: bool,
    /// The timer that fired it.
    pub(super) timer: Option<usize>,
}

impl Call {
    pub(super) fn new(actor: u32, from: usize) -> Self {
        Self {
            actor,
            from,
            at: from,
            origin: Origin::Own,
            stage: Stage::Travels,
            ticket: None,
            step: 0,
            runs: 0,
            cut: 0,
            turn: 0,
            made_in: None,
            parent: None,
            child: None,
            chain: vec![actor],
            makes: 0,
            is_long: false,
            timer: None,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        use Stage::{Done, Failed, GivenUp, Refused};
        matches!(self.stage, Done | Failed | Refused | GivenUp)
    }

    /// It failed, and not because other calls took long.
    pub(super) fn has_failed(&self) -> bool {
        self.stage == Stage::Failed && !self.is_long
    }

    /// Whether the host waits for it before a table changes.
    pub(super) fn holds(&self, host: usize) -> bool {
        self.at == host && matches!(self.stage, Stage::Queued | Stage::Runs)
    }
}

impl World {
    pub(super) fn new_call(&mut self) {
        let pause = Duration::from_millis(self.random.random_range(0..400));
        if self.now + pause < TROUBLE {
            self.after(pause, Event::Call);
        }
        let up: Vec<_> = (0..self.hosts.len())
            .filter(|host| self.hosts[*host].is_well())
            .collect();
        if up.is_empty() {
            return;
        }
        let from = up[self.random.random_range(0..up.len())];
        let mut call = Call::new(self.random.random_range(0..ACTORS), from);
        if self.random.random_bool(0.2) {
            call.makes = self.random.random_range(1..4);
        }
        self.calls.push(call);
        let call = self.calls.len() - 1;
        if self.random.random_bool(0.05) {
            let limit = Duration::from_millis(self.random.random_range(0..500));
            self.after(limit, Event::GiveUp(call));
        }
        self.visit(call);
    }

    pub(super) fn stage(&mut self, number: usize, stage: Stage) {
        let call = &mut self.calls[number];
        call.stage = stage;
        call.step += 1;
        call.child = None;
        if call.is_over() {
            self.is_over(number);
        }
    }

    fn send(&mut self, call: usize, to: &str, origin: Origin) {
        let to = self
            .hosts
            .iter()
            .position(|host| *host.name == *to)
            .expect("a host");
        let (delay, from) = (self.delay(), self.calls[call].at);
        self.stage(call, Stage::Travels);
        self.after(delay, Event::Arrive(call, from, to, origin));
    }

    pub(super) fn arrive(&mut self, call: usize, from: usize, at: usize, origin: Origin) {
        if self.calls[call].is_over() {
            return;
        }
        let reached = self.hosts[at].is_up && [from, at].iter().all(|host| self.hosts[*host].cut != Cut::All);
        if !reached {
            return self.retry(call);
        }
        (self.calls[call].at, self.calls[call].origin) = (at, origin);
        self.visit(call);
    }

    /// Retries a call that did not begin, from its origin.
    pub(super) fn retry(&mut self, call: usize) {
        self.stage(call, Stage::Travels);
        self.after(RETRY, Event::Again(call));
    }

    pub(super) fn again(&mut self, call: usize) {
        let from = self.calls[call].from;
        if self.calls[call].is_over() {
            return;
        }
        if !self.hosts[from].is_up {
            return self.stage(call, Stage::Failed);
        }
        (self.calls[call].at, self.calls[call].origin) = (from, Origin::Own);
        self.visit(call);
    }

    /// Routes a call at a sidecar.
    pub(super) fn visit(&mut self, call: usize) {
        let Call {
            actor, at, origin, ..
        } = self.calls[call];
        if !self.hosts[at].is_open {
            return self.stage(call, Stage::AtGate);
        }
        let routes = self.hosts[at].routes.clone();
        match routes.route(origin, "T", &actor.to_string()) {
            Route::Local => {
                self.stage(call, Stage::Queued);
                match self.enter(call, true) {
                    None => self.stage(call, Stage::Refused),
                    Some(Entry::Turn(_, true)) => self.begin(call),
                    Some(Entry::Turn(_, false) | Entry::Ends) => {}
                    Some(Entry::Absent) => panic!("an actor that stays is there"),
                }
            }
            Route::Remote(host) => self.send(call, &host.address, Origin::Peer),
            Route::Forward(host, stamp) => {
                self.stage(call, Stage::Queued);
                match self.enter(call, false) {
                    None => self.stage(call, Stage::Refused),
                    Some(Entry::Turn(_, true)) => self.begin(call),
                    Some(Entry::Turn(_, false) | Entry::Ends) => {}
                    Some(Entry::Absent) => self.send(call, &host.address, Origin::Handed(stamp)),
                }
            }
            Route::Wait => self.stage(call, Stage::AtStep),
            Route::Moved | Route::NoHost => self.retry(call),
        }
    }

    fn begin(&mut self, call: usize) {
        self.stage(call, Stage::Runs);
        let Call { actor, at, .. } = self.calls[call];
        let before = self.active.insert(actor, at);
        let only = before.is_none_or(|before| before == at);
        assert!(
            only,
            "actor {actor} begins at {at} and is at {before:?}, {:?}",
            self.now
        );
        self.check_begins(call);
        let call_state = &mut self.calls[call];
        call_state.runs += 1;
        assert_eq!(call_state.runs, 1 + call_state.cut, "call {call} ran before");
        let step = call_state.step;
        let length = match self.hosts[at].slow && self.random.random_bool(0.2) {
            true => Duration::from_millis(self.random.random_range(0..6000)),
            false => Duration::from_micros(self.random.random_range(100..30_000)),
        };
        self.after(length, Event::TurnEnds(call, step));
        self.may_register_timer(at, actor);
    }

    pub(super) fn turn_ends(&mut self, call: usize, step: u32) {
        if self.calls[call].step != step || self.calls[call].child.is_some() {
            return;
        }
        match self.next_of_turn(call) {
            Some(actor) => self.call_within(call, actor),
            None => self.leave_turn(call, Stage::Done),
        }
    }

    /// The caller of a call gives up.
    pub(super) fn give_up(&mut self, call: usize) {
        if self.calls[call].is_over() {
            return;
        }
        match self.calls[call].stage {
            // It continues without a caller.
            Stage::Runs => self.tell_parent(call),
            _ => self.leave_turn(call, Stage::GivenUp),
        }
    }

    /// Ends a call's part in the turns of its actor.
    pub(super) fn leave_turn(&mut self, call: usize, stage: Stage) {
        self.stage(call, stage);
        let Call { actor, at, .. } = self.calls[call];
        if let Some(ticket) = self.calls[call].ticket.take() {
            let woken = self.hosts[at].shard.leave(&actor.to_string(), ticket, self.now);
            self.wake(at, woken);
        }
        self.look(at);
    }

    pub(super) fn wake(&mut self, host: usize, woken: Vec<Wake>) {
        for wake in woken {
            match wake {
                Wake::Call(call, step) if self.calls[call].step == step => {
                    match self.calls[call].ticket {
                        Some(_) => self.begin(call),
                        // The actor has ended here.
                        None => self.visit(call),
                    }
                }
                Wake::Call(..) => {}
                Wake::Last(actor, life) => self.end_actor(host, life, actor),
            }
        }
    }

    /// Routes the calls again that wait at a host in a stage.
    pub(super) fn revisit(&mut self, host: usize, stage: Stage) {
        for call in 0..self.calls.len() {
            if self.calls[call].at == host && self.calls[call].stage == stage {
                self.visit(call);
            }
        }
    }

    /// Cancels running calls of a host; calls that did not begin are routed again. `concerned`: calls of
    /// these actors.
    pub(super) fn cancel(&mut self, host: usize, concerned: impl Fn(u32) -> bool) {
        let calls: Vec<_> = (0..self.calls.len())
            .filter(|call| self.calls[*call].holds(host) && concerned(self.calls[*call].actor))
            .collect();
        let (running, queued): (Vec<_>, Vec<_>) = calls
            .into_iter()
            .partition(|call| self.calls[*call].stage == Stage::Runs);
        for call in &queued {
            self.leave_turn(*call, Stage::AtGate);
        }
        for call in running {
            if self.hosts[host].hands_over {
                self.leave_turn(call, Stage::Failed);
            } else {
                self.calls[call].cut += 1;
                self.leave_turn(call, Stage::Travels);
                self.retry(call);
            }
        }
        for call in queued {
            self.visit(call);
        }
    }
}
