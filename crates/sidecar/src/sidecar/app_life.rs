//! What happens once with the app at start: wait for its port, read its configuration.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Method};
use outrigger_telemetry::trace::Parent;

use super::LOG;
use crate::app::{AppChannel, Health, wait_for_port};
use crate::body::Body;
use crate::call::{AppStatus, Call};
use crate::config::{AppProtocol, Config};
use crate::headers::names;

/// Largest answer to `GET /dapr/config`, bytes.
const MAX_CONFIG: usize = 1024 * 1024;

/// Completes when the sidecar counts as initialised. With app health checks it does not wait for the app's health.
pub(super) async fn run(config: &Config, app: Option<Arc<AppChannel>>, health: Health, started: Instant) {
    match &app {
        Some(app) => {
            wait_for_port(app.address(), config.app.port, protocol(config.app.protocol)).await;
        }
        None => tracing::warn!(
            target: LOG,
            "App channel is not initialized. Did you configure an app-port?"
        ),
    }
    if let Some(limit) = config.app.max_concurrency {
        tracing::info!(target: LOG, "app max concurrency set to {limit}");
    }
    if let Some(app) = app {
        let ask = ask_config(config.app.skip_config_endpoint, config.app_id.clone(), app);
        if config.app.health.is_some() {
            tokio::spawn(async move {
                health.until_healthy().await;
                ask.await;
            });
        } else {
            ask.await;
        }
    }
    tracing::info!(
        target: LOG,
        "dapr initialized. Status: Running. Init Elapsed {}ms",
        started.elapsed().as_millis()
    );
}

/// `GET /dapr/config`: what actors the app hosts. Nothing here hosts actors yet, so the answer is checked and logged.
async fn ask_config(skip: bool, app_id: String, app: Arc<AppChannel>) {
    if skip || app.is_grpc() {
        return;
    }
    let mut metadata = HeaderMap::new();
    if let Ok(id) = HeaderValue::try_from(app_id) {
        metadata.insert(names::APP_ID, id);
    }
    let call = Call {
        method: "dapr/config".to_owned(),
        verb: Some(Method::GET),
        query: String::new(),
        content_type: Some(HeaderValue::from_static("application/json")),
        type_url: String::new(),
        metadata,
        body: Body::Empty,
        trace: Parent::default(),
    };
    let reply = match app.invoke(call).await {
        Ok(reply) => reply,
        Err(error) => {
            tracing::warn!(target: LOG, "failed to read the configuration of the app (GET /dapr/config): {error}");
            return;
        }
    };
    let loaded = matches!(reply.status, AppStatus::Http(200));
    let Ok(body) = reply.body.collect_up_to(MAX_CONFIG).await else {
        return;
    };
    if !loaded {
        return;
    }
    match serde_json::from_slice::<serde_json::Value>(&body) {
        Ok(settings) => {
            tracing::info!(target: LOG, "Application configuration loaded");
            if settings["entities"]
                .as_array()
                .is_some_and(|types| !types.is_empty())
            {
                tracing::warn!(
                    target: LOG,
                    "the app hosts actors (GET /dapr/config names entities), which this release does not offer"
                );
            }
        }
        Err(error) => tracing::warn!(
            target: LOG,
            "the app's answer to GET /dapr/config is not JSON: {error}; it is ignored"
        ),
    }
}

fn protocol(protocol: AppProtocol) -> &'static str {
    match protocol {
        AppProtocol::Http => "http",
        AppProtocol::Https => "https",
        AppProtocol::H2c => "h2c",
        AppProtocol::Grpc => "grpc",
        AppProtocol::Grpcs => "grpcs",
    }
}
