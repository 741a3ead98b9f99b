//! Notifies the app of configuration changes.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use http::{HeaderMap, Method};
use outrigger_component::configuration::{Item, Items};
use outrigger_delivery::Limits;
use outrigger_policy::resiliency::Outcome;
use outrigger_runtime::app::{AppChannel, Health};
use outrigger_runtime::call::{AppStatus, Call};
use outrigger_runtime::delivery::{self, OnStop, Undelivered};
use outrigger_runtime::metrics::SidecarMetrics;
use outrigger_runtime::resilience::{Attempt, ComponentPolicy};
use outrigger_telemetry::trace::Parent;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const LOG: &str = "dapr.runtime.http";
/// Bytes of the app's response that are read to keep the connection reusable; they are ignored.
const MAX_ANSWER: usize = 64 * 1024;
/// Undelivered changes of one subscription; further ones wait in the store.
const MAX_UNSETTLED: usize = 64;
const LIMITS: Limits = Limits {
    in_flight: 1,
    unsettled: MAX_UNSETTLED,
};

/// The app's endpoint for changes.
pub(super) struct App {
    channel: Arc<AppChannel>,
    health: Health,
    metrics: Arc<SidecarMetrics>,
}

impl App {
    pub(super) fn new(channel: Arc<AppChannel>, health: Health, metrics: Arc<SidecarMetrics>) -> Self {
        Self {
            channel,
            health,
            metrics,
        }
    }

    /// Delivers `updates` to the app until they end or `stop`: one call for each changed key, with the whole
    /// change. Changes of a key arrive in order. While the app is unhealthy they wait, because nothing would
    /// send them later. A change that finally fails is logged.
    pub(super) async fn follow(
        &self,
        store: &str,
        id: &str,
        mut updates: mpsc::Receiver<Items>,
        policy: &ComponentPolicy,
        stop: &CancellationToken,
    ) {
        let (inbox, engine) = delivery::engine(LIMITS, None, &self.metrics);
        let engine = engine.under(policy).while_healthy(self.health.clone());
        let reading = async move {
            let mut deliveries = FuturesUnordered::new();
            loop {
                let items = tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    Some(result) = deliveries.next(), if !deliveries.is_empty() => {
                        log(result);
                        continue;
                    }
                    items = updates.recv() => items,
                };
                let Some(items) = items else { break };
                for (key, change) in changes(store, id, &items) {
                    deliveries.push(inbox.offer(Some(key), change).await.settled());
                    while let Some(Some(result)) = deliveries.next().now_or_never() {
                        log(result);
                    }
                }
            }
            drop(inbox);
            while let Some(result) = deliveries.next().await {
                log(result);
            }
        };
        let delivering = engine.run(stop, OnStop::FinishAttempts, |change, limit| {
            self.attempt(change, limit)
        });
        tokio::join!(reading, delivering);
    }

    async fn attempt(&self, change: Arc<Change>, limit: Attempt) -> (Result<(), String>, Outcome) {
        match limit.within(pin!(self.post(&change))).await {
            Some(Ok(())) => (Ok(()), Outcome::Success),
            Some(Err(error)) => (Err(error), Outcome::Failure { code: None }),
            None => (Err("context deadline exceeded".to_owned()), Outcome::TimedOut),
        }
    }

    async fn post(&self, change: &Change) -> Result<(), String> {
        let (method, body) = (change.method.clone(), change.body.clone().into());
        let call = Call::own(Method::POST, method, HeaderMap::new(), body, Parent::default());
        let reply = Box::pin(self.channel.invoke(call)).await;
        let reply = reply.map_err(|error| error.to_string())?;
        let _rest = reply.body.collect_up_to(MAX_ANSWER).await;
        match reply.status {
            AppStatus::Http(200) | AppStatus::Grpc { code: 0, .. } => Ok(()),
            status => Err(format!(
                "error sending configuration item to application, status {}",
                status.code()
            )),
        }
    }
}

/// A changed key to be delivered.
struct Change {
    method: String,
    body: Bytes,
}

/// The notifications for a change, sorted by key.
fn changes(store: &str, id: &str, items: &Items) -> Vec<(String, Change)> {
    let body = event(id, items);
    let mut keys: Vec<_> = items.keys().collect();
    keys.sort_unstable();
    let change = |key: &String| {
        let Some(method) = method(store, key) else {
            log(Ok(Err(format!("the key {key:?} cannot be part of a path"))));
            return None;
        };
        let body = body.clone();
        Some((key.clone(), Change { method, body }))
    };
    keys.into_iter().filter_map(change).collect()
}

fn log(outcome: Result<Result<(), String>, Undelivered>) {
    let error = match outcome {
        Ok(Ok(())) | Err(Undelivered::Stopped) => return,
        Ok(Err(error)) => error,
        Err(refused) => refused.to_string(),
    };
    tracing::error!(target: LOG, "error sending configuration item to the app: {error}");
}

/// The app's endpoint for a key; `None` if the key would escape the path.
fn method(store: &str, key: &str) -> Option<String> {
    let climbs = key.split('/').any(|segment| matches!(segment, "." | ".."));
    (!climbs).then(|| format!("configuration/{store}/{key}"))
}

fn event(id: &str, items: &Items) -> Bytes {
    let items: Map<String, Value> = items
        .iter()
        .map(|(key, item)| (key.clone(), item_json(item)))
        .collect();
    json!({ "id": id, "items": items }).to_string().into()
}

/// A value as JSON without empty members.
pub fn item_json(item: &Item) -> Value {
    let mut members = Map::new();
    for (name, text) in [("value", &item.value), ("version", &item.version)] {
        if !text.is_empty() {
            members.insert(name.to_owned(), text.as_str().into());
        }
    }
    if !item.metadata.is_empty() {
        members.insert("metadata".to_owned(), json!(item.metadata));
    }
    members.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omits_empty_members() {
        let item = Item {
            value: "v".to_owned(),
            ..Item::default()
        };
        let items = Items::from([("a".to_owned(), item), ("gone".to_owned(), Item::default())]);
        let event: Value = serde_json::from_slice(&event("7", &items)).unwrap();
        assert_eq!(
            event,
            json!({"id": "7", "items": {"a": {"value": "v"}, "gone": {}}})
        );
    }

    #[test]
    fn keys_cannot_escape_path() {
        assert_eq!(method("s", "a/b c?").as_deref(), Some("configuration/s/a/b c?"));
        for key in ["../x", "a/../../b", "..", "a/."] {
            assert_eq!(method("s", key), None, "{key}");
        }
    }
}
