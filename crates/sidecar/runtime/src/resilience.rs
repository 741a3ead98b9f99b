//! Runs calls under a resiliency policy: the policy decides; this loop waits, logs and counts.

mod policies;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_policy::resiliency::{Event, Execution, Key, Outcome, Policy, PolicyRef, Resiliency};
use outrigger_resources::value::format_go_duration;
use outrigger_transport::body::{Body, Late};
use tokio_util::sync::CancellationToken;

use crate::metrics::SidecarMetrics;

pub use policies::{ComponentPolicy, Policies};

const LOG: &str = "dapr.runtime.resiliency";

/// The policies and their metrics.
pub struct Resilience {
    /// All policies.
    pub policies: Policies,
    /// Counts runs and activations.
    pub metrics: Arc<SidecarMetrics>,
}

impl Resilience {
    /// Starts with `policies`, which can be replaced.
    pub fn new(policies: Resiliency, metrics: Arc<SidecarMetrics>) -> Self {
        Self {
            policies: Policies::new(policies),
            metrics,
        }
    }
}

/// A circuit breaker is open: no attempt was made, or none follows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BreakerOpen(String);

/// An operation that is attempted until it succeeds or its policy gives up. Without a policy there is one
/// attempt.
pub struct Attempts<'p> {
    policy: Option<PolicyRef<'p>>,
    key: Key<'p>,
    metrics: &'p SidecarMetrics,
    stop: Option<&'p CancellationToken>,
}

/// An attempt of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// 1 for the first.
    pub number: u32,
    timeout: Option<Duration>,
}

impl Attempt {
    /// An attempt with the timeout of its policy.
    #[inline]
    pub fn new(number: u32, timeout: Option<Duration>) -> Self {
        Self { number, timeout }
    }

    /// The deadline of an attempt that starts now.
    #[inline]
    pub fn deadline(&self) -> Deadline {
        Deadline(self.timeout.map(|limit| tokio::time::Instant::now() + limit))
    }

    /// Runs `work` within the attempt's timeout; `None` on timeout. Pinned, because a future by value takes
    /// its space twice and is copied again.
    pub async fn within<T>(&self, work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        self.deadline().within(work).await
    }
}

/// The deadline of an attempt, if its policy has a timeout.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<tokio::time::Instant>);

impl Deadline {
    /// No deadline.
    pub const NONE: Self = Self(None);

    /// Runs `work` until the deadline; `None` if it passes.
    pub async fn within<T>(self, work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match self.0 {
            Some(at) => tokio::time::timeout_at(at, work).await.ok(),
            None => Some(work.await),
        }
    }

    /// Whether there is no deadline.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0.is_none()
    }

    /// Bounds a streamed response: at the deadline its reader gets `late` instead of the rest.
    pub fn bound(self, body: Body, late: Late) -> Body {
        match self.0 {
            Some(at) => body.until(at, late),
            None => body,
        }
    }
}

impl<'p> Attempts<'p> {
    /// Under `policy`; its breakers are looked up by `key`.
    #[inline]
    pub fn new(policy: Option<&'p Policy>, key: Key<'p>, metrics: &'p SidecarMetrics) -> Self {
        Self::held(policy.map(PolicyRef::Borrowed), key, metrics)
    }

    /// Like `new`, with shared ownership of the policy.
    #[inline]
    pub fn shared(policy: Option<Arc<Policy>>, key: Key<'p>, metrics: &'p SidecarMetrics) -> Self {
        Self::held(policy.map(PolicyRef::Shared), key, metrics)
    }

    #[inline]
    fn held(policy: Option<PolicyRef<'p>>, key: Key<'p>, metrics: &'p SidecarMetrics) -> Self {
        Self {
            policy,
            key,
            metrics,
            stop: None,
        }
    }

