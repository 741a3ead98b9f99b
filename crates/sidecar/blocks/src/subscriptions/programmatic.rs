//! Programmatic subscriptions: `GET /dapr/subscribe`, or `ListTopicSubscriptions`.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use outrigger_component::Pairs;
use outrigger_go_json::{Strings, first_from_slice};
use outrigger_nearest::hint;
use outrigger_policy::resiliency::{Builtin, Key, Outcome};
use outrigger_resources::json::{JsonObject, Object, value};
use outrigger_resources::subscription::{BulkSubscribe, Routes, Rule};
use outrigger_runtime::app::{AppChannel, AppError};
use outrigger_runtime::call::{AppStatus, Call};
use outrigger_runtime::resilience::{Attempts, grpc_outcome};
use outrigger_telemetry::trace::Parent;
use outrigger_transport::body::Body;
use outrigger_transport::headers::names;
use outrigger_wire::runtime::v1::{ListTopicSubscriptionsResponse, TopicSubscription};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tonic::Code;

use super::spec::SubscriptionSpec;
use super::{AppSubscription, Dependencies, LOG};

const LIST: &str = "/dapr.proto.runtime.v1.AppCallback/ListTopicSubscriptions";
/// Largest response, bytes.
const MAX_ANSWER: usize = 4 << 20;
/// Most subscriptions of one app.
const MAX_SUBSCRIPTIONS: usize = 10_000;
/// Broker names in one log line.
const SHOWN: usize = 10;

/// Asks the app, with retries under the built-in policy. Invalid subscriptions are logged.
pub(super) async fn ask(app: &AppChannel, dependencies: &Dependencies) -> Vec<AppSubscription> {
    let resilience = &dependencies.resilience;
    let policy = Arc::clone(resilience.policies.load().builtin(Builtin::InitializationRetries));
    let attempts = Attempts::new(Some(&policy), Key::NONE, &resilience.metrics);
    let answered = if app.is_grpc() {
        attempts.run(|_| over_grpc(app)).await
    } else {
        attempts.run(|_| over_http(app, &dependencies.app_id)).await
    };
    let said = match answered {
        Ok(Ok(said)) => said,
        Ok(Err(error)) => {
            tracing::error!(target: LOG, "error getting topic list from app: {error}");
            return Vec::new();
        }
        Err(refused) => {
            tracing::error!(target: LOG, "error getting topic list from app: {refused}");
            return Vec::new();
        }
    };
    let wanted = usable(said);
    if let Some(text) = without_broker(&wanted, &dependencies.pubsubs.names()) {
        tracing::warn!(target: LOG, "{text}");
    }
    wanted
}

/// The warning about brokers that are not loaded, whose subscriptions get no events.
fn without_broker(wanted: &[AppSubscription], brokers: &[String]) -> Option<String> {
    let named = wanted.iter().map(|wanted| &wanted.pubsub);
    let mut missing: Vec<_> = named.filter(|pubsub| !brokers.contains(pubsub)).collect();
    missing.sort_unstable();
    missing.dedup();
    let hint = hint(missing.first()?, brokers.iter().map(String::as_str));
    let more = match missing.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    missing.truncate(SHOWN);
    Some(format!(
        "the app subscribes to topics of pub/sub components that are not loaded: {missing:?}{more}: it gets no events of \
         them until they are ({hint}add them, or correct pubsubname in the app's subscriptions)"
    ))
}

