//! The circuit breaker: after too many failures it rejects calls for a while, then probes.

use std::fmt::{self, Display, Formatter};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::trip::{Counts, Trip};

/// State of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// A few calls pass, to probe whether the target has recovered.
    HalfOpen,
    /// Calls are rejected.
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

/// A state change of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateChange {
    /// The previous state.
    pub from: BreakerState,
    /// The new state.
    pub to: BreakerState,
}

/// Why a call is rejected. Never retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BreakerError {
    /// The breaker is open.
    #[error("circuit breaker is open")]
    Open,
    /// The breaker is half-open and has enough probes in flight.
    #[error("too many requests")]
    TooManyRequests,
}

/// Settings of a breaker.
#[derive(Debug, Clone, PartialEq)]
pub struct BreakerSpec {
    /// Name of the policy.
    pub name: String,
    /// Calls permitted while half-open, and consecutive successes that close it; 0 means 1.
    pub max_requests: u32,
    /// Interval at which the counts are reset while closed; `None` means never.
    pub interval: Option<Duration>,
    /// Time from open to half-open.
    pub timeout: Duration,
    /// The condition that opens it.
    pub trip: Trip,
}

impl BreakerSpec {
    /// Default time from open to half-open.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

    /// A policy with default values: one probe, no interval, 60 s, more than five consecutive failures.
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

/// Permission for one call; return it with [`Breaker::record`].
#[derive(Debug)]
#[must_use = "the outcome must be recorded"]
pub struct Permit {
    generation: u64,
    /// The breaker became half-open to permit this call.
    pub change: Option<StateChange>,
}

/// A breaker instance, shared by all calls with its key.
#[derive(Debug)]
pub struct Breaker {
    name: String,
    spec: BreakerSpec,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    state: BreakerState,
    /// Outcomes of calls from an earlier generation are ignored.
    generation: u64,
    counts: Counts,
    expiry: Option<Instant>,
}

impl Breaker {
    /// A closed breaker. `name` is its name in logs.
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

    /// The state for a call at `now`.
    pub fn state(&self, now: Instant) -> BreakerState {
        let state = self.lock();
        if state.state == BreakerState::Open && state.expired(now) {
            BreakerState::HalfOpen
        } else {
            state.state
        }
    }

    /// Requests permission for a call.
    ///
    /// # Errors
    /// The breaker is open, or half-open with enough probes in flight.
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

    /// Records the outcome of a call; returns the resulting state change, if any.
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

    /// Returns the permission for a call that was not made, or whose outcome says nothing about the target.
    pub fn release(&self, permit: Permit) {
        let mut state = self.lock();
        if permit.generation == state.generation {
            state.counts.requests = state.counts.requests.saturating_sub(1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every statement, so poisoning is harmless.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn expired(&self, now: Instant) -> bool {
        self.expiry.is_some_and(|expiry| expiry < now)
    }

    /// Applies elapsed time.
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
