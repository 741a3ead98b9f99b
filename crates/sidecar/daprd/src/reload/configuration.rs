//! Reconciles running parts with the Configuration: applies changes of access control, and restarts the
//! sidecar for the others.

mod source;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use outrigger_api::access::Access;
use outrigger_policy::access::{AccessControl, AppProtocol};
use outrigger_resources::configuration::{self, Configuration};
use outrigger_runtime::life::Shutdown;
use tokio::time::Instant;

use super::{LOG, Reconcile, ReloadError};

pub use source::{ConfigurationFiles, OperatorConfiguration};

/// How long a Configuration without access rules must last before they end. A file may be truncated while it
/// is being written; that must not disable rules.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Applies access control, and asks for a restart if other sections change.
pub struct ConfigurationReconciler {
    access: Arc<Access>,
    protocol: AppProtocol,
    started: Arc<Configuration>,
    /// The applied access control settings.
    applied: configuration::AccessControl,
    /// The last desired state, which is not handled again.
    seen: Configuration,
    /// A Configuration that lost the access rules, and since when.
    unsettled: Option<(Configuration, Instant)>,
    shutdown: Shutdown,
}

impl ConfigurationReconciler {
    /// For a sidecar `started` with a Configuration. `access` decides which callers may use which operation
    /// of the app, and `protocol` how operations are matched.
    pub fn new(
        access: Arc<Access>,
        protocol: AppProtocol,
        started: Arc<Configuration>,
        shutdown: Shutdown,
    ) -> Self {
        Self {
            access,
            protocol,
            applied: started.access_control.clone(),
            seen: (*started).clone(),
            unsettled: None,
            shutdown,
            started,
        }
    }

    fn apply_access(&mut self, spec: &configuration::AccessControl) {
        match AccessControl::build(spec, self.protocol) {
            Ok(control) => {
                self.access.replace(control);
                self.applied = spec.clone();
                tracing::info!(target: LOG, "the Configuration changed: the new accessControl applies");
            }
            Err(error) => tracing::error!(
                target: LOG,
                "accessControl of the Configuration: {error}; access control is unchanged"
            ),
        }
    }

    /// Whether a Configuration would end the rules that deny calls, and has not done so for long enough.
    fn may_be_truncated(&mut self, desired: &Configuration) -> bool {
        let restricts = |spec: &configuration::AccessControl| {
            let control = AccessControl::build(spec, self.protocol);
            control.is_ok_and(|control| control.as_ref().is_some_and(AccessControl::has_rules))
        };
        if !restricts(&self.applied) || restricts(&desired.access_control) {
            self.unsettled = None;
            return false;
        }
        match &self.unsettled {
            Some((known, since)) if known == desired => since.elapsed() < SETTLED_AFTER,
            _ => {
                tracing::warn!(
                    target: LOG,
                    "the Configuration changed: accessControl was removed or has no rules; the rules end with the next \
                     list of resources, unless they are back"
                );
                self.unsettled = Some((desired.clone(), Instant::now()));
                true
            }
        }
    }
}

impl Reconcile for ConfigurationReconciler {
    type Desired = Configuration;

    fn reconcile<'a>(&'a mut self, desired: &'a Configuration) -> BoxFuture<'a, Result<(), ReloadError>> {
        Box::pin(async move {
            if *desired == self.seen {
                self.unsettled = None;
                return Ok(());
            }
            if self.may_be_truncated(desired) {
                return Ok(());
            }
            self.seen = desired.clone();
            if desired.access_control != self.applied {
                self.apply_access(&desired.access_control);
            }
            let later = needs_restart(&self.started, desired);
            if !later.is_empty() {
                tracing::info!(
                    target: LOG,
                    "the Configuration changed: {}; restarting",
                    later.join(", ")
                );
                self.shutdown.ask_restart();
            }
            Ok(())
        })
    }
}

