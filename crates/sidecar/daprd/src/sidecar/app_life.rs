//! The steps with the app at start: waits for its port and reads its configuration.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use outrigger_actors::settings::Settings;
use outrigger_blocks::bindings::Bindings;
use outrigger_blocks::jobs::Jobs;
use outrigger_blocks::subscriptions::Subscriptions;
use outrigger_blocks_actors::actors::Actors;
use outrigger_blocks_actors::workflow::Workflows;
use outrigger_runtime::app::AppProtocol;
use outrigger_runtime::app::{AppChannel, Health, HealthSetter, probe, wait_for_port};
use outrigger_runtime::call::{AppStatus, Call};
use outrigger_runtime::life::Tasks;
use outrigger_telemetry::trace::Parent;
use outrigger_transport::body::Body;
use outrigger_transport::headers::names;
use tokio::sync::oneshot;

use super::LOG;
use crate::config::Config;

/// Maximum size of the response to `GET /dapr/config` in bytes.
const MAX_CONFIG: usize = 1024 * 1024;

/// Completes when the sidecar counts as initialised. With app health checks, that is after the first probe,
/// whatever its result.
pub(super) async fn run(life: AppLife) {
    let AppLife {
        config,
        app,
        health,
        set_health,
        bindings,
        actors,
        workflows,
        jobs,
        subscriptions,
        background: Tasks { tasks, stop },
        started,
    } = life;
    let app_config = &config.app;
    match &app {
        Some(app) => wait_for_port(app.address(), app_config.port, protocol(app_config.protocol)).await,
        None => tracing::info!(
            target: LOG,
            "App channel is not initialized. Did you configure an app-port?"
        ),
    }
    if let Some(limit) = app_config.max_concurrency {
        tracing::info!(target: LOG, "app max concurrency set to {limit}");
    }
    let Some(app) = app else {
        actors.register(&Settings::none());
        tasks.spawn(subscriptions.follow(health, stop));
        initialized(started);
        return;
    };
    let (well, until) = (health.clone(), stop.clone());
    tasks.spawn(async move { bindings.follow(well, until).await });
    jobs.follow(health.clone());
    let ask = ask_config(
        app_config.skip_config_endpoint,
        config.app_id.clone(),
        config.control_plane.disseminate_timeout,
        Arc::clone(&app),
    );
    if let Some(checks) = app_config.health {
        let (first, probed) = oneshot::channel();
        tasks.spawn(probe(
            app,
            checks,
            app_config.health_path.clone(),
            set_health,
            first,
            stop.clone(),
        ));
        // The prober lives until the process ends.
        let _ended = probed.await;
        begin(&subscriptions, &health).await;
        tasks.spawn(subscriptions.follow(health.clone(), stop.clone()));
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = host_while_well(&actors, &workflows, &health, ask) => {}
            }
        });
    } else {
        actors.register(&ask.await);
        begin(&subscriptions, &health).await;
        tasks.spawn(subscriptions.follow(health, stop));
    }
    initialized(started);
}

/// Hosts actors while the app is healthy. The app is asked once for its actor types.
async fn host_while_well(
    actors: &Actors,
    workflows: &Workflows,
    health: &Health,
    ask: impl Future<Output = Settings>,
) {
    health.until_healthy().await;
    let settings = ask.await;
    loop {
        health.until_healthy().await;
        actors.register(&settings);
        health.until_unhealthy().await;
        workflows.app_is_unhealthy();
        actors.unregister().await;
    }
}

fn initialized(started: Instant) {
    tracing::info!(
        target: LOG,
        "dapr initialized. Status: Running. Init Elapsed {}ms",
        started.elapsed().as_millis()
    );
}

/// A sidecar counts as initialised when its subscriptions are established, or after this timeout if a broker
/// is slow.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(5);

async fn begin(subscriptions: &Arc<Subscriptions>, health: &Health) {
    // Late subscriptions continue in the background.
    let _late = tokio::time::timeout(SUBSCRIBE_TIMEOUT, subscriptions.begin(health)).await;
}

/// The inputs of [`run`].
pub(super) struct AppLife {
    pub(super) config: Config,
    pub(super) app: Option<Arc<AppChannel>>,
    pub(super) health: Health,
    pub(super) set_health: HealthSetter,
    pub(super) bindings: Arc<Bindings>,
    pub(super) actors: Arc<Actors>,
    pub(super) workflows: Arc<Workflows>,
    pub(super) jobs: Arc<Jobs>,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) background: Tasks,
    pub(super) started: Instant,
}

/// `GET /dapr/config`: the actor types of the app; none by default. `limit`: the maximum time of a
/// dissemination.
async fn ask_config(skip: bool, app_id: String, limit: Duration, app: Arc<AppChannel>) -> Settings {
    let answer = ask(skip, app_id, app).await;
    let Some(json) = answer else {
        return Settings::none();
    };
    match Settings::parse(&json, limit) {
        Ok(settings) => {
            tracing::info!(target: LOG, "Application configuration loaded");
            settings
        }
        Err(error) => {
            tracing::warn!(target: LOG, "{error}; the app hosts no actors");
            Settings::none()
        }
    }
}

async fn ask(skip: bool, app_id: String, app: Arc<AppChannel>) -> Option<Bytes> {
    if skip {
        tracing::info!(target: LOG, "Skipping programmatic dapr configuration loading");
        return None;
    }
    if app.is_grpc() {
        return None;
    }
    let mut metadata = HeaderMap::new();
    if let Ok(id) = HeaderValue::try_from(app_id) {
        metadata.insert(names::APP_ID, id);
    }
    let (path, trace) = ("dapr/config".to_owned(), Parent::default());
    let call = Call::own(Method::GET, path, metadata, Body::Empty, trace);
    let reply = match app.invoke(call).await {
        Ok(reply) => reply,
        Err(error) => {
            tracing::warn!(target: LOG, "failed to read the configuration of the app (GET /dapr/config): {error}");
            return None;
        }
    };
    let loaded = match reply.status {
        AppStatus::Http(200) => true,
        // The app has no such route.
        AppStatus::Http(204 | 404 | 405) => false,
        status => {
            tracing::warn!(
                target: LOG,
                "the app answered GET /dapr/config with status {}, so it hosts no actors until its sidecar restarts",
                status.code()
            );
            false
        }
    };
    match reply.body.collect_up_to(MAX_CONFIG).await {
        Ok(body) => (loaded && !body.is_empty()).then_some(body),
        Err(error) => {
            tracing::warn!(target: LOG, "cannot read the configuration of the app (GET /dapr/config): {error}");
            None
        }
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
