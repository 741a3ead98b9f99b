//! Hot reload of resources, if enabled.

use std::sync::Arc;
use std::time::Duration;

use outrigger_resources::load::Loaded;
use outrigger_runtime::life::{Lifecycle, Readiness, Shutdown, Stage, Tasks};
use tokio::sync::mpsc::{self, Receiver};

use super::build::Reported;
use super::context::{SidecarContext, access_protocol};
use crate::config::Config;
use crate::reload::{
    self, ConfigurationReconciler, ReloadError, Reloader, Running, Source, follow_configuration,
};

pub(super) struct Reloading(Vec<Reloader>);

impl Reloading {
    /// A reloader for each source.
    pub(super) fn new(
        sources: Vec<Reported>,
        running: &Running,
        loaded: &Loaded,
        relist: Duration,
        readiness: &Readiness,
    ) -> Self {
        let mut reconcilers = reload::reconcilers(running, loaded);
        let reloaders = sources.into_iter().map(|(source, kinds)| {
            let own = reconcilers.extract_if(.., |one| kinds.iter().any(|kind| one.is_for(*kind)));
            let of = (kinds.len() == 1).then(|| kinds[0]);
            Reloader::new(source, own.collect(), relist, readiness)
                .reporting_to(Arc::clone(&running.findings), of)
        });
        Self(reloaders.collect())
    }

    /// Adds the Configuration.
    pub(super) fn follow_configuration(
        &mut self,
        source: Box<dyn Source>,
        config: &Config,
        context: &SidecarContext,
        (readiness, shutdown): (&Readiness, &Shutdown),
    ) {
        let reconciler = ConfigurationReconciler::new(
            Arc::clone(&context.access),
            access_protocol(config),
            Arc::clone(&context.settings),
            shutdown.clone(),
        );
        let reconcilers = vec![follow_configuration(reconciler)];
        let relist = config.resources.relist;
        self.0.push(Reloader::new(source, reconcilers, relist, readiness));
    }

    /// Follows changes until the sidecar ends. The receiver gets the error that ends it.
    pub(super) fn start(self, lifecycle: &mut Lifecycle) -> Receiver<ReloadError> {
        let (failed, failures) = mpsc::channel(1);
        if self.0.is_empty() {
            return failures;
        }
        let Tasks { tasks, stop } = lifecycle.tasks(Stage::Reload, "the reload of resources");
        for reloader in self.0 {
            let (run, failed) = (reloader.run(stop.clone()), failed.clone());
            tasks.spawn(async move {
                if let Err(error) = run.await {
                    // The receiver is gone if the process is already ending.
                    let _ending = failed.send(error).await;
                }
            });
        }
        failures
    }
}
