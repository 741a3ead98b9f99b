//! Calls of a component: under its resiliency policy, timed and counted.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_component::state::BulkError;
use outrigger_component::{ApiStatus, Error, Kind};
use outrigger_policy::resiliency::{ComponentKind, Direction, Key, Outcome, Policy};
use outrigger_redact::Secrets;
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::resilience::{Attempts, BreakerOpen, ComponentPolicy, Resilience};
use outrigger_telemetry::metrics::{Counter, Histogram, Millis, Registry};

/// Why a component did not do what it was asked.
#[derive(Debug)]
pub enum Cause {
    /// The error of the component.
    Component(Error),
    /// It failed at some of several operations.
    Several(BulkError),
    /// The policy's time limit passed.
    Timeout,
    /// A circuit breaker is open.
    Refused(String),
    /// The sidecar itself could not go on: a key, a cipher, a malformed value.
    Own(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Component(error) => error.fmt(f),
            Self::Several(error) => error.fmt(f),
            Self::Timeout => f.write_str("context deadline exceeded"),
            Self::Refused(text) | Self::Own(text) => f.write_str(text),
        }
    }
}

impl Cause {
    /// What kind of failure the component reported; an ETag's before others.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Self::Component(error) => Some(error.kind()),
            Self::Several(error) => {
                let mut errors = error.failures.iter().map(|(_, error)| error);
                let first = errors.clone().next();
                errors.find(|error| error.is_etag()).or(first).map(Error::kind)
            }
            Self::Timeout | Self::Refused(_) | Self::Own(_) => None,
        }
    }
}

impl Cause {
    /// What the component wants callers to be told.
    pub fn api_status(&self) -> Option<&ApiStatus> {
        match self {
            Self::Component(error) => error.api_status(),
            Self::Several(error) => error.failures.iter().find_map(|(_, error)| error.api_status()),
            Self::Timeout | Self::Refused(_) | Self::Own(_) => None,
        }
    }
}

impl From<BreakerOpen> for Cause {
    fn from(refused: BreakerOpen) -> Self {
        Self::Refused(refused.to_string())
    }
}

impl From<Error> for Cause {
    fn from(error: Error) -> Self {
        Self::Component(error)
    }
}

/// What applies to every outbound call of one component.
pub struct Outbound {
    policy: ComponentPolicy,
    metrics: Arc<SidecarMetrics>,
    hidden: Secrets,
}

impl Outbound {
    /// For the component `name`; its policy follows the resources. Its errors do not show what is `hidden`.
    pub fn new(name: &str, kind: ComponentKind, resilience: &Resilience, hidden: Secrets) -> Self {
        Self {
            policy: resilience.policies.component(name, kind, Direction::Outbound),
            metrics: Arc::clone(&resilience.metrics),
            hidden,
        }
    }

    /// An error of the component as it may be told.
    pub fn cleared(&self, error: Error) -> Error {
        error.without(&self.hidden)
    }

    /// Attempts under the policy, for operations that change from one to the next.
    #[inline]
    pub fn attempts(&self) -> Attempts<'_> {
        self.attempts_under(self.policy.current())
    }

    fn attempts_under(&self, policy: Option<Arc<Policy>>) -> Attempts<'_> {
        Attempts::shared(policy, Key::NONE, &self.metrics)
    }

    /// Runs `attempt` until it succeeds or the policy gives up, and counts the result under `operation`.
    pub async fn run<T, F>(&self, operation: &Operation, attempt: impl Fn() -> F) -> Result<T, Cause>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let started = Instant::now();
        let result = self.run_uncounted(attempt).await;
        operation.completed(result.is_ok(), started.elapsed());
        result
    }

    /// The same for kinds of component that the contract has no metrics for.
    pub async fn run_uncounted<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, Cause>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.run_coded(attempt, |_| None).await
    }

    /// The same where retries may depend on a code that the component's errors have.
    pub async fn run_coded<T, F>(
        &self,
        attempt: impl Fn() -> F,
        code: impl Fn(&Error) -> Option<i32>,
    ) -> Result<T, Cause>
    where
        F: Future<Output = Result<T, Error>>,
    {
        match self.policy.current() {
            None => attempt()
                .await
                .map_err(|error| Cause::Component(self.cleared(error))),
            policy => self.repeat(policy, attempt, code).await,
        }
    }

    async fn repeat<T, F>(
        &self,
        policy: Option<Arc<Policy>>,
        attempt: impl Fn() -> F,
        code: impl Fn(&Error) -> Option<i32>,
    ) -> Result<T, Cause>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let code = &code;
        let attempts = self.attempts_under(policy).run(|limit| {
            let attempt = attempt();
            async move {
                let result = match limit.within(pin!(attempt)).await {
                    Some(result) => result.map_err(|error| Cause::Component(self.cleared(error))),
                    None => Err(Cause::Timeout),
                };
                let outcome = outcome(&result, code);
                (result, outcome)
            }
        });
        attempts.await?
    }
}

