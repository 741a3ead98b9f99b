//! The named policies of all loaded documents, read and merged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outrigger_resources::resiliency as spec;
use outrigger_resources::value::resiliency_duration;

use super::Problem;
use super::breaker::BreakerSpec;
use super::builtin::Builtin;
use super::retry::{Backoff, CodeMatch, RetrySpec};
use super::trip::Trip;

/// Policies by name. Of two with the same name the later one stays.
#[derive(Debug)]
pub(super) struct Named {
    timeouts: HashMap<String, Duration>,
    retries: HashMap<String, Arc<RetrySpec>>,
    breakers: HashMap<String, BreakerSpec>,
}

/// What applies to a target, before it is bound to one.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    pub(super) timeout: Option<Duration>,
    pub(super) retry: Option<Arc<RetrySpec>>,
    pub(super) breaker: Option<BreakerSpec>,
}

impl Rules {
    pub(super) const fn is_empty(&self) -> bool {
        self.timeout.is_none() && self.retry.is_none() && self.breaker.is_none()
    }
}

impl Named {
    /// The built-in policies only.
    pub(super) fn builtin() -> Self {
        let retries = Builtin::ALL.map(|policy| (policy.name().to_owned(), Arc::new(policy.retry())));
        Self {
            timeouts: HashMap::new(),
            retries: HashMap::from(retries),
            breakers: HashMap::new(),
        }
    }

    /// Adds the policies of one document. Those that cannot be read are reported and left out; `Err` then.
    pub(super) fn add(&mut self, doc: &spec::Resiliency, problems: &mut Vec<Problem>) -> Result<(), ()> {
        let mut errors = Vec::new();
        for (name, text) in &doc.policies.timeouts {
            match resiliency_duration(text) {
                Ok(timeout) => {
                    self.timeouts.insert(name.clone(), timeout);
                }
                Err(error) => errors.push((
                    format!("spec.policies.timeouts.{name}"),
                    format!("invalid duration {name:?}, {text}: {error}"),
                )),
            }
        }
        for (name, retry) in &doc.policies.retries {
            if Builtin::PROTECTED.name() == name {
                let text = format!(
                    "Attempted to override protected policy {name} which is not allowed. \
                     Ignoring provided policy and using default."
                );
                problems.push(Problem::warning(
                    doc,
                    &format!("spec.policies.retries.{name}"),
                    text,
                ));
                continue;
            }
            match read_retry(retry) {
                Ok(read) => {
                    let read = self.at_least_three(doc, name, read, problems);
                    self.retries.insert(name.clone(), Arc::new(read));
                }
                Err(error) => errors.push((
                    format!("spec.policies.retries.{name}"),
                    format!("invalid retry configuration {name:?}: {error}"),
                )),
            }
        }
        for (name, breaker) in &doc.policies.circuit_breakers {
            match read_breaker(name, breaker) {
                Ok(read) => {
                    self.breakers.insert(name.clone(), read);
                }
                Err(error) => errors.push((
                    format!("spec.policies.circuitBreakers.{name}"),
                    format!("invalid circuit breaker configuration {name:?}: {error}"),
                )),
            }
        }
        let outcome = if errors.is_empty() { Ok(()) } else { Err(()) };
        problems.extend(
            errors
                .into_iter()
                .map(|(key, error)| Problem::error(doc, &key, &error)),
        );
        outcome
    }

    fn at_least_three(
        &self,
        doc: &spec::Resiliency,
        name: &str,
        read: RetrySpec,
        problems: &mut Vec<Problem>,
    ) -> RetrySpec {
        let builtin = Builtin::ALL.iter().any(|policy| policy.name() == name);
        if !builtin || read.max_retries.is_some_and(|retries| retries >= 3) {
            return read;
        }
        let key = format!("spec.policies.retries.{name}.maxRetries");
        let text = format!("Attempted override of {name} did not meet minimum retry count, resetting to 3.");
        problems.push(Problem::warning(doc, &key, text));
        RetrySpec {
            max_retries: Some(3),
            ..read
        }
    }

    pub(super) fn retry(&self, name: &str) -> Option<Arc<RetrySpec>> {
        self.retries.get(name).cloned()
    }