fn usable(said: Vec<SubscriptionSpec>) -> Vec<AppSubscription> {
    if said.len() > MAX_SUBSCRIPTIONS {
        tracing::error!(
            target: LOG,
            "the app has more than {MAX_SUBSCRIPTIONS} subscriptions: the rest are ignored"
        );
    }
    let mut usable = Vec::with_capacity(said.len().min(MAX_SUBSCRIPTIONS));
    for said in said.into_iter().take(MAX_SUBSCRIPTIONS) {
        let (pubsub, topic) = (said.pubsub.clone(), said.topic.clone());
        match AppSubscription::programmatic(said) {
            Ok(wanted) if wanted.routes.is_empty() => tracing::warn!(
                target: LOG,
                "topic {topic} has an empty routes. removing from subscriptions list"
            ),
            Ok(wanted) => {
                tracing::info!(
                    target: LOG,
                    "app is subscribed to the following topics: [{topic}] through pubsub={pubsub}"
                );
                usable.push(wanted);
            }
            Err(error) => tracing::error!(
                target: LOG,
                "subscription of the app to topic {topic} of {pubsub} ignored: {error}"
            ),
        }
    }
    usable
}

type AttemptResult = (Result<Vec<SubscriptionSpec>, String>, Outcome);

async fn over_http(app: &AppChannel, app_id: &str) -> AttemptResult {
    let (status, body) = match get(app, app_id).await {
        Ok(answer) => answer,
        Err(error) => return (Err(error.to_string()), Outcome::Failure { code: None }),
    };
    let said = match status {
        200 if body.trim_ascii().is_empty() => Ok(Vec::new()),
        200 => {
            read(&body).map_err(|error| format!("its answer to GET /dapr/subscribe cannot be read: {error}"))
        }
        404 => Ok(Vec::new()),
        other => Err(format!(
            "app returned http status code {other} from subscription endpoint"
        )),
    };
    // Any response counts: only an unreachable app is retried.
    (said, Outcome::Success)
}

/// Parses the list of an HTTP app.
fn read(body: &[u8]) -> Result<Vec<SubscriptionSpec>, serde_json::Error> {
    let forms: Option<First<JsonObject<HttpForm>>> = first_from_slice(body)?;
    let forms = forms.map_or_else(Vec::new, |First(forms)| forms).into_iter();
    Ok(forms
        .map(|JsonObject(form)| SubscriptionSpec::from(form))
        .collect())
}

/// The first elements of a list, up to one more than [`MAX_SUBSCRIPTIONS`].
struct First<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Elements<T> {
            type Value = First<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<First<T>, A::Error> {
                let mut first = Vec::new();
                while let Some(element) = elements.next_element()? {
                    first.push(element);
                    if first.len() > MAX_SUBSCRIPTIONS {
                        while elements.next_element::<IgnoredAny>()?.is_some() {}
                        break;
                    }
                }
                Ok(First(first))
            }
        }

        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

async fn get(app: &AppChannel, app_id: &str) -> Result<(u16, Bytes), AppError> {
    let mut metadata = HeaderMap::new();
    if let Ok(id) = HeaderValue::try_from(app_id) {
        metadata.insert(names::APP_ID, id);
    }
    let path = "dapr/subscribe".to_owned();
    let call = Call::own(Method::GET, path, metadata, Body::Empty, Parent::default());
    let reply = Box::pin(app.invoke(call)).await?;
    let AppStatus::Http(status) = reply.status else {
        return Err(AppError::NoChannel);
    };
    let body = reply.body.collect_up_to(MAX_ANSWER).await;
    Ok((status, body.map_err(|error| AppError::Body(error.to_string()))?))
}

async fn over_grpc(app: &AppChannel) -> AttemptResult {
    let listed = app
        .callback::<ListTopicSubscriptionsResponse>(LIST, &(), &Parent::default())
        .await;
    match listed {
        Ok(answer) => {
            let said = answer
                .subscriptions
                .into_iter()
                .map(SubscriptionSpec::from)
                .collect();
            (Ok(said), Outcome::Success)
        }
        Err(status) if status.code() == Code::Unimplemented => {
            tracing::info!(
                target: LOG,
                "pubsub subscriptions: gRPC app does not implement ListTopicSubscriptions"
            );
            (Ok(Vec::new()), Outcome::Success)
        }
        Err(status) => (Err(status.to_string()), grpc_outcome(status.code() as i32)),
    }
}

