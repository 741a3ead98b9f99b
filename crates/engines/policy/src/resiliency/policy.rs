//! The policy of one target: timeout, retries, breaker, and its names in logs and metrics.

use std::collections::hash_map::RandomState;
use std::fmt::{self, Display, Formatter};
use std::hash::{BuildHasher, Hasher};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::breaker::{Breaker, BreakerSpec};
use super::execution::Execution;
use super::lru::Lru;
use super::retry::{Backoff, CodeMatch, RetrySpec};

/// Direction between the app and a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the component to the app.
    Inbound,
    /// From the app to the target.
    Outbound,
}

impl Direction {
    /// The value of the metric label `flow_direction`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }
}

/// Labels of the resiliency metrics, except policy and status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels<'a> {
    /// Name of the last loaded Resiliency resource.
    pub name: &'a str,
    /// Namespace of the Resiliency resource; may be empty.
    pub namespace: &'a str,
    /// `app_ID`, `actor_TYPE` or `Statestore_NAME`.
    pub target: &'a str,
    /// The direction of the call.
    pub direction: Direction,
}

/// A loaded Resiliency resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resource {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
}

/// Selects a target's breaker, and the operation's name in logs. Free to construct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    head: &'a str,
    joint: &'static str,
    tail: &'a str,
}

impl<'a> Key<'a> {
    /// For targets with one breaker: components, built-in policies.
    pub const NONE: Key<'static> = Key {
        head: "",
        joint: "",
        tail: "",
    };

    /// A method of an app: `ID:METHOD`. For gRPC proxying, the full method with its leading slash.
    pub const fn app(id: &'a str, method: &'a str) -> Self {
        Self {
            head: id,
            joint: ":",
            tail: method,
        }
    }

    /// An HTTPEndpoint resource: `NAME:BASEURL`.
    pub const fn http_endpoint(name: &'a str, base_url: &'a str) -> Self {
        Self {
            head: name,
            joint: ":",
            tail: base_url,
        }
    }

    /// A method under an absolute URL: `URL/METHOD`.
    pub const fn url(url: &'a str, method: &'a str) -> Self {
        Self {
            head: url,
            joint: "/",
            tail: method,
        }
    }

    /// An actor, by its ID.
    pub const fn actor(id: &'a str) -> Self {
        Self {
            head: id,
            joint: "",
            tail: "",
        }
    }
}

impl Display for Key<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.head)?;
        f.write_str(self.joint)?;
        f.write_str(self.tail)
    }
}

/// The target of a policy.
#[derive(Debug)]
pub(super) enum Subject {
    App(String),
    Actor(String),
    Component {
        name: String,
        direction: Direction,
    },
    Builtin(&'static str),
    /// An expected event; see [`Policy::waiting`].
    Awaited(&'static str),
}

/// The breakers of a target.
#[derive(Debug)]
pub(super) enum Breakers {
    None,
    /// One breaker for all calls.
    One(Arc<Breaker>),
    PerKey(Arc<Pool>),
}

/// One breaker per prefixed key; the least recently used are evicted.
#[derive(Debug)]
pub(super) struct Pool {
    spec: BreakerSpec,
    prefix: String,
    breakers: Mutex<Lru<Arc<Breaker>>>,
}

impl Pool {
    fn is_as(&self, spec: &BreakerSpec, prefix: &str, capacity: usize) -> bool {
        let breakers = self.breakers.lock().unwrap_or_else(PoisonError::into_inner);
        self.spec == *spec && self.prefix == prefix && breakers.capacity() == capacity
    }
}

impl Breakers {
    /// Reuses the breakers of `before` if their settings are equal.
    pub(super) fn per_key(spec: BreakerSpec, prefix: String, capacity: usize, before: Option<&Self>) -> Self {
        match before {
            Some(Self::PerKey(pool)) if pool.is_as(&spec, &prefix, capacity) => {
                Self::PerKey(Arc::clone(pool))
            }
            _ => Self::PerKey(Arc::new(Pool {
                spec,
                prefix,
                breakers: Mutex::new(Lru::new(capacity)),
            })),
        }
    }

    /// One breaker for all calls: reuses that of `before` if its settings are equal.
    pub(super) fn one(name: String, spec: BreakerSpec, before: Option<&Self>) -> Self {
        match before {
            Some(Self::One(breaker)) if *breaker.spec() == spec => Self::One(Arc::clone(breaker)),
            _ => Self::One(Arc::new(Breaker::new(name, spec, Instant::now()))),
        }
    }

    fn find(&self, key: Key<'_>, now: Instant) -> Option<Arc<Breaker>> {
        match self {
            Self::None => None,
            Self::One(breaker) => Some(Arc::clone(breaker)),
            Self::PerKey(pool) => {
                let name = format!("{}{key}", pool.prefix);
                let mut breakers = pool.breakers.lock().unwrap_or_else(PoisonError::into_inner);
                let make = || Arc::new(Breaker::new(name.clone(), pool.spec.clone(), now));
                Some(Arc::clone(breakers.get_or_insert_with(&name, make)))
            }
        }
    }
}

/// A borrowed or shared policy.
#[derive(Debug, Clone)]
pub enum PolicyRef<'p> {
    /// Borrowed for longer than the run.
    Borrowed(&'p Policy),
    /// Shared ownership by the run, independent of later changes.
    Shared(Arc<Policy>),
}

impl Deref for PolicyRef<'_> {
    type Target = Policy;

    #[inline]
    fn deref(&self) -> &Policy {
        match self {
            Self::Borrowed(policy) => policy,
            Self::Shared(policy) => policy,
        }
    }
}

/// The policy of one target. Cache it with the target instead of looking it up per call.
#[derive(Debug)]
pub struct Policy {
    pub(super) subject: Subject,
    pub(super) target: String,
    pub(super) resource: Arc<Resource>,
    pub(super) timeout: Option<Duration>,
    pub(super) retry: Option<Arc<RetrySpec>>,
    pub(super) breakers: Breakers,
    pub(super) seed: Seed,
}

impl Policy {
    /// Attempts until an expected event occurs, with pauses that grow from `first` to `longest`, for at
    /// most `limit`. Not configurable. Attempts are not failures, so they are not logged or counted.
    pub fn waiting(name: &'static str, first: Duration, longest: Duration, limit: Duration) -> Self {
        Self {
            subject: Subject::Awaited(name),
            target: String::new(),
            resource: Arc::default(),
            timeout: None,
            retry: Some(Arc::new(RetrySpec {
                backoff: Backoff::Exponential {
                    initial: first,
                    max: longest,
                    max_elapsed: Some(limit),
                },
                max_retries: None,
                matching: CodeMatch::default(),
            })),
            breakers: Breakers::None,
            seed: Seed::random(),
        }
    }