    /// Policies by name; empty and undefined names are no policy.
    pub(super) fn rules(&self, timeout: &str, retry: &str, breaker: &str) -> Rules {
        Rules {
            timeout: self
                .timeouts
                .get(timeout)
                .copied()
                .filter(|timeout| !timeout.is_zero()),
            retry: self.retry(retry),
            breaker: self.breakers.get(breaker).cloned(),
        }
    }

    /// What applies to targets without an entry of their own: for each kind of policy the first existing one of
    /// `Default<LEVEL>...Policy`, over the given levels and then none.
    pub(super) fn defaults(&self, levels: &[String]) -> Rules {
        let find = |kind: &str, exists: &dyn Fn(&str) -> bool| {
            let levels = levels.iter().map(String::as_str).chain([""]);
            levels
                .map(|level| format!("Default{level}{kind}Policy"))
                .find(|name| exists(name))
                .unwrap_or_default()
        };
        let timeout = find("Timeout", &|name| self.timeouts.contains_key(name));
        let retry = find("Retry", &|name| self.retries.contains_key(name));
        let breaker = find("CircuitBreaker", &|name| self.breakers.contains_key(name));
        self.rules(&timeout, &retry, &breaker)
    }
}

fn duration(text: &str, default: Duration) -> Result<Duration, String> {
    if text.is_empty() {
        Ok(default)
    } else {
        resiliency_duration(text).map_err(|error| error.to_string())
    }
}

/// What is wrong with a policy, all of it.
#[derive(Default)]
struct PolicyErrors(Vec<String>);

impl PolicyErrors {
    fn note<T>(&mut self, read: Result<T, impl ToString>) -> Option<T> {
        read.map_err(|error| self.0.push(error.to_string())).ok()
    }

    fn text(self) -> String {
        self.0.join("; ")
    }
}

fn read_retry(retry: &spec::Retry) -> Result<RetrySpec, String> {
    let mut wrong = PolicyErrors::default();
    let constant = wrong.note(duration(&retry.duration, RetrySpec::DEFAULT_DURATION));
    let max_interval = wrong.note(duration(&retry.max_interval, RetrySpec::DEFAULT_MAX_INTERVAL));
    let backoff = match retry.policy.to_ascii_lowercase().as_str() {
        "" | "constant" => constant.map(Backoff::Constant),
        "exponential" => max_interval.map(Backoff::exponential),
        _ => wrong.note(Err(format!("unexpected back off policy type: {}", retry.policy))),
    };
    let matching = match &retry.matching {
        Some(matching) => {
            let read = CodeMatch::parse(&matching.http_status_codes, &matching.grpc_status_codes);
            wrong.note(read)
        }
        None => Some(CodeMatch::default()),
    };
    let max_retries = match retry.max_retries {
        Some(retries) if retries >= 0 => Some(u32::try_from(retries).unwrap_or(u32::MAX)),
        _ => None,
    };
    match (backoff, matching) {
        (Some(backoff), Some(matching)) if wrong.0.is_empty() => Ok(RetrySpec {
            backoff,
            max_retries,
            matching,
        }),
        _ => Err(wrong.text()),
    }
}

fn read_breaker(name: &str, breaker: &spec::CircuitBreaker) -> Result<BreakerSpec, String> {
    let defaults = BreakerSpec::named(name);
    let mut wrong = PolicyErrors::default();
    let max_requests = wrong.note(u32::try_from(breaker.max_requests).map_err(|_| {
        format!(
            "maxRequests {} is not between 0 and {}",
            breaker.max_requests,
            u32::MAX
        )
    }));
    let timeout = wrong.note(duration(&breaker.timeout, Duration::ZERO));
    let interval = wrong.note(duration(&breaker.interval, Duration::ZERO));
    let trip = match breaker.trip.as_str() {
        "" => Some(defaults.trip),
        trip => wrong.note(Trip::compile(trip)),
    };
    let (Some(max_requests), Some(timeout), Some(interval), Some(trip)) =
        (max_requests, timeout, interval, trip)
    else {
        return Err(wrong.text());
    };
    Ok(BreakerSpec {
        max_requests: max_requests.max(1),
        interval: (!interval.is_zero()).then_some(interval),
        timeout: if timeout.is_zero() {
            defaults.timeout
        } else {
            timeout
        },
        trip,
        name: defaults.name,
    })
}
