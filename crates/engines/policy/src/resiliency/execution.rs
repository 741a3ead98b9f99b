//! One run of an operation under a policy, outside in: retry, breaker, timeout.
//!
//! The run only decides. The caller makes the attempts, measures the time limit, sleeps, logs and counts:
//!
//! ```text
//! let mut run = policy.start(key, now);
//! loop {
//!     let timeout = run.before(now)?;                   // a refusal ends the run
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

/// How an attempt went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Success,
    /// It failed, with the status code of the failure if the operation attaches one: HTTP 100-599 or gRPC 0-16.
    Failure {
        /// The code that retry policies match.
        code: Option<i32>,
    },
    /// It took longer than its time limit.
    TimedOut,
    /// It failed in a way no retry helps with, or the request cannot be sent again. The breaker counts it.
    Final,
    /// The request itself could not be read or sent, which says nothing about who is called: no retry helps, and the
    /// breaker does not count it.
    Unsendable,
}

impl Outcome {
    /// The outcome of an attempt whose request can, or cannot, be sent again. The breaker counts both alike.
    #[must_use]
    pub const fn if_repeatable(self, repeatable: bool) -> Self {
        match self {
            Self::Failure { .. } | Self::TimedOut if !repeatable => Self::Final,
            other => other,
        }
    }
}

/// Something to log or count.
#[derive(Debug, Clone)]
pub enum Event {
    /// An attempt ran into its time limit, for the first time in this run. Counts as a `timeout` activation.
    TimeoutExpired,
    /// The first retry of this run. Counts as a `retry` activation; logged as a warning:
    /// `Error processing operation NAME. Retrying in D…`.
    RetryStarted {
        /// The wait before it.
        after: Duration,
    },
    /// A retried run succeeded; logged as info: `Recovered processing operation NAME after N attempts`.
    Recovered {
        /// Attempts made.
        attempts: u32,
    },
    /// A breaker changed state; logged as info: `Circuit breaker "N" changed state from A to B`.
    BreakerChanged {
        /// The breaker.
        breaker: Arc<Breaker>,
        /// The change of the breaker's state.
        change: StateChange,
        /// Whether it counts as a `circuitbreaker` activation: the end of the open time does not.
        counted: bool,
    },
}

/// One run. Dropping it in the middle of an attempt counts as a failure of that attempt.
#[derive(Debug)]
pub struct Execution<'p> {
    policy: PolicyRef<'p>,
    key: Key<'p>,
    breaker: Option<Arc<Breaker>>,
    retry: Option<RetryState>,
    /// Set while an attempt is under way: its permit and when it began.
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

    /// Begins an attempt; returns its time limit.
    ///
    /// # Errors
    /// The breaker refuses; the run is over.
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
            _ => self.tell_breaker(outcome == Outcome::Success, now),
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

    /// Attempts made so far.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// How logs call this operation.
    pub fn operation(&self) -> String {
        self.policy.operation(self.key)
    }

    /// The policy of this run.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The state of the breaker, if there is one: the metric `resiliency_count` carries it.
    pub fn breaker_state(&self, now: Instant) -> Option<BreakerState> {
        self.breaker.as_ref().map(|breaker| breaker.state(now))
    }

    /// What happened since the last time this was asked.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    fn tell_breaker(&mut self, success: bool, now: Instant) {
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
        // A cancelled probe must not hold the half-open breaker's place for ever.
        if let Some((_, began)) = &self.permit {
            let began = *began;
            self.tell_breaker(false, began);
        }
    }
}

#[cfg(test)]
mod tests;
