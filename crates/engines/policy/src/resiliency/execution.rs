//! A run of an operation under a policy, from the outside in: retry, breaker, timeout.
//!
//! The run only decides. The caller makes the attempts, enforces the timeout, sleeps, logs and counts:
//!
//! ```text
//! let mut run = policy.start(key, now);
//! loop {
//!     let timeout = run.before(now)?;                   // a rejection ends the run
//!     let outcome = call within timeout;
//!     let Some(pause) = run.after(outcome, now) else { break };
//!     sleep(pause);
//! }
//! for event in run.take_events() { log and count it }
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::breaker::{Breaker, BreakerError, BreakerState, Permit, StateChange};
use super::policy::{Key, Policy, PolicyRef};
use super::retry::RetryState;

/// Outcome of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Success,
    /// It failed, with the status code if the operation has one: HTTP 100-599 or gRPC 0-16.
    Failure {
        /// The code matched by retry policies.
        code: Option<i32>,
    },
    /// It exceeded its timeout.
    TimedOut,
    /// It failed and a retry would not help, or the request cannot be sent again. Counted by the breaker.
    Final,
    /// The request itself could not be read or sent, which says nothing about the target. Neither retried
    /// nor counted by the breaker.
    Unsendable,
}

impl Outcome {
    /// The outcome of an attempt whose request can or cannot be sent again. The breaker counts both alike.
    #[must_use]
    pub const fn if_repeatable(self, repeatable: bool) -> Self {
        match self {
            Self::Failure { .. } | Self::TimedOut if !repeatable => Self::Final,
            other => other,
        }
    }
}

/// An event to log or count.
#[derive(Debug, Clone)]
pub enum Event {
    /// The first timeout in this run. Counts as a `timeout` activation.
    TimeoutExpired,
    /// The first retry of this run. Counts as a `retry` activation; logged as a warning:
    /// `Error processing operation NAME. Retrying in D…`.
    RetryStarted {
        /// The pause before it.
        after: Duration,
    },
    /// A retried run succeeded; logged as info: `Recovered processing operation NAME after N attempts`.
    Recovered {
        /// Number of attempts.
        attempts: u32,
    },
    /// A breaker changed state; logged as info: `Circuit breaker "N" changed state from A to B`.
    BreakerChanged {
        /// The breaker.
        breaker: Arc<Breaker>,
        /// The state change.
        change: StateChange,
        /// Whether it counts as a `circuitbreaker` activation: the transition to half-open does not.
        counted: bool,
    },
}

/// A run. Dropping it during an attempt counts as a failure of that attempt.
#[derive(Debug)]
pub struct Execution<'p> {
    policy: PolicyRef<'p>,
    key: Key<'p>,
    breaker: Option<Arc<Breaker>>,
    retry: Option<RetryState>,
    /// Set during an attempt: its permit and start time.
    permit: Option<(Permit, Instant)>,
    attempts: u32,
    timeout_seen: bool,
    retry_seen: bool,
    events: Vec<Event>,
}

impl<'p> Execution<'p> {
    pub(super) fn new(
        policy: PolicyRef<'p>,
        key: Key<'p>,
        breaker: Option<Arc<Breaker>>,
        seed: u64,
        now: Instant,
    ) -> Self {
        Self {
            retry: policy.retry.as_ref().map(|spec| RetryState::new(spec, now, seed)),
            policy,
            key,
            breaker,
            permit: None,
            attempts: 0,
            timeout_seen: false,
            retry_seen: false,
            events: Vec::new(),
        }
    }

    /// Starts an attempt; returns its timeout.
    ///
    /// # Errors
    /// The breaker rejects it; the run is over.
    pub fn before(&mut self, now: Instant) -> Result<Option<Duration>, BreakerError> {
        if let Some(breaker) = &self.breaker {
            let permit = breaker.allow(now)?;
            if let Some(change) = permit.change {
                self.events.push(Event::BreakerChanged {
                    breaker: Arc::clone(breaker),
                    change,
                    counted: false,
                });
            }
            self.permit = Some((permit, now));
        }
        self.attempts = self.attempts.saturating_add(1);
        Ok(self.policy.timeout)
    }

    /// Ends an attempt; returns the pause before the next one, or `None` if the run is over.
    pub fn after(&mut self, outcome: Outcome, now: Instant) -> Option<Duration> {
        match outcome {
            Outcome::Unsendable => {
                if let (Some(breaker), Some((permit, _))) = (&self.breaker, self.permit.take()) {
                    breaker.release(permit);
                }
            }
            _ => self.record_outcome(outcome == Outcome::Success, now),
        }
        let code = match outcome {
            Outcome::Success => {
                if self.retry_seen {
                    self.events.push(Event::Recovered {
                        attempts: self.attempts,
                    });
                }
                return None;
            }
            Outcome::Final | Outcome::Unsendable => return None,
            Outcome::Failure { code } => code,
            Outcome::TimedOut => {
                if !std::mem::replace(&mut self.timeout_seen, true) {
                    self.events.push(Event::TimeoutExpired);
                }
                None
            }
        };
        let (state, spec) = (self.retry.as_mut()?, self.policy.retry.as_ref()?);
        let after = state.next_delay(spec, code, now)?;
        if !std::mem::replace(&mut self.retry_seen, true) {
            self.events.push(Event::RetryStarted { after });
        }
        Some(after)
    }

    /// Number of attempts so far.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Name of this operation in logs.
    pub fn operation(&self) -> String {
        self.policy.operation(self.key)
    }

    /// The policy of this run.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The state of the breaker, if any, for the metric `resiliency_count`.
    pub fn breaker_state(&self, now: Instant) -> Option<BreakerState> {
        self.breaker.as_ref().map(|breaker| breaker.state(now))
    }

    /// Takes the events since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    fn record_outcome(&mut self, success: bool, now: Instant) {
        let (Some(breaker), Some((permit, _))) = (&self.breaker, self.permit.take()) else {
            return;
        };
        if let Some(change) = breaker.record(permit, success, now) {
            self.events.push(Event::BreakerChanged {
                breaker: Arc::clone(breaker),
                change,
                counted: true,
            });
        }
    }
}

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        // A cancelled probe must not occupy the half-open breaker forever.
        if let Some((_, began)) = &self.permit {
            let began = *began;
            self.record_outcome(false, began);
        }
    }
}

#[cfg(test)]
mod tests;
