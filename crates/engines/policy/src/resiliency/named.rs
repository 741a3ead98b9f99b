//! The named policies of all loaded documents, parsed and merged.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outrigger_resources::Source;
use outrigger_resources::resiliency as spec;
use outrigger_resources::value::resiliency_duration;

use super::Problem;
use super::breaker::BreakerSpec;
use super::builtin::Builtin;
use super::problem::Problems;
use super::retry::{Backoff, CodeMatch, GRPC_CODES, HTTP_CODES, RetrySpec, entries};
use super::trip::Trip;

/// Policies by name. The last one of the same name wins.
#[derive(Debug)]
pub(super) struct Named {
    timeouts: HashMap<String, Duration>,
    retries: HashMap<String, Arc<RetrySpec>>,
    breakers: HashMap<String, BreakerSpec>,
}

/// Kinds of named policies, in the order of a target's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PolicyKind {
    Timeout,
    Retry,
    Breaker,
}

impl PolicyKind {
    pub(super) const ALL: [Self; 3] = [Self::Timeout, Self::Retry, Self::Breaker];

    /// Its name in messages.
    pub(super) const fn what(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Retry => "retry policy",
            Self::Breaker => "circuit breaker",
        }
    }

    /// The key of its section.
    pub(super) const fn section(self) -> &'static str {
        match self {
            Self::Timeout => "spec.policies.timeouts",
            Self::Retry => "spec.policies.retries",
            Self::Breaker => "spec.policies.circuitBreakers",
        }
    }

    /// The names of its policies in a document.
    pub(super) fn names(self, policies: &spec::Policies) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Self::Timeout => Box::new(policies.timeouts.keys().map(String::as_str)),
            Self::Retry => Box::new(policies.retries.keys().map(String::as_str)),
            Self::Breaker => Box::new(policies.circuit_breakers.keys().map(String::as_str)),
        }
    }

    /// The line of a member of a policy, or of the policy if the member is empty.
    fn place(self, doc: &spec::Resiliency, name: &str, member: &str) -> Source {
        let policy = format!("{}.{name}", self.section());
        match member {
            "" => doc.source.of(&policy),
            member => doc.source.of(&format!("{policy}.{member}")),
        }
    }
}

/// The policies of a target, not bound to one yet.
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

    /// Adds the policies of one document. Invalid ones are reported and skipped.
    pub(super) fn add<'d>(&mut self, doc: &'d spec::Resiliency, problems: &mut Problems<'d>) {
        problems.mistakes(doc);
        for (name, text) in &doc.policies.timeouts {
            let kind = PolicyKind::Timeout;
            if doc.is_wrong(kind.section(), name) {
                continue;
            }
            match resiliency_duration(text) {
                Ok(timeout) => {
                    self.timeouts.insert(name.clone(), timeout);
                }
                Err(error) => {
                    let what = format!("invalid duration {name:?}, {text}: {error}");
                    problems.policy(doc, kind, name, kind.place(doc, name, ""), &what);
                }
            }
        }
        for (name, retry) in &doc.policies.retries {
            if Builtin::PROTECTED.name() == name {
                let text = format!(
                    "Attempted to override protected policy {name} which is not allowed. \
                     Ignoring provided policy and using default."
                );
                let key = format!("spec.policies.retries.{name}");
                problems.warn(Problem::warning(doc, &key, text));
                continue;
            }
            let mut wrong = Wrong::new(doc, PolicyKind::Retry, name, problems);
            if let Some(read) = read_retry(retry, &mut wrong) {
                let read = self.at_least_three(doc, name, read, problems);
                self.retries.insert(name.clone(), Arc::new(read));
            }
        }
        for (name, breaker) in &doc.policies.circuit_breakers {
            let mut wrong = Wrong::new(doc, PolicyKind::Breaker, name, problems);
            if let Some(read) = read_breaker(name, breaker, &mut wrong) {
                self.breakers.insert(name.clone(), read);
            }
        }
    }

    /// Whether a policy of this name exists.
    pub(super) fn has(&self, kind: PolicyKind, name: &str) -> bool {
        match kind {
            PolicyKind::Timeout => self.timeouts.contains_key(name),
            PolicyKind::Retry => self.retries.contains_key(name),
            PolicyKind::Breaker => self.breakers.contains_key(name),
        }
    }

    fn at_least_three(
        &self,
        doc: &spec::Resiliency,
        name: &str,
        read: RetrySpec,
        problems: &mut Problems<'_>,
    ) -> RetrySpec {
        let builtin = Builtin::ALL.iter().any(|policy| policy.name() == name);
        if !builtin || read.max_retries.is_some_and(|retries| retries >= 3) {
            return read;
        }
        let key = format!("spec.policies.retries.{name}.maxRetries");
        let text = format!("Attempted override of {name} did not meet minimum retry count, resetting to 3.");
        problems.warn(Problem::warning(doc, &key, text));
        RetrySpec {
            max_retries: Some(3),
            ..read
        }
    }

    pub(super) fn retry(&self, name: &str) -> Option<Arc<RetrySpec>> {
        self.retries.get(name).cloned()
    }

    /// The policies with these names; empty and undefined names mean none.
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

    /// The policies of targets without an entry: for each kind, the first existing policy named
    /// `Default<LEVEL>...Policy`, over the given levels and finally without a level.
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