/// The changed sections that are read at start only.
fn needs_restart(old: &Configuration, new: &Configuration) -> Vec<&'static str> {
    // Destructured, so that new fields must be decided on here.
    let Configuration {
        name: _,
        http_pipeline,
        app_http_pipeline,
        tracing,
        metrics,
        // The sidecar uses its flags.
        mtls: _,
        secrets,
        // Applied at run time.
        access_control: _,
        name_resolution,
        features,
        api_allowed,
        api_denied,
        denied_components,
        api_logging,
        wasm_strict_sandbox,
        workflow,
    } = new;
    let sections = [
        ("httpPipeline", *http_pipeline == old.http_pipeline),
        ("appHttpPipeline", *app_http_pipeline == old.app_http_pipeline),
        ("tracing", *tracing == old.tracing),
        ("metrics", *metrics == old.metrics),
        ("secrets", *secrets == old.secrets),
        ("nameResolution", *name_resolution == old.name_resolution),
        ("features", *features == old.features),
        (
            "api",
            *api_allowed == old.api_allowed && *api_denied == old.api_denied,
        ),
        ("components", *denied_components == old.denied_components),
        ("logging", *api_logging == old.api_logging),
        ("wasm", *wasm_strict_sandbox == old.wasm_strict_sandbox),
        ("workflow", *workflow == old.workflow),
    ];
    let changed = sections.into_iter().filter(|(_, is_same)| !is_same);
    changed.map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use outrigger_runtime::components::Env;
    use outrigger_runtime::metrics::SidecarMetrics;
    use outrigger_telemetry::metrics::Metrics;
    use tokio::runtime::Handle;

    use super::super::{Reconciler, Source, follow_configuration};
    use super::*;

    const BASE: &str = "spec:\n  tracing: {samplingRate: \"1\"}\n";
    const CLOSED: &str = "spec:\n  accessControl: {defaultAction: deny, trustDomain: public}\n";
    const OPENED: &str = "spec:\n  accessControl:\n    defaultAction: allow\n    policies:\n    \
        - {appId: other, defaultAction: deny, trustDomain: public, namespace: default}\n";

    /// A reconciler and source of two files, as a sidecar creates them at its start.
    struct Reloading {
        source: ConfigurationFiles,
        reconciler: Box<dyn Reconciler>,
        shutdown: Shutdown,
        access: Arc<Access>,
        files: Vec<PathBuf>,
        _folder: tempfile::TempDir,
    }

    impl Reloading {
        fn start(texts: [&str; 2]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let files = ["base.yaml", "access.yaml"]
                .map(|name| folder.path().join(name))
                .to_vec();
            for (file, text) in files.iter().zip(texts) {
                std::fs::write(file, text).unwrap();
            }
            let loaded =
                configuration::load(&files, &configuration::ValueChecks::default(), |_| None).unwrap();
            let protocol = AppProtocol::Http;
            let control = AccessControl::build(&loaded.configuration.access_control, protocol).unwrap();
            let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
            let access = Arc::new(Access::new(control, metrics));
            let started = Arc::new(loaded.configuration);
            let shutdown = Shutdown::default();
            let running = ConfigurationReconciler::new(
                Arc::clone(&access),
                protocol,
                Arc::clone(&started),
                shutdown.clone(),
            );
            let (env, control): (Env, _) = (Arc::new(|_: &str| None), Handle::current());
            let source = ConfigurationFiles::new(files.clone(), env, control, (started, loaded.empty));
            Self {
                source,
                reconciler: follow_configuration(running),
                shutdown,
                access,
                files,
                _folder: folder,
            }
        }

        /// Writes one of the files and has it read.
        async fn write(&mut self, index: usize, text: &str) -> Result<(), String> {
            std::fs::write(&self.files[index], text).unwrap();
            let listed = self.source.list().await.unwrap();
            self.reconciler.listed(&listed).await.unwrap();
            self.source.wrong().map_or(Ok(()), |wrong| Err(wrong.to_owned()))
        }

        /// Whether a restart was requested since the last call.
        async fn restarts(&self) -> bool {
            let wanted = self.shutdown.restart_wanted();
            tokio::time::timeout(Duration::from_millis(1), wanted)
                .await
                .is_ok()
        }

        fn is_open(&self) -> bool {
            self.access.check(None, "/m", "GET").is_ok()
        }
    }

    #[tokio::test]
    async fn emptied_file_keeps_access_rules() {
        let mut reloading = Reloading::start([BASE, CLOSED]);
        for text in ["", "\n", "# nothing\n", "---\n"] {
            let refused = reloading.write(1, text).await.unwrap_err();
            assert!(
                refused.contains("access.yaml has become empty"),
                "{text:?}: {refused}"
            );
            assert!(!reloading.is_open(), "{text:?}");
        }
        reloading.write(1, OPENED).await.unwrap();
        assert!(reloading.is_open(), "the new contents apply");
    }

    #[tokio::test]
    async fn accepts_only_initially_empty_file() {
        let mut reloading = Reloading::start(["", CLOSED]);
        reloading.write(1, OPENED).await.unwrap();
        assert!(reloading.is_open());
        reloading.write(0, BASE).await.unwrap();
        let refused = reloading.write(0, "").await.unwrap_err();
        assert!(refused.contains("base.yaml has become empty"), "{refused}");
    }

    #[tokio::test]
    async fn truncated_access_control_keeps_rules() {
        let mut reloading = Reloading::start([BASE, CLOSED]);
        let before_policies = OPENED.find("    policies").unwrap();
        for text in [
            "kind: Configuration\n",
            "spec:\n",
            "spec:\n  accessControl:\n",
            &OPENED[..before_policies],
        ] {
            reloading.write(1, text).await.unwrap();
            assert!(!reloading.is_open(), "{text:?}");
        }
        reloading.write(1, CLOSED).await.unwrap();
        assert!(!reloading.is_open());
        reloading.write(1, OPENED).await.unwrap();
        assert!(reloading.is_open());
    }

    #[tokio::test]
    async fn lasting_removal_ends_rules() {
        let mut reloading = Reloading::start([BASE, CLOSED]);
        let removed = "spec:\n  workflow: {maxConcurrentActivityInvocations: 1}\n";
        reloading.write(1, removed).await.unwrap();
        assert!(!reloading.is_open() && !reloading.restarts().await);
        tokio::time::pause();
        tokio::time::advance(SETTLED_AFTER).await;
        tokio::time::resume();
        reloading.write(1, removed).await.unwrap();
        assert!(reloading.is_open() && reloading.restarts().await);
    }

    #[tokio::test]
    async fn restarts_for_other_sections() {
        let mut reloading = Reloading::start([BASE, CLOSED]);
        reloading.write(1, OPENED).await.unwrap();
        assert!(!reloading.restarts().await);
        for _ in 0..2 {
            reloading
                .write(0, "spec:\n  tracing: {samplingRate: \"0.5\"}\n")
                .await
                .unwrap();
        }
        assert!(reloading.restarts().await);
        assert!(!reloading.restarts().await, "unchanged");
        reloading.write(0, BASE).await.unwrap();
        assert!(!reloading.restarts().await, "as at start");
    }

    #[tokio::test]
    async fn applies_added_access_control() {
        let mut reloading = Reloading::start([BASE, "kind: Configuration\n"]);
        assert!(reloading.is_open());
        reloading.write(1, CLOSED).await.unwrap();
        assert!(!reloading.is_open());
        reloading.write(1, "kind: Configuration\n").await.unwrap();
        assert!(!reloading.is_open());
    }

    #[tokio::test]
    async fn logs_unchanged_problems_once() {
        let mut reloading = Reloading::start([BASE, CLOSED]);
        let lines = outrigger_testing::log_lines::Lines::new();
        let said = || {
            let lines = lines.take(LOG, tracing::Level::TRACE).into_iter();
            lines.map(|line| line.message).collect::<Vec<_>>()
        };
        let changed = "spec:\n  tracing: {samplingRate: \"0.5\"}\n";
        for _ in 0..2 {
            reloading.write(0, changed).await.unwrap();
        }
        assert_eq!(said(), ["the Configuration changed: tracing; restarting"]);
        for _ in 0..2 {
            reloading.write(0, "spec: [").await.unwrap_err();
        }
        let refused = said();
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert!(
            refused[0].ends_with("the Configuration stays as it is"),
            "{refused:?}"
        );
        reloading.write(0, changed).await.unwrap();
        assert_eq!(said(), [""; 0]);
        reloading.write(0, "spec: [").await.unwrap_err();
        assert_eq!(said(), refused);
    }

    #[test]
    fn names_sections_that_need_restart() {
        let old = Configuration::default();
        assert!(needs_restart(&old, &old).is_empty());
        let mut new = old.clone();
        new.access_control.default_action = "deny".to_owned();
        assert!(needs_restart(&old, &new).is_empty());
        new.api_denied.push(Default::default());
        new.denied_components.push("state.redis".to_owned());
        assert_eq!(needs_restart(&old, &new), ["api", "components"]);
    }
}
