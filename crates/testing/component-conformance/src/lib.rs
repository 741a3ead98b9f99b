//! Conformance suites: the rules for implementations of each component trait.
//!
//! A suite runs all its rules on separate keys and panics at the end with all violations. Options describe
//! behaviour that differs between Dapr's stores.

mod bindings;
mod configuration;
mod conversation;
mod crypto;
mod lock;
mod middleware;
mod outlives;
mod pubsub;
mod secrets;
mod settings;
mod state;

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep};

pub use self::{
    bindings::{
        Link, Source, input_binding, input_binding_outlives, output_binding, output_binding_outlives,
    },
    configuration::{Writer, configuration},
    conversation::conversation,
    crypto::{CryptoKeys, crypto},
    lock::lock,
    middleware::{middleware, middleware_refuses},
    outlives::{configuration_outlives, lock_outlives, state_outlives},
    pubsub::{
        PubSubRules, pubsub, pubsub_members, pubsub_outlives, pubsub_outlives_long, pubsub_outlives_silence,
    },
    secrets::{ExpectedSecrets, secrets},
    settings::settings,
    state::{StateRules, state, state_after_close},
};

/// Result of a rule.
type Outcome = Result<(), String>;

/// Deadline for events that must happen.
const SOON: Duration = Duration::from_secs(10);

macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(format!($($why)+));
        }
    };
}
use ensure;

/// Adds the failing step to an error.
trait Step<T> {
    fn step(self, what: &str) -> Result<T, String>;
}

impl<T, E: std::fmt::Display> Step<T> for Result<T, E> {
    fn step(self, what: &str) -> Result<T, String> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

/// Collects violations.
struct Findings {
    suite: &'static str,
    broken: Vec<String>,
}

impl Findings {
    fn new(suite: &'static str) -> Self {
        Self {
            suite,
            broken: Vec::new(),
        }
    }

    fn note(&mut self, rule: &str, outcome: Outcome) {
        if let Err(reason) = outcome {
            self.broken.push(format!("{rule}: {reason}"));
        }
    }

    fn finish(self) {
        assert!(
            self.broken.is_empty(),
            "{} rules of the {} suite are broken:\n  {}",
            self.broken.len(),
            self.suite,
            self.broken.join("\n  ")
        );
    }
}

/// Polls every few milliseconds until `holds` returns true.
async fn soon<F: Future<Output = Result<bool, String>>>(what: &str, mut holds: impl FnMut() -> F) -> Outcome {
    let deadline = Instant::now() + SOON;
    while !holds().await? {
        ensure!(Instant::now() < deadline, "{what}: not within {SOON:?}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// A text unique to this run, because real servers keep data of earlier runs.
fn unique() -> String {
    use std::{
        hash::{BuildHasher, RandomState},
        time::SystemTime,
    };
    let now = SystemTime::now();
    format!("{:016x}", RandomState::new().hash_one(now))
}