    /// Whether its retries only wait for an event and are not logged.
    pub const fn is_waiting(&self) -> bool {
        matches!(self.subject, Subject::Awaited(_))
    }

    /// Starts a run of an operation. Without a policy there is no run: call the operation once.
    pub fn start<'p>(&'p self, key: Key<'p>, now: Instant) -> Execution<'p> {
        Self::run(PolicyRef::Borrowed(self), key, now)
    }

    /// Starts a run under a borrowed or shared policy.
    pub fn run<'p>(policy: PolicyRef<'p>, key: Key<'p>, now: Instant) -> Execution<'p> {
        let breaker = policy.breakers.find(key, now);
        let seed = policy.seed.next();
        Execution::new(policy, key, breaker, seed, now)
    }

    /// The timeout of each attempt.
    pub const fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// The retry policy.
    pub fn retry(&self) -> Option<&RetrySpec> {
        self.retry.as_deref()
    }

    /// Whether a failed call may be retried, so that its request must be kept.
    pub fn may_retry(&self) -> bool {
        self.retry.as_ref().is_some_and(|retry| retry.retries())
    }

    /// Labels of the resiliency metrics; built-in policies have none.
    pub fn labels(&self) -> Option<Labels<'_>> {
        let direction = match self.subject {
            Subject::Builtin(_) | Subject::Awaited(_) => return None,
            Subject::Component { direction, .. } => direction,
            Subject::App(_) | Subject::Actor(_) => Direction::Outbound,
        };
        Some(Labels {
            name: &self.resource.name,
            namespace: &self.resource.namespace,
            target: &self.target,
            direction,
        })
    }

    /// The name of an operation in logs, for example `endpoint[app, app:method]`.
    pub fn operation(&self, key: Key<'_>) -> String {
        match &self.subject {
            Subject::App(id) => format!("endpoint[{id}, {key}]"),
            Subject::Actor(kind) => format!("actor[{kind}, {key}]"),
            Subject::Component {
                name,
                direction: Direction::Inbound,
            } => format!("component[{name}] input"),
            Subject::Component {
                name,
                direction: Direction::Outbound,
            } => format!("component[{name}] output"),
            Subject::Builtin(name) | Subject::Awaited(name) => (*name).to_owned(),
        }
    }
}

/// A source of jitter seeds, so that callers that failed together do not retry together.
#[derive(Debug)]
pub(super) struct Seed(AtomicU64);

impl Seed {
    pub(super) fn random() -> Self {
        // The standard library's hashers are seeded with system entropy.
        Self(AtomicU64::new(RandomState::new().build_hasher().finish()))
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }
}