/// Both versions of the HTTP form.
#[derive(Default)]
struct HttpForm {
    pubsub: String,
    topic: String,
    dead_letter: String,
    metadata: Pairs,
    route: String,
    routes: Routes,
    bulk: BulkSubscribe,
}

impl<'de> Object<'de> for HttpForm {
    const NAME: &'static str = "an object with pubsubname, topic and routes";

    fn member<A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        let is = |expected: &str| name.eq_ignore_ascii_case(expected);
        if is("pubsubname") {
            self.pubsub = value(map)?;
        } else if is("topic") {
            self.topic = value(map)?;
        } else if is("deadLetterTopic") {
            self.dead_letter = value(map)?;
        } else if is("metadata") {
            Strings(self.metadata) = value(map)?;
        } else if is("route") {
            self.route = value(map)?;
        } else if is("routes") {
            JsonObject(self.routes) = value(map)?;
        } else if is("bulkSubscribe") {
            JsonObject(self.bulk) = value(map)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

impl From<HttpForm> for SubscriptionSpec {
    fn from(form: HttpForm) -> Self {
        let mut routes = form.routes;
        if routes.default.is_empty() {
            routes.default = form.route;
        }
        Self {
            pubsub: form.pubsub,
            topic: form.topic,
            routes,
            dead_letter: form.dead_letter,
            metadata: form.metadata,
            bulk: form.bulk,
        }
    }
}

impl From<TopicSubscription> for SubscriptionSpec {
    fn from(form: TopicSubscription) -> Self {
        let routes = form.routes.unwrap_or_default();
        let mut rules: Vec<_> = routes
            .rules
            .into_iter()
            .map(|rule| Rule {
                r#match: rule.r#match,
                path: rule.path,
            })
            .collect();
        if rules.is_empty() && routes.default.is_empty() {
            // Without rules, everything goes to the method without a path.
            rules.push(Rule::default());
        }
        let bulk = form.bulk_subscribe.unwrap_or_default();
        Self {
            pubsub: form.pubsub_name,
            topic: form.topic,
            routes: Routes {
                rules,
                default: routes.default,
            },
            dead_letter: form.dead_letter_topic,
            metadata: form.metadata,
            bulk: BulkSubscribe {
                enabled: bulk.enabled,
                max_messages_count: bulk.max_messages_count,
                max_await_duration_ms: bulk.max_await_duration_ms,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Topics and their routes: rules and paths.
    fn said(json: &str) -> Vec<(String, Vec<(String, String)>)> {
        let shown = usable(read(json.as_bytes()).unwrap()).into_iter().map(|wanted| {
            let routes = wanted.routes.shown();
            let routes = routes.map(|(rule, path)| (rule.to_owned(), path.to_owned()));
            (wanted.topic.clone(), routes.collect())
        });
        shown.collect()
    }

    #[test]
    fn parses_both_http_forms() {
        let all = said(
            r#"[{"pubsubname":"p","topic":"one","route":"/one","metadata":{"x":null}},
                {"pubsubname":"p","topic":"two","route":"/unused","metadata":null,
                 "routes":{"rules":[{"match":"event.type == 'x'","path":"/x"}],"default":"/two"}},
                {"pubsubname":"p","topic":"none","routes":{}},
                {"pubsubname":"p","topic":"malformed","routes":{"rules":[{"match":"event.","path":"/x"}]}}]"#,
        );
        let pair = |rule: &str, path: &str| (rule.to_owned(), path.to_owned());
        assert_eq!(
            all,
            [
                ("one".to_owned(), vec![pair("", "/one")]),
                (
                    "two".to_owned(),
                    vec![pair("event.type == 'x'", "/x"), pair("", "/two")]
                ),
            ]
        );
    }

    /// SDKs spell member names differently, and Java's sends absent values as null.
    #[test]
    fn parses_forms_of_sdks() {
        let java = r#"[{"pubsubName":"p","topic":"t","route":null,"routes":{"rules":[{"match":"event.type == 'x'",
            "path":"/x"}],"default":"/t"},"metadata":{"rawPayload":"true"},"deadLetterTopic":null,"bulkSubscribe":null}]"#;
        let dotnet = r#"[{"topic":"t","pubsubName":"p","routes":{"rules":[{"match":"event.type == 'x'","path":"/x"}],
            "default":"/t"},"metadata":{"rawPayload":"true"}}]"#;
        let pascal = r#"[{"Topic":"t","PubsubName":"p","Routes":{"Rules":[{"Match":"event.type == 'x'","Path":"/x"}],
            "Default":"/t"},"Metadata":{"rawPayload":"true"}}] "#;
        for json in [java, dotnet, pascal] {
            let wanted = usable(read(json.as_bytes()).unwrap());
            let [wanted] = &wanted[..] else {
                panic!("{json}");
            };
            assert_eq!((&*wanted.pubsub, &*wanted.topic), ("p", "t"), "{json}");
            assert!(wanted.raw && wanted.dead_letter.is_none() && wanted.bulk.is_none());
            let routes: Vec<_> = wanted.routes.shown().collect();
            assert_eq!(routes, [("event.type == 'x'", "/x"), ("", "/t")], "{json}");
        }
        let bulk = r#"[{"pubsubName":"p","topic":"t","deadLetterTopic":"d","route":"/t","routes":null,"metadata":null,
            "bulkSubscribe":{"enabled":true,"maxMessagesCount":7,"maxAwaitDurationMs":null}}]"#;
        let wanted = usable(read(bulk.as_bytes()).unwrap());
        assert_eq!(wanted[0].bulk.as_ref().map(|bulk| bulk.count), Some(7));
        assert_eq!(wanted[0].dead_letter.as_deref(), Some("d"));
    }

    #[test]
    fn ignores_null_and_trailing_data() {
        let all = said(
            r#"[{"pubsubname":"p","topic":"t","routes":{"rules":[{"match":null,"path":"/t"}],"default":null}},null]
               [{"topic":5}"#,
        );
        assert_eq!(all, [("t".to_owned(), vec![(String::new(), "/t".to_owned())])]);
        for none in ["null", "[]"] {
            assert!(said(none).is_empty(), "{none}");
        }
        for wrong in ["", "{}", "[1]", r#"[{"topic":5}]"#] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn keeps_first_subscriptions() {
        let list = |count| read(format!("[{}]", vec!["{}"; count].join(",")).as_bytes()).unwrap();
        assert_eq!(list(MAX_SUBSCRIPTIONS).len(), MAX_SUBSCRIPTIONS);
        assert_eq!(list(10 * MAX_SUBSCRIPTIONS).len(), MAX_SUBSCRIPTIONS + 1);
        let rest_is_cut_off = format!("[{}{{", "{},".repeat(MAX_SUBSCRIPTIONS + 1));
        assert!(read(rest_is_cut_off.as_bytes()).is_err());
    }

    #[test]
    fn reports_missing_brokers_once() {
        let wanted = |pubsub: &str| AppSubscription::to_path(pubsub, "t", "/t");
        let brokers = ["orders".to_owned()];
        assert_eq!(without_broker(&[wanted("orders")], &brokers), None);
        let told = [wanted("order"), wanted("orders"), wanted("zoo"), wanted("order")];
        let told = without_broker(&told, &brokers).unwrap();
        assert!(told.contains(r#"not loaded: ["order", "zoo"]: "#), "{told}");
        assert!(told.contains("did you mean orders? add"), "{told}");
        assert!(without_broker(&[wanted("")], &brokers).is_some());
    }

    #[test]
    fn grpc_without_routes_has_default_route() {
        let form = TopicSubscription {
            pubsub_name: "p".to_owned(),
            topic: "t".to_owned(),
            ..TopicSubscription::default()
        };
        let wanted = usable(vec![form.into()]);
        assert_eq!(wanted[0].routes.shown().collect::<Vec<_>>(), [("", "")]);
    }
}