/// How an attempt counts. An ETag that does not match now will not match later, and what is too large stays so.
fn outcome<T>(result: &Result<T, Cause>, code: &impl Fn(&Error) -> Option<i32>) -> Outcome {
    match result {
        Ok(_) => Outcome::Success,
        Err(Cause::Timeout) => Outcome::TimedOut,
        Err(Cause::Component(error)) if error.is_etag() || error.kind() == Kind::TooLarge => Outcome::Final,
        Err(Cause::Component(error)) => Outcome::Failure { code: code(error) },
        Err(_) => Outcome::Failure { code: None },
    }
}

/// Count and duration of one operation of one component.
#[derive(Clone)]
pub struct Operation {
    succeeded: (Counter, Histogram<Millis>),
    failed: (Counter, Histogram<Millis>),
}

impl Operation {
    /// The series of `operation` in the families `NAMES`: those of `state`, of `secret`.
    pub fn new(registry: &Registry, names: FamilyNames, component: &str, operation: &str) -> Self {
        let labels = ["component", "operation", "success"];
        Self::labelled(registry, names, labels, |success| [component, operation, success])
    }

    /// The series of a block whose components do one thing only.
    pub fn single(registry: &Registry, names: FamilyNames, component: &str) -> Self {
        Self::labelled(registry, names, ["component", "success"], |success| {
            [component, success]
        })
    }

    /// The series of a topic of a broker.
    pub fn of_topic(registry: &Registry, names: FamilyNames, component: &str, topic: &str) -> Self {
        Self::labelled(registry, names, ["component", "success", "topic"], |success| {
            [component, success, topic]
        })
    }

    fn labelled<'v, const N: usize>(
        registry: &Registry,
        names: FamilyNames,
        labels: [&'static str; N],
        values: impl Fn(&'static str) -> [&'v str; N],
    ) -> Self {
        let registry = registry.namespaced();
        let count = registry.counter(names.count, "Calls of components.", labels);
        let latency = registry.latency(names.latencies, "Duration of calls of components.", labels);
        let series = |success| {
            let values = values(success);
            (count.with(values), latency.with(values))
        };
        Self {
            succeeded: series("true"),
            failed: series("false"),
        }
    }

    /// A call ended.
    #[inline]
    pub fn completed(&self, success: bool, elapsed: Duration) {
        let (count, latency) = if success { &self.succeeded } else { &self.failed };
        count.inc();
        latency.observe(elapsed);
    }
}

/// Names of the families of a block, without the prefix `dapr_`.
#[derive(Clone, Copy, Debug)]
pub struct FamilyNames {
    /// Name of the counter of calls.
    pub count: &'static str,
    /// Name of the histogram of their durations, in milliseconds.
    pub latencies: &'static str,
}

#[cfg(test)]
mod tests {
    use outrigger_policy::resiliency::Resiliency;
    use outrigger_telemetry::metrics::Metrics;

    use super::*;

    /// Servers repeat in their errors what they were shown.
    #[tokio::test]
    async fn errors_of_components_do_not_show_secrets() {
        let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
        let resilience = Resilience::new(Resiliency::none(), metrics);
        let hidden = Secrets::new(["a-token"]);
        let outbound = Outbound::new("broker", ComponentKind::Pubsub, &resilience, hidden);
        let echo = || async {
            let error = Error::new(Kind::Denied, "the broker answered: no a-token here");
            Err::<(), _>(error.because("because of a-token"))
        };
        let cause = outbound.run_uncounted(echo).await.unwrap_err();
        assert_eq!(
            cause.to_string(),
            "the broker answered: no *** here: because of ***"
        );
        assert_eq!(cause.kind(), Some(Kind::Denied));
        let again = outbound.repeat(None, echo, |_| None).await.unwrap_err();
        assert_eq!(again.to_string(), cause.to_string());
    }
}
