use std::time::Duration;

use outrigger_component::Pairs;
use outrigger_policy::routing::{InvalidRule, Routes};
use outrigger_resources::Subscription;
use outrigger_resources::subscription::{self, BulkSubscribe};
use outrigger_resources::value::truthy;

/// Default number of messages in a bulk.
const BULK_COUNT: usize = 100;
/// Most messages in a bulk.
const MAX_BULK_COUNT: usize = 1000;
/// Default time that a bulk waits for more messages.
const BULK_WAIT: Duration = Duration::from_secs(1);

/// The origin of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscriptionType {
    /// A Subscription resource.
    Declared,
    /// The app, on request.
    Programmatic,
    /// A stream opened by the app.
    Streaming,
}

/// When a bulk is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bulk {
    /// At this many messages, 1 to 1000.
    pub(super) count: usize,
    /// Or after this time.
    pub(super) wait: Duration,
}

impl Bulk {
    pub(super) fn of(settings: &BulkSubscribe) -> Option<Self> {
        let count = usize::try_from(settings.max_messages_count).unwrap_or(0);
        let wait = u64::try_from(settings.max_await_duration_ms).unwrap_or(0);
        settings.enabled.then_some(Self {
            count: if count == 0 {
                BULK_COUNT
            } else {
                count.min(MAX_BULK_COUNT)
            },
            wait: if wait == 0 {
                BULK_WAIT
            } else {
                Duration::from_millis(wait)
            },
        })
    }
}

/// A validated subscription of the app.
#[derive(Debug, Clone, PartialEq)]
pub struct AppSubscription {
    /// Where the subscription comes from.
    pub origin: SubscriptionType,
    /// Name of the Subscription resource; empty for other origins.
    pub name: String,
    /// Name of the pub/sub component.
    pub pubsub: String,
    /// The topic; it may have wildcards if the broker supports them.
    pub topic: String,
    /// The rules that select the app's path.
    pub routes: Routes,
    /// The dead-letter topic, if any.
    pub dead_letter: Option<String>,
    /// Passed to the broker.
    pub metadata: Pairs,
    pub(super) bulk: Option<Bulk>,
    /// Whether messages have no envelopes.
    pub(super) raw: bool,
}

impl AppSubscription {
    /// A subscription from a resource.
    ///
    /// # Errors
    /// A malformed rule, with its location.
    pub(super) fn declared(resource: &Subscription) -> Result<Self, String> {
        let routes = Routes::compile(&resource.routes).map_err(|error| {
            let place = resource
                .source
                .of(&format!("spec.routes.rules[{}].match", error.number - 1));
            format!("{place}: subscription {}: {error}", resource.name)
        })?;
        Ok(Self {
            origin: SubscriptionType::Declared,
            name: resource.name.clone(),
            routes,
            ..Self::to_root(
                &resource.pubsub,
                &resource.topic,
                &resource.dead_letter_topic,
                resource.metadata.clone().into_iter().collect(),
                &resource.bulk,
            )
        })
    }

    /// A programmatic subscription.
    ///
    /// # Errors
    /// A malformed rule.
    pub(super) fn programmatic(said: SubscriptionSpec) -> Result<Self, InvalidRule> {
        Ok(Self {
            routes: Routes::compile(&said.routes)?,
            ..Self::to_root(
                &said.pubsub,
                &said.topic,
                &said.dead_letter,
                said.metadata,
                &said.bulk,
            )
        })
    }

    /// A streaming subscription.
    pub fn streaming(pubsub: &str, topic: &str, dead_letter: &str, metadata: Pairs) -> Self {
        Self {
            origin: SubscriptionType::Streaming,
            ..Self::to_root(pubsub, topic, dead_letter, metadata, &BulkSubscribe::default())
        }
    }

    /// All events go to `/` unless routes are set.
    fn to_root(pubsub: &str, topic: &str, dead_letter: &str, metadata: Pairs, bulk: &BulkSubscribe) -> Self {
        let raw = metadata
            .iter()
            .any(|(name, value)| name.eq_ignore_ascii_case("rawPayload") && truthy(value));
        Self {
            origin: SubscriptionType::Programmatic,
            name: String::new(),
            pubsub: pubsub.to_owned(),
            topic: topic.to_owned(),
            routes: Routes::always("/"),
            dead_letter: (!dead_letter.is_empty()).then(|| dead_letter.to_owned()),
            bulk: Bulk::of(bulk),
            raw,
            metadata,
        }
    }

    #[cfg(test)]
    pub(super) fn to_path(pubsub: &str, topic: &str, path: &str) -> Self {
        Self {
            routes: Routes::always(path),
            ..Self::to_root(pubsub, topic, "", Pairs::new(), &BulkSubscribe::default())
        }
    }
}

/// A subscription as the app describes it, over HTTP or gRPC.
#[derive(Debug, Default)]
pub(super) struct SubscriptionSpec {
    pub(super) pubsub: String,
    pub(super) topic: String,
    pub(super) routes: subscription::Routes,
    pub(super) dead_letter: String,
    pub(super) metadata: Pairs,
    pub(super) bulk: BulkSubscribe,
}

#[cfg(test)]
mod tests {
    use outrigger_resources::load;

    use super::*;

    fn resource(spec: &str) -> Subscription {
        let text = format!(
            "apiVersion: dapr.io/v2alpha1\nkind: Subscription\nmetadata:\n  name: s\nspec:\n  pubsubname: p\n  topic: t\n{spec}"
        );
        load::text(&text, "app").unwrap().subscriptions.remove(0)
    }

    #[test]
    fn bounds_bulk_settings() {
        let bulk = |settings: &str| {
            AppSubscription::declared(&resource(&format!("  bulkSubscribe: {settings}\n")))
                .unwrap()
                .bulk
        };
        assert_eq!(bulk("{enabled: false, maxMessagesCount: 5}"), None);
        let default = Bulk {
            count: BULK_COUNT,
            wait: BULK_WAIT,
        };
        assert_eq!(bulk("{enabled: true, maxMessagesCount: -1}"), Some(default));
        let huge = bulk("{enabled: true, maxMessagesCount: 100000, maxAwaitDurationMs: 20}").unwrap();
        assert_eq!(
            (huge.count, huge.wait),
            (MAX_BULK_COUNT, Duration::from_millis(20))
        );
    }

    #[test]
    fn malformed_rule_names_line() {
        let spec = "  routes:\n    rules:\n    - match: event.type == 'a'\n      path: /a\n    - path: /b\n      match: event.\n";
        let problem = AppSubscription::declared(&resource(spec)).unwrap_err();
        assert!(problem.contains(":13: "), "{problem}");
        assert!(problem.contains("subscription s: routing rule 2"), "{problem}");
    }
}
