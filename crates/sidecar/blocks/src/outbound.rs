//! Calls of components under their resiliency policies, timed and counted.

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

/// Why a call of a component failed.
#[derive(Debug)]
pub enum Cause {
    /// The error of the component.
    Component(Error),
    /// Some of several operations failed.
    Several(BulkError),
    /// The policy's timeout expired.
    Timeout,
    /// A circuit breaker is open.
    Refused(String),
    /// The sidecar itself failed: a key, a cipher, a malformed value.
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
    /// The kind of the component's error; an ETag error takes precedence.
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
    /// The status that the component wants callers to see.
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

/// The policy and metrics of calls of one component.
pub struct Outbound {
    policy: ComponentPolicy,
    metrics: Arc<SidecarMetrics>,
    hidden: Secrets,
}

impl Outbound {
    /// For the component `name`; policy changes apply. Errors are cleared of the secrets in `hidden`.
    pub fn new(name: &str, kind: ComponentKind, resilience: &Resilience, hidden: Secrets) -> Self {
        Self {
            policy: resilience.policies.component(name, kind, Direction::Outbound),
            metrics: Arc::clone(&resilience.metrics),
            hidden,
        }
    }

    /// An error of the component without secrets.
    pub fn cleared(&self, error: Error) -> Error {
        error.without(&self.hidden)
    }

    /// Attempts under the policy, for operations that change between attempts.
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

    /// Like `run`, for component kinds without metrics in the contract.
    pub async fn run_uncounted<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, Cause>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.run_coded(attempt, |_| None).await
    }

    /// Like `run`, with retries that may depend on a code in the component's errors.
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

/// How an attempt counts. ETag mismatches and size errors are permanent, so they are not retried.
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
    /// The series of `operation` in the metric families `names`, such as those of state or secrets.
    pub fn new(registry: &Registry, names: FamilyNames, component: &str, operation: &str) -> Self {
        let labels = ["component", "operation", "success"];
        Self::labelled(registry, names, labels, |success| [component, operation, success])
    }

    /// The series of a block whose components have one operation.
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

    /// Counts a finished call.
    #[inline]
    pub fn completed(&self, success: bool, elapsed: Duration) {
        let (count, latency) = if success { &self.succeeded } else { &self.failed };
        count.inc();
        latency.observe(elapsed);
    }
}

/// Names of a block's metric families, without the prefix `dapr_`.
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

    /// Servers may echo secrets in their errors.
    #[tokio::test]
    async fn hides_secrets_in_component_errors() {
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
