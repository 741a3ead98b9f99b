//! Telling the app of changed configuration.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method};
use outrigger_component::configuration::{Item, Items};
use outrigger_policy::resiliency::{Key, Outcome, Policy};
use outrigger_telemetry::trace::Parent;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::app::{AppChannel, Health};
use crate::call::{AppStatus, Call};
use crate::metrics::SidecarMetrics;
use crate::resilience::Attempts;

const LOG: &str = "dapr.runtime.http";
/// Bytes of the app's answer that are read, so that the connection can be used again; nothing looks at them.
const MAX_ANSWER: usize = 64 * 1024;

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

    /// Tells of each changed key, one after the other; the whole change each time. While the app is unwell this waits:
    /// nobody would tell it again later. What it does not take in the end is logged.
    pub(super) async fn tell(
        &self,
        store: &str,
        id: &str,
        items: &Items,
        policy: Option<&Policy>,
        stop: &CancellationToken,
    ) {
        let body = event(id, items);
        let mut keys: Vec<_> = items.keys().collect();
        keys.sort_unstable();
        for key in keys {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.health.until_healthy() => {}
            }
            let told = match method(store, key) {
                Some(method) => self.one(&method, &body, policy, stop).await,
                None => Err(format!("the key {key:?} cannot be part of a path")),
            };
            if let Err(error) = told {
                tracing::error!(target: LOG, "error sending configuration item to the app: {error}");
            }
        }
    }

    async fn one(
        &self,
        method: &str,
        body: &Bytes,
        policy: Option<&Policy>,
        stop: &CancellationToken,
    ) -> Result<(), String> {
        let attempts = Attempts::new(policy, Key::NONE, &self.metrics).until(stop);
        let told = attempts.run(|limit| async move {
            let attempt = self.attempt(method, body.clone());
            match limit.within(pin!(attempt)).await {
                Some(Ok(())) => (Ok(()), Outcome::Success),
                Some(Err(error)) => (Err(error), Outcome::Failure { code: None }),
                None => (Err("context deadline exceeded".to_owned()), Outcome::TimedOut),
            }
        });
        told.await.map_err(|refused| refused.to_string())?
    }

    async fn attempt(&self, method: &str, body: Bytes) -> Result<(), String> {
        let (metadata, trace) = (HeaderMap::new(), Parent::default());
        let call = Call::own(Method::POST, method.to_owned(), metadata, body.into(), trace);
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

/// The app's endpoint for a key; `None` for a key that would lead somewhere else.
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

/// A value as JSON, empty members left out.
pub(crate) fn item_json(item: &Item) -> Value {
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
    fn an_event_has_only_what_there_is() {
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
    fn keys_stay_below_their_store() {
        assert_eq!(method("s", "a/b c?").as_deref(), Some("configuration/s/a/b c?"));
        for key in ["../x", "a/../../b", "..", "a/."] {
            assert_eq!(method("s", key), None, "{key}");
        }
    }
}
