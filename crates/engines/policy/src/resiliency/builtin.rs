//! Built-in retry policies, for targets without a configured one.

use std::time::Duration;

use super::retry::{Backoff, CodeMatch, RetrySpec};

/// A built-in retry policy. A configured retry policy of the same name overrides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Builtin {
    /// Remote invocation of apps without an entry in `targets.apps`.
    ServiceRetries,
    /// Starting workflows.
    ActorRetries,
    /// Reminders; defined, but not used by any call.
    ActorReminderRetries,
    /// Reading the app's subscriptions.
    InitializationRetries,
    /// Routing to actors whose type has no entry in `targets.actors`. Cannot be overridden.
    ActorNotFoundRetries,
}

impl Builtin {
    /// All policies, in the order of their discriminants.
    pub(super) const ALL: [Self; 5] = [
        Self::ServiceRetries,
        Self::ActorRetries,
        Self::ActorReminderRetries,
        Self::InitializationRetries,
        Self::ActorNotFoundRetries,
    ];
    /// The policy that users cannot override.
    pub(super) const PROTECTED: Self = Self::ActorNotFoundRetries;

    /// The name in configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ServiceRetries => "DaprBuiltInServiceRetries",
            Self::ActorRetries => "DaprBuiltInActorRetries",
            Self::ActorReminderRetries => "DaprBuiltInActorReminderRetries",
            Self::InitializationRetries => "DaprBuiltInInitializationRetries",
            Self::ActorNotFoundRetries => "DaprBuiltInActorNotFoundRetries",
        }
    }

    pub(super) fn retry(self) -> RetrySpec {
        const SECOND: Duration = Duration::from_secs(1);
        let (backoff, retries) = match self {
            Self::ServiceRetries | Self::ActorRetries => (Backoff::Constant(SECOND), 3),
            Self::ActorReminderRetries => (Backoff::exponential(Duration::from_secs(60)), 0),
            Self::InitializationRetries => (
                Backoff::Exponential {
                    initial: Backoff::INITIAL,
                    max: SECOND,
                    max_elapsed: Some(Duration::from_secs(10)),
                },
                3,
            ),
            Self::ActorNotFoundRetries => (Backoff::Constant(SECOND), 5),
        };
        RetrySpec {
            backoff,
            max_retries: Some(retries),
            matching: CodeMatch::default(),
        }
    }
}
