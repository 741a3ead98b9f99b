//! The circuit breaker: lets calls through, refuses them for a while after too many failures, then probes.

use std::fmt::{self, Display, Formatter};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::trip::{Counts, Trip};

/// Whether a breaker lets calls through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// A few calls pass, to find out whether the target is well again.
    HalfOpen,
    /// Calls are refused.
    Open,
}

impl BreakerState {
    /// The name in logs and metrics: `closed`, `half-open`, `open`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

impl Display for BreakerState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A breaker went from one state to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateChange {
    /// The state it left.
    pub from: BreakerState,
    /// The state it entered.
    pub to: BreakerState,
}

/// Why a call is refused. Never retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BreakerError {
    /// The breaker is open.
    #[error("circuit breaker is open")]
    Open,
    /// The breaker is half-open and enough calls are probing already.
    #[error("too many requests")]
    TooManyRequests,
}

/// How a breaker behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct BreakerSpec {
    /// Name of the policy.
    pub name: String,
    /// Calls let through while half-open, and successes in a row that close it; 0 counts as 1.
    pub max_requests: u32,
    /// While closed, counters start anew after this time; `None`: never.
    pub interval: Option<Duration>,
    /// Time from open to half-open.
    pub timeout: Duration,
    /// The condition under which it opens.
    pub trip: Trip,
}

impl BreakerSpec {
    /// Default time from open to half-open.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

    /// A policy with default values: one probe, no interval, 60 s, more than five failures in a row.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            max_requests: 1,
            interval: None,
            timeout: Self::DEFAULT_TIMEOUT,
            trip: Trip::consecutive_failures(5),
        }
    }
}

/// The right to make one call; give it back with [`Breaker::record`].
#[derive(Debug)]
#[must_use = "the outcome must be recorded"]
pub struct Permit {
    generation: u64,
    /// The breaker became half-open to let this call through.
    pub change: Option<StateChange>,
}

/// One breaker instance, shared by all calls under its key.
#[derive(Debug)]
pub struct Breaker {
    name: String,
    spec: BreakerSpec,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    state: BreakerState,
    /// Results of calls that were let through in an earlier generation are ignored.
    generation: u64,
    counts: Counts,
    expiry: Option<Instant>,
}

impl Breaker {
    /// A closed breaker. `name` is what logs call it.
    pub fn new(name: String, spec: BreakerSpec, now: Instant) -> Self {
        let spec = BreakerSpec {
            max_requests: spec.max_requests.max(1),
            ..spec
        };
        let mut state = State {
            state: BreakerState::Closed,
            generation: 0,
            counts: Counts::default(),
            expiry: None,
        };
        state.enter(&spec, BreakerState::Closed, now);
        Self {
            name,
            spec,
            state: Mutex::new(state),
        }
    }

    /// The settings of the breaker.
    pub const fn spec(&self) -> &BreakerSpec {
        &self.spec
    }

    /// The name in logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The state as a call made now would find it.
    pub fn state(&self, now: Instant) -> BreakerState {
        let state = self.lock();
        if state.state == BreakerState::Open && state.expired(now) {
            BreakerState::HalfOpen
        } else {
            state.state
        }
    }

    /// Asks for the right to make a call.
    ///
    /// # Errors
    /// The breaker is open, or half-open with enough calls under way.
    pub fn allow(&self, now: Instant) -> Result<Permit, BreakerError> {
        let mut state = self.lock();
        let change = state.advance(&self.spec, now);
        match state.state {
            BreakerState::Open => return Err(BreakerError::Open),
            BreakerState::HalfOpen if state.counts.requests >= self.spec.max_requests => {
                return Err(BreakerError::TooManyRequests);
            }
            BreakerState::HalfOpen | BreakerState::Closed => {}
        }
        state.counts.requests = state.counts.requests.saturating_add(1);
        Ok(Permit {
            generation: state.generation,
            change,
        })
    }

    /// Reports how a call went; returns the change of state it caused, if any.
    pub fn record(&self, permit: Permit, success: bool, now: Instant) -> Option<StateChange> {
        let mut state = self.lock();
        let waited = state.advance(&self.spec, now);
        if permit.generation != state.generation {
            return waited;
        }
        let next = if success {
            state.succeed(&self.spec)
        } else {
            state.fail(&self.spec)
        };
        next.map(|to| {
            let from = state.state;
            state.enter(&self.spec, to, now);
            StateChange { from, to }
        })
    }

    /// Takes back the right to make a call that was not made, or that says nothing about who is called.
    pub fn release(&self, permit: Permit) {
        let mut state = self.lock();
        if permit.generation == state.generation {
            state.counts.requests = state.counts.requests.saturating_sub(1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every statement, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn expired(&self, now: Instant) -> bool {
        self.expiry.is_some_and(|expiry| expiry < now)
    }

    /// Applies the passing of time.
    fn advance(&mut self, spec: &BreakerSpec, now: Instant) -> Option<StateChange> {
        if !self.expired(now) {
            return None;
        }
        let from = self.state;
        let to = if from == BreakerState::Open {
            BreakerState::HalfOpen
        } else {
            from
        };
        self.enter(spec, to, now);
        (from != to).then_some(StateChange { from, to })
    }

    fn enter(&mut self, spec: &BreakerSpec, state: BreakerState, now: Instant) {
        self.state = state;
        self.generation = self.generation.wrapping_add(1);
        self.counts = Counts::default();
        self.expiry = match state {
            BreakerState::Closed => spec.interval.and_then(|interval| now.checked_add(interval)),
            BreakerState::Open => now.checked_add(spec.timeout),
            BreakerState::HalfOpen => None,
        };
    }

    fn succeed(&mut self, spec: &BreakerSpec) -> Option<BreakerState> {
        let counts = &mut self.counts;
        counts.total_successes = counts.total_successes.saturating_add(1);
        counts.consecutive_successes = counts.consecutive_successes.saturating_add(1);
        counts.consecutive_failures = 0;
        let closes =
            self.state == BreakerState::HalfOpen && self.counts.consecutive_successes >= spec.max_requests;
        closes.then_some(BreakerState::Closed)
    }

    fn fail(&mut self, spec: &BreakerSpec) -> Option<BreakerState> {
        let counts = &mut self.counts;
        counts.total_failures = counts.total_failures.saturating_add(1);
        counts.consecutive_failures = counts.consecutive_failures.saturating_add(1);
        counts.consecutive_successes = 0;
        let opens = self.state == BreakerState::HalfOpen || spec.trip.fires(&self.counts);
        opens.then_some(BreakerState::Open)
    }
}

#[cfg(test)]
mod tests;
