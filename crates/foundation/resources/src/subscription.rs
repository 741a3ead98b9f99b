//! `Subscription` (`dapr.io/v2alpha1`, and `v1alpha1` converted to it).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::MapAccess;

use crate::json::{self, JsonObject, Object};
use crate::load::{Broken, Document, Read, V1, V2};
use crate::meta::{ObjectMeta, Source};

/// A declarative subscription of an app to a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.namespace`; may be empty.
    pub namespace: String,
    /// `spec.pubsubname`.
    pub pubsub: String,
    /// `spec.topic`.
    pub topic: String,
    /// `spec.routes`, or `spec.route` as the default.
    pub routes: Routes,
    /// `spec.deadLetterTopic`; may be empty.
    pub dead_letter_topic: String,
    /// `spec.bulkSubscribe`.
    pub bulk: BulkSubscribe,
    /// `spec.metadata`: passed to the pub/sub component. The sidecar also reads options such as
    /// `rawPayload` from it.
    pub metadata: BTreeMap<String, String>,
    /// `scopes`: app IDs; empty means all.
    pub scopes: Vec<String>,
    /// Location of the definition.
    pub source: Source,
}

impl Subscription {
    /// Whether both describe the same subscription, regardless of location; used by hot reload.
    pub fn same_as(&self, other: &Subscription) -> bool {
        let at = |s: &Subscription| Subscription {
            source: Source::default(),
            namespace: String::new(),
            ..s.clone()
        };
        at(self) == at(other)
    }
}

/// Routes of a subscription's events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Routes {
    /// Evaluated in order.
    pub rules: Vec<Rule>,
    /// Path (HTTP) or method (gRPC) if no rule matches; may be empty.
    pub default: String,
}

/// One route.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Rule {
    /// CEL expression on `event`; empty always matches.
    pub r#match: String,
    /// Path (HTTP) or method (gRPC).
    pub path: String,
}

/// `spec.bulkSubscribe`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BulkSubscribe {
    /// Deliver several events in one call.
    pub enabled: bool,
    /// Maximum events per call; 0 means the default.
    pub max_messages_count: i32,
    /// Maximum wait for more events, in milliseconds; 0 means the default.
    pub max_await_duration_ms: i32,
}

// As returned by apps.

impl<'de> Object<'de> for Routes {
    const NAME: &'static str = "an object with rules and default";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        if name.eq_ignore_ascii_case("rules") {
            let rules: Vec<JsonObject<Rule>> = json::list(map)?;
            self.rules = rules.into_iter().map(|JsonObject(rule)| rule).collect();
        } else if name.eq_ignore_ascii_case("default") {
            self.default = json::value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

impl<'de> Object<'de> for Rule {
    const NAME: &'static str = "an object with match and path";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        if name.eq_ignore_ascii_case("match") {
            self.r#match = json::value(map)?;
        } else if name.eq_ignore_ascii_case("path") {
            self.path = json::value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

impl<'de> Object<'de> for BulkSubscribe {
    const NAME: &'static str = "an object with enabled, maxMessagesCount and maxAwaitDurationMs";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        if is("enabled") {
            self.enabled = json::value(map)?;
        } else if is("maxMessagesCount") {
            self.max_messages_count = json::value(map)?;
        } else if is("maxAwaitDurationMs") {
            self.max_await_duration_ms = json::value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

impl Read for Subscription {
    const VERSIONS: &'static [&'static str] = &[V1, V2];

    fn read(document: &mut Document<'_>, api_version: &str) -> Result<Option<Self>, Broken> {
        let subscription = match api_version {
            V1 => {
                let (raw, source) = document.decode::<RawV1>()?;
                raw.finish(source)
            }
            _ => {
                let (raw, source) = document.decode::<RawV2>()?;
                raw.finish(source)
            }
        };
        // Reasons why it would never receive an event.
        for (key, value) in [
            ("spec.pubsubname", &subscription.pubsub),
            ("spec.topic", &subscription.topic),
        ] {
            if value.is_empty() {
                document.warn(
                    format!("{key} is missing: the subscription gets no events"),
                    &format!("set {key}"),
                );
            }
        }
        Ok(Some(subscription))
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawV2 {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: ObjectMeta,
    spec: SpecV2,
    scopes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecV2 {
    pubsubname: String,
    topic: String,
    metadata: BTreeMap<String, String>,
    routes: Routes,
    dead_letter_topic: String,
    bulk_subscribe: BulkSubscribe,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct RawV1 {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: ObjectMeta,
    spec: SpecV1,
    scopes: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecV1 {
    pubsubname: String,
    topic: String,
    metadata: BTreeMap<String, String>,
    route: String,
    dead_letter_topic: String,
    bulk_subscribe: BulkSubscribe,
}

impl RawV2 {
    pub(crate) fn finish(self, source: Source) -> Subscription {
        Subscription {
            name: self.metadata.name,
            namespace: self.metadata.namespace,
            pubsub: self.spec.pubsubname,
            topic: self.spec.topic,
            routes: self.spec.routes,
            dead_letter_topic: self.spec.dead_letter_topic,
            bulk: self.spec.bulk_subscribe,
            metadata: self.spec.metadata,
            scopes: self.scopes,
            source,
        }
    }
}

impl RawV1 {
    pub(crate) fn finish(self, source: Source) -> Subscription {
        Subscription {
            name: self.metadata.name,
            namespace: self.metadata.namespace,
            pubsub: self.spec.pubsubname,
            topic: self.spec.topic,
            routes: Routes {
                rules: Vec::new(),
                default: self.spec.route,
            },
            dead_letter_topic: self.spec.dead_letter_topic,
            bulk: self.spec.bulk_subscribe,
            metadata: self.spec.metadata,
            scopes: self.scopes,
            source,
        }
    }
}