    /// Makes no further attempt once `stop` is cancelled.
    #[must_use]
    pub fn until(mut self, stop: &'p CancellationToken) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Makes attempts. Each returns its result and how the policy counts it; returns the result of the last
    /// one.
    ///
    /// # Errors
    /// [`BreakerOpen`] if a circuit breaker is open.
    pub async fn run<T, F>(self, mut attempt: impl FnMut(Attempt) -> F) -> Result<T, BreakerOpen>
    where
        F: Future<Output = (T, Outcome)>,
    {
        let attempts = self.run_with((), |(), now| {
            let attempt = attempt(now);
            async move {
                let (result, outcome) = attempt.await;
                ((), result, outcome)
            }
        });
        attempts.await
    }

    /// Like `run`, for attempts that pass `state` from one to the next.
    ///
    /// # Errors
    /// [`BreakerOpen`] if a circuit breaker is open.
    pub async fn run_with<S, T, F>(
        self,
        mut state: S,
        mut attempt: impl FnMut(S, Attempt) -> F,
    ) -> Result<T, BreakerOpen>
    where
        F: Future<Output = (S, T, Outcome)>,
    {
        let stop = self.stop;
        let mut run = Run::start(self.policy, self.key, self.metrics);
        let mut number = 0;
        loop {
            let timeout = run.before()?;
            number += 1;
            let (given_back, result, outcome) = attempt(state, Attempt::new(number, timeout)).await;
            state = given_back;
            let Some(pause) = run.after(outcome) else {
                return Ok(result);
            };
            if is_stopped_within(stop, pause).await {
                return Ok(result);
            }
        }
    }
}

async fn is_stopped_within(stop: Option<&CancellationToken>, pause: Duration) -> bool {
    let Some(stop) = stop else {
        tokio::time::sleep(pause).await;
        return false;
    };
    tokio::time::timeout(pause, stop.cancelled()).await.is_ok()
}

/// The policy's decisions between attempts.
pub struct Run<'p> {
    execution: Option<Execution<'p>>,
    metrics: &'p SidecarMetrics,
}

impl<'p> Run<'p> {
    /// The state before the first attempt.
    #[inline]
    pub fn start(policy: Option<PolicyRef<'p>>, key: Key<'p>, metrics: &'p SidecarMetrics) -> Self {
        let now = Instant::now();
        let execution = policy.map(|policy| Policy::run(policy, key, now));
        if let Some(execution) = &execution {
            metrics.policy_run(execution, now);
        }
        Self { execution, metrics }
    }

    /// Asks for permission for an attempt; returns its timeout.
    #[inline]
    pub fn before(&mut self) -> Result<Option<Duration>, BreakerOpen> {
        let Some(execution) = &mut self.execution else {
            return Ok(None);
        };
        let timeout = execution.before(Instant::now());
        self.report();
        timeout.map_err(|error| BreakerOpen(error.to_string()))
    }

    /// Reports the outcome of an attempt; returns the pause before the next, if there is one.
    #[inline]
    pub fn after(&mut self, outcome: Outcome) -> Option<Duration> {
        let execution = self.execution.as_mut()?;
        let pause = execution.after(outcome, Instant::now());
        self.report();
        pause
    }

    fn report(&mut self) {
        let Some(execution) = &mut self.execution else {
            return;
        };
        for event in execution.take_events() {
            self.metrics.policy_event(execution.policy(), &event);
            if execution.policy().is_waiting() {
                continue;
            }
            match event {
                Event::RetryStarted { after } => tracing::warn!(
                    target: LOG,
                    "Error processing operation {}. Retrying in {}…",
                    execution.operation(),
                    format_go_duration(after)
                ),
                Event::Recovered { attempts } => tracing::info!(
                    target: LOG,
                    "Recovered processing operation {} after {attempts} attempts.",
                    execution.operation()
                ),
                Event::BreakerChanged { breaker, change, .. } => tracing::info!(
                    target: LOG,
                    "Circuit breaker {:?} changed state from {} to {}",
                    breaker.name(),
                    change.from,
                    change.to
                ),
                Event::TimeoutExpired => {}
            }
        }
    }
}

/// The outcome of a gRPC attempt by its status number.
#[inline]
pub fn grpc_outcome(code: i32) -> Outcome {
    if code == 0 {
        Outcome::Success
    } else {
        Outcome::Failure { code: Some(code) }
    }
}
