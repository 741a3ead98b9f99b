//! Running calls under a resiliency policy: the policy decides, this waits, logs and counts.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_policy::resiliency::{Event, Execution, Key, Next, Outcome, Policy, Resiliency};
use outrigger_resources::value::format_go_duration;

use crate::metrics::SidecarMetrics;

const LOG: &str = "dapr.runtime.resiliency";

/// The policies and where their events are counted.
pub struct Resilience {
    /// All policies.
    pub policies: Resiliency,
    /// Counts runs and activations.
    pub metrics: Arc<SidecarMetrics>,
}

/// The time limit of an attempt passed, or a breaker refused it.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The breaker's own words.
    #[error("{0}")]
    Breaker(String),
}

/// One operation under a policy. Without a policy every step is free.
pub struct Run<'p> {
    execution: Option<Execution<'p>>,
    metrics: &'p SidecarMetrics,
    timeout: Option<Duration>,
}

/// Whether to make another attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The wait is over: try again.
    Retry,
    /// Answer with what there is.
    Stop,
}

impl<'p> Run<'p> {
    /// Starts a run; `policy` is kept by the caller.
    pub fn start(policy: Option<&'p Policy>, key: Key<'p>, metrics: &'p SidecarMetrics) -> Self {
        let now = Instant::now();
        let execution = policy.map(|policy| policy.start(key, now));
        if let Some(execution) = &execution {
            metrics.policy_run(execution, now);
        }
        Self {
            execution,
            metrics,
            timeout: None,
        }
    }

    /// Asks for an attempt.
    ///
    /// # Errors
    /// [`Refused`] by an open breaker: the run is over.
    pub fn before(&mut self) -> Result<(), Refused> {
        let Some(execution) = &mut self.execution else {
            return Ok(());
        };
        let attempt = execution.before(Instant::now());
        self.report();
        self.timeout = attempt.map_err(|e| Refused::Breaker(e.to_string()))?.timeout;
        Ok(())
    }

    /// Runs the attempt within its time limit; `None` when it took longer.
    pub async fn limit<T>(&self, attempt: impl Future<Output = T>) -> Option<T> {
        match self.timeout {
            // Boxed: runs without a limit, nearly all, should not carry room for two.
            Some(limit) => tokio::time::timeout(limit, Box::pin(attempt)).await.ok(),
            None => Some(attempt.await),
        }
    }

    /// Ends an attempt; waits if there is to be another.
    pub async fn after(&mut self, outcome: Outcome) -> Again {
        let Some(execution) = &mut self.execution else {
            return Again::Stop;
        };
        let next = execution.after(outcome, Instant::now());
        self.report();
        match next {
            Next::Retry { after, .. } => {
                tokio::time::sleep(after).await;
                Again::Retry
            }
            Next::Done | Next::GiveUp => Again::Stop,
        }
    }

    fn report(&mut self) {
        let Some(execution) = &mut self.execution else {
            return;
        };
        for event in execution.take_events() {
            self.metrics.policy_event(execution.policy(), &event);
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
pub fn grpc_outcome(code: i32) -> Outcome {
    if code == 0 {
        Outcome::Success
    } else {
        Outcome::Failure { code: Some(code) }
    }
}