/// Errors of a policy with their locations.
struct Wrong<'p, 'd> {
    doc: &'d spec::Resiliency,
    kind: PolicyKind,
    name: &'d str,
    problems: &'p mut Problems<'d>,
    found: bool,
}

impl<'p, 'd> Wrong<'p, 'd> {
    fn new(
        doc: &'d spec::Resiliency,
        kind: PolicyKind,
        name: &'d str,
        problems: &'p mut Problems<'d>,
    ) -> Self {
        Self {
            doc,
            kind,
            name,
            problems,
            found: doc.is_wrong(kind.section(), name),
        }
    }

    /// The parsed member, or an error report.
    fn note<T>(&mut self, member: &str, read: Result<T, impl ToString>) -> Option<T> {
        read.map_err(|error| self.report(member, &error.to_string())).ok()
    }

    fn report(&mut self, member: &str, error: &str) {
        self.found = true;
        let what = match self.kind {
            PolicyKind::Timeout => "duration",
            PolicyKind::Retry => "retry configuration",
            PolicyKind::Breaker => "circuit breaker configuration",
        };
        let what = format!("invalid {what} {:?}: {member}: {error}", self.name);
        let place = self.kind.place(self.doc, self.name, member);
        self.problems.policy(self.doc, self.kind, self.name, place, &what);
    }
}

fn read_retry(retry: &spec::Retry, wrong: &mut Wrong<'_, '_>) -> Option<RetrySpec> {
    let constant = wrong.note("duration", duration(&retry.duration, RetrySpec::DEFAULT_DURATION));
    let max_interval = wrong.note(
        "maxInterval",
        duration(&retry.max_interval, RetrySpec::DEFAULT_MAX_INTERVAL),
    );
    let backoff = match retry.policy.to_ascii_lowercase().as_str() {
        "" | "constant" => constant.map(Backoff::Constant),
        "exponential" => max_interval.map(Backoff::exponential),
        _ => wrong.note(
            "policy",
            Err(format!("unexpected back off policy type: {}", retry.policy)),
        ),
    };
    let matching = match &retry.matching {
        Some(matching) => read_matching(matching, wrong),
        None => CodeMatch::default(),
    };
    let max_retries = match retry.max_retries {
        Some(retries) if retries >= 0 => Some(u32::try_from(retries).unwrap_or(u32::MAX)),
        _ => None,
    };
    backoff.filter(|_| !wrong.found).map(|backoff| RetrySpec {
        backoff,
        max_retries,
        matching,
    })
}

fn read_matching(matching: &spec::RetryMatching, wrong: &mut Wrong<'_, '_>) -> CodeMatch {
    let (http, grpc) = (&matching.http_status_codes, &matching.grpc_status_codes);
    let lists = [
        ("matching.httpStatusCodes", http, HTTP_CODES),
        ("matching.gRPCStatusCodes", grpc, GRPC_CODES),
    ];
    for (member, list, valid) in lists {
        for error in entries(list, &valid).filter_map(Result::err) {
            wrong.report(member, &error.to_string());
        }
    }
    CodeMatch::parse(http, grpc).unwrap_or_default()
}

fn read_breaker(
    name: &str,
    breaker: &spec::CircuitBreaker,
    wrong: &mut Wrong<'_, '_>,
) -> Option<BreakerSpec> {
    let defaults = BreakerSpec::named(name);
    let max_requests = u32::try_from(breaker.max_requests)
        .map_err(|_| format!("{} is not between 0 and {}", breaker.max_requests, u32::MAX));
    let max_requests = wrong.note("maxRequests", max_requests);
    let timeout = wrong.note("timeout", duration(&breaker.timeout, Duration::ZERO));
    let interval = wrong.note("interval", duration(&breaker.interval, Duration::ZERO));
    let trip = match breaker.trip.as_str() {
        "" => Some(defaults.trip),
        trip => wrong.note("trip", Trip::compile(trip)),
    };
    let (max_requests, timeout, interval, trip) = (max_requests?, timeout?, interval?, trip?);
    if wrong.found {
        return None;
    }
    Some(BreakerSpec {
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
