//! What the app says it wants: `GET /dapr/subscribe`, or `ListTopicSubscriptions`.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use outrigger_component::go_json::Strings;
use outrigger_policy::resiliency::{Builtin, Key, Outcome};
use outrigger_resources::subscription::{BulkSubscribe, Routes, Rule};
use outrigger_runtime::app::{AppChannel, AppError};
use outrigger_runtime::call::{AppStatus, Call};
use outrigger_runtime::resilience::{Attempts, grpc_outcome};
use outrigger_telemetry::trace::Parent;
use outrigger_transport::body::Body;
use outrigger_transport::headers::names;
use outrigger_wire::runtime::v1::{ListTopicSubscriptionsResponse, TopicSubscription};
use serde::Deserialize;
use tonic::Code;

use super::spec::SubscriptionSpec;
use super::{AppSubscription, Dependencies, LOG};

const LIST: &str = "/dapr.proto.runtime.v1.AppCallback/ListTopicSubscriptions";
/// Largest answer, bytes.
const MAX_ANSWER: usize = 4 << 20;
/// Subscriptions of one app.
const MAX_SUBSCRIPTIONS: usize = 10_000;

/// Asks the app, again and again under the built-in policy for that. What it says and cannot be used is logged.
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
    usable(said)
}

fn usable(said: Vec<SubscriptionSpec>) -> Vec<AppSubscription> {
    if said.len() > MAX_SUBSCRIPTIONS {
        tracing::error!(
            target: LOG,
            "the app has {} subscriptions: those above {MAX_SUBSCRIPTIONS} are ignored",
            said.len()
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
                "the app's subscription to topic {topic} of {pubsub} is not served: {error}"
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
        200 => serde_json::from_slice::<Option<Vec<HttpForm>>>(&body)
            .map(|forms| {
                forms
                    .unwrap_or_default()
                    .into_iter()
                    .map(SubscriptionSpec::from)
                    .collect()
            })
            .map_err(|error| format!("its answer to GET /dapr/subscribe cannot be read: {error}")),
        404 => Ok(Vec::new()),
        other => Err(format!(
            "app returned http status code {other} from subscription endpoint"
        )),
    };
    // An answer is an answer: only an app that cannot be reached is asked again.
    (said, Outcome::Success)
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

/// Of both versions.
#[derive(Deserialize)]
struct HttpForm {
    #[serde(default)]
    pubsubname: String,
    #[serde(default)]
    topic: String,
    #[serde(default, rename = "deadLetterTopic")]
    dead_letter_topic: Option<String>,
    #[serde(default)]
    metadata: Option<Strings>,
    #[serde(default)]
    route: Option<String>,
    #[serde(default)]
    routes: Option<HttpRoutes>,
    #[serde(default, rename = "bulkSubscribe")]
    bulk_subscribe: Option<BulkSubscribe>,
}

#[derive(Default, Deserialize)]
struct HttpRoutes {
    #[serde(default)]
    rules: Option<Vec<Rule>>,
    #[serde(default)]
    default: Option<String>,
}

impl From<HttpForm> for SubscriptionSpec {
    fn from(form: HttpForm) -> Self {
        let routes = form.routes.unwrap_or_default();
        let default = routes.default.filter(|path| !path.is_empty());
        Self {
            pubsub: form.pubsubname,
            topic: form.topic,
            routes: Routes {
                rules: routes.rules.unwrap_or_default(),
                default: default.or(form.route).unwrap_or_default(),
            },
            dead_letter: form.dead_letter_topic.unwrap_or_default(),
            metadata: form.metadata.unwrap_or_default().0,
            bulk: form.bulk_subscribe.unwrap_or_default(),
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
            // Everything goes to the method without a path.
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

    fn said(json: &str) -> Vec<(String, Vec<(String, String)>)> {
        let forms: Vec<HttpForm> = serde_json::from_str(json).unwrap();
        let wanted = usable(forms.into_iter().map(SubscriptionSpec::from).collect());
        let shown = wanted.into_iter().map(|wanted| {
            let routes = wanted.routes.shown();
            let routes = routes.map(|(rule, path)| (rule.to_owned(), path.to_owned()));
            (wanted.topic.clone(), routes.collect())
        });
        shown.collect()
    }

    #[test]
    fn both_versions_of_the_http_form_are_read() {
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

    #[test]
    fn over_grpc_no_routes_are_one_without_a_path() {
        let form = TopicSubscription {
            pubsub_name: "p".to_owned(),
            topic: "t".to_owned(),
            ..TopicSubscription::default()
        };
        let wanted = usable(vec![form.into()]);
        assert_eq!(wanted[0].routes.shown().collect::<Vec<_>>(), [("", "")]);
    }
}
