//! The building blocks: each implemented once and called by both APIs. Actors and workflows, which depend on
//! placement, are in `crates/sidecar/blocks-actors`.

pub mod bindings;
pub mod configuration;
pub mod conversation;
pub mod crypto;
pub mod invoke;
pub mod jobs;
pub mod lock;
pub mod outbound;
pub mod pubsub;
pub mod secrets;
pub mod state;
pub mod subscriptions;

use std::sync::Arc;

use outrigger_resources::configuration::{Configuration, SUBTLE_CRYPTO};
use outrigger_runtime::app::Health;
use outrigger_runtime::components::Category;
use outrigger_runtime::middleware::Middlewares;
use outrigger_runtime::scheduler::Scheduler;

use bindings::{Bindings, Dependencies};
use configuration::Configurations;
use conversation::Conversations;
use crypto::Crypto;
use jobs::Jobs;
use lock::Locks;
use pubsub::PubSubs;
use secrets::Secrets;
use state::State;
use subscriptions::Subscriptions;

/// The blocks except invocation. Clones share state.
#[derive(Clone)]
pub struct Blocks {
    /// `state.*`
    pub state: Arc<State>,
    /// `secretstores.*`
    pub secrets: Arc<Secrets>,
    /// `configuration.*`
    pub configuration: Arc<Configurations>,
    /// `lock.*`
    pub locks: Arc<Locks>,
    /// `middleware.http.*`
    pub middlewares: Arc<Middlewares>,
    /// `bindings.*`
    pub bindings: Arc<Bindings>,
    /// `crypto.*`
    pub crypto: Arc<Crypto>,
    /// `conversation.*`
    pub conversation: Arc<Conversations>,
    /// `pubsub.*`
    pub pubsub: Arc<PubSubs>,
    /// Jobs, which have no components.
    pub jobs: Arc<Jobs>,
    /// Subscriptions of the app.
    pub subscriptions: Arc<Subscriptions>,
}

impl Blocks {
    /// Blocks without components. The middlewares are created first, because the app channel uses them.
    /// `ask_app`: whether the app may be asked for its subscriptions.
    pub fn new(
        app_id: Arc<str>,
        settings: &Configuration,
        middlewares: Arc<Middlewares>,
        health: Health,
        scheduler: Arc<Scheduler>,
        ask_app: bool,
        dependencies: Dependencies,
    ) -> Self {
        let resilience = || Arc::clone(&dependencies.resilience);
        let app = dependencies.app.clone();
        let metrics = Arc::clone(&dependencies.resilience.metrics);
        let jobs = Jobs::new(scheduler, app.clone(), dependencies.tracer.clone(), metrics);
        let pubsub = Arc::new(PubSubs::new(
            Arc::clone(&app_id),
            resilience(),
            dependencies.tracer.clone(),
        ));
        let subscriptions = Subscriptions::new(subscriptions::Dependencies {
            app_id,
            pubsubs: Arc::clone(&pubsub),
            resilience: resilience(),
            app: app.clone(),
            tracer: dependencies.tracer.clone(),
            ask_app,
            max_answer: dependencies.max_answer,
        });
        Self {
            state: Arc::new(State::new(Arc::clone(&pubsub), resilience())),
            secrets: Arc::new(Secrets::new(settings.secrets.clone(), resilience())),
            configuration: Arc::new(Configurations::new(app, health, resilience())),
            locks: Arc::new(Locks::new(resilience())),
            crypto: Arc::new(Crypto::new(
                settings.features.enabled(SUBTLE_CRYPTO),
                resilience(),
            )),
            conversation: Arc::new(Conversations::new(resilience())),
            pubsub,
            subscriptions,
            jobs: Arc::new(jobs),
            bindings: Bindings::new(dependencies),
            middlewares,
        }
    }

    /// The component categories, each with the block that opens and uses its components.
    pub fn categories(&self) -> Vec<Arc<dyn Category>> {
        vec![
            Arc::clone(&self.state) as _,
            Arc::clone(&self.secrets) as _,
            Arc::clone(&self.configuration) as _,
            Arc::clone(&self.locks) as _,
            Arc::clone(&self.middlewares) as _,
            Arc::clone(&self.bindings) as _,
            Arc::clone(&self.crypto) as _,
            Arc::clone(&self.conversation) as _,
            Arc::clone(&self.pubsub) as _,
        ]
    }
}
