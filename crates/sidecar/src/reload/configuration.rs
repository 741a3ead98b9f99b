//! The Configuration's files: what changes in them is applied where that is possible while calls run, and named where it
//! is not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_api::access::Access;
use outrigger_policy::access::{AccessControl, AppProtocol};
use outrigger_resources::configuration::{self, Configuration};
use outrigger_resources::{Problem, problem};
use outrigger_runtime::components::Env;
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::watch::{Watch, WatchError};
use super::{LOG, RELIST};

/// Follows the files of `--config`.
pub struct ConfigurationReloader {
    files: Vec<PathBuf>,
    watch: Watch,
    env: Env,
    /// Runs what blocks.
    control: Handle,
    applied: Applied,
    /// What access control was built from.
    access: configuration::AccessControl,
    /// What was told of the files; nothing before they were first read, as the start told it.
    told: Option<Vec<Problem>>,
}

/// What a Configuration is applied to.
pub struct Applied {
    /// Who may call what of the app.
    pub access: Arc<Access>,
    /// How its operations are matched.
    pub protocol: AppProtocol,
    /// What the sidecar was started with.
    pub started: Arc<Configuration>,
    /// The files that held no document then.
    pub empty: Vec<PathBuf>,
}

impl ConfigurationReloader {
    /// Starts watching the folders of `files`.
    ///
    /// # Errors
    /// [`WatchError`] when the system does not let folders be watched.
    pub fn new(files: Vec<PathBuf>, env: Env, control: Handle, applied: Applied) -> Result<Self, WatchError> {
        let mut folders: Vec<_> = files.iter().map(|file| folder(file)).collect();
        folders.sort_unstable();
        folders.dedup();
        Ok(Self {
            watch: Watch::new(&folders)?,
            access: applied.started.access_control.clone(),
            told: None,
            files,
            env,
            control,
            applied,
        })
    }

    /// Follows the files until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut last = Ok((*self.applied.started).clone());
        // The first tick is at once: the files may have changed since they were read.
        let mut relist = tokio::time::interval_at(Instant::now(), RELIST);
        relist.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = relist.tick() => {}
                () = self.watch.changed() => {}
            }
            let read = self.read().await;
            if read != last {
                self.take(&read);
                last = read;
            }
        }
    }

    fn take(&mut self, read: &Result<Configuration, String>) {
        match read {
            Ok(configuration) => self.apply(configuration),
            Err(problem) => tracing::error!(
                target: LOG,
                "{problem}; the Configuration stays as it is"
            ),
        }
    }

    fn apply(&mut self, new: &Configuration) {
        if new.access_control != self.access {
            self.apply_access(&new.access_control);
        }
        let later = needs_restart(&self.applied.started, new);
        if !later.is_empty() {
            tracing::warn!(
                target: LOG,
                "The Configuration changed: {}; a restart applies it",
                later.join(", ")
            );
        }
    }

    fn apply_access(&mut self, spec: &configuration::AccessControl) {
        match AccessControl::build(spec, self.applied.protocol) {
            // A file that somebody is writing may be cut before its rules: that must not open what was closed.
            Ok(control) if !has_rules(control.as_ref()) && self.restricts() => tracing::warn!(
                target: LOG,
                "The Configuration changed: accessControl is gone or has no rules any more; a restart applies that, and \
                 until then access control stays as it is"
            ),
            Ok(control) => {
                self.applied.access.replace(control);
                self.access = spec.clone();
                tracing::info!(target: LOG, "The Configuration changed: accessControl applies from now on");
            }
            Err(error) => tracing::error!(
                target: LOG,
                "accessControl of the Configuration: {error}; access control stays as it is"
            ),
        }
    }

    /// Whether what applies could deny a call.
    fn restricts(&self) -> bool {
        let applies = AccessControl::build(&self.access, self.applied.protocol);
        applies.is_ok_and(|control| has_rules(control.as_ref()))
    }

    /// The Configuration as the files say now; else what is wrong with them.
    async fn read(&mut self) -> Result<Configuration, String> {
        let (files, env, watch) = (self.files.clone(), Arc::clone(&self.env), self.watch.clone());
        let reading = self.control.spawn_blocking(move || {
            watch.refresh();
            configuration::load(&files, |name| env(name))
        });
        let loaded = match reading.await {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(problems)) => {
                return Err(match &problems[..] {
                    [one] => one.to_string(),
                    several => problem::summary(several),
                });
            }
            Err(error) => return Err(error.to_string()),
        };
        // Whoever writes a file may have emptied it before: that must not open what was closed.
        if let Some(file) = loaded
            .empty
            .iter()
            .find(|file| !self.applied.empty.contains(file))
        {
            return Err(format!(
                "{} is empty, and was not; write what it should say",
                file.display()
            ));
        }
        let started = &*self.applied.started;
        if loaded.configuration == Configuration::default() && *started != Configuration::default() {
            return Err("the files of --config are empty; write what they should say".to_owned());
        }
        self.applied.empty = loaded.empty;
        if let Some(told) = &self.told {
            for mistake in loaded.mistakes.iter().filter(|mistake| !told.contains(mistake)) {
                tracing::error!(target: LOG, "{mistake}");
            }
        }
        self.told = Some(loaded.mistakes);
        Ok(loaded.configuration)
    }
}

fn has_rules(control: Option<&AccessControl>) -> bool {
    control.is_some_and(AccessControl::has_rules)
}

fn folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The sections that differ and are read at the start only.
fn needs_restart(old: &Configuration, new: &Configuration) -> Vec<&'static str> {
    // Whatever is added has to be decided on here.
    let Configuration {
        name: _,
        http_pipeline,
        app_http_pipeline,
        tracing,
        metrics,
        // The sidecar uses its flags.
        mtls: _,
        secrets,
        // Applied.
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
    use outrigger_runtime::metrics::SidecarMetrics;
    use outrigger_telemetry::metrics::Metrics;

    use super::*;

    const BASE: &str = "spec:\n  tracing: {samplingRate: \"1\"}\n";
    const CLOSED: &str = "spec:\n  accessControl: {defaultAction: deny, trustDomain: public}\n";
    const OPENED: &str = "spec:\n  accessControl:\n    defaultAction: allow\n    policies:\n    \
        - {appId: other, defaultAction: deny, trustDomain: public, namespace: default}\n";

    /// A reloader of two files, as a sidecar makes it at its start.
    struct Reloading {
        reloader: ConfigurationReloader,
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
            let loaded = configuration::load(&files, |_| None).unwrap();
            let protocol = AppProtocol::Http;
            let control = AccessControl::build(&loaded.configuration.access_control, protocol).unwrap();
            let metrics = Arc::new(SidecarMetrics::new(Metrics::disabled()));
            let access = Arc::new(Access::new(control, metrics));
            let applied = Applied {
                access: Arc::clone(&access),
                protocol,
                started: Arc::new(loaded.configuration),
                empty: loaded.empty,
            };
            let (env, control): (Env, _) = (Arc::new(|_: &str| None), Handle::current());
            Self {
                reloader: ConfigurationReloader::new(files.clone(), env, control, applied).unwrap(),
                access,
                files,
                _folder: folder,
            }
        }

        /// Writes one of the files, and has it read.
        async fn write(&mut self, index: usize, text: &str) -> Result<(), String> {
            std::fs::write(&self.files[index], text).unwrap();
            let read = self.reloader.read().await;
            self.reloader.take(&read);
            read.map(drop)
        }

        fn is_open(&self) -> bool {
            self.access.check(None, "/m", "GET").is_ok()
        }
    }

    #[tokio::test]
    async fn one_of_several_files_that_is_emptied_opens_nothing() {
        let mut reloading = Reloading::start([BASE, CLOSED]);
        for text in ["", "\n", "# nothing\n", "---\n"] {
            let refused = reloading.write(1, text).await.unwrap_err();
            assert!(refused.contains("access.yaml is empty"), "{text:?}: {refused}");
            assert!(!reloading.is_open(), "{text:?}");
        }
        reloading.write(1, OPENED).await.unwrap();
        assert!(reloading.is_open(), "what is written then applies");
    }

    #[tokio::test]
    async fn a_file_that_was_empty_at_the_start_may_stay_so_and_not_become_so_again() {
        let mut reloading = Reloading::start(["", CLOSED]);
        reloading.write(1, OPENED).await.unwrap();
        assert!(reloading.is_open());
        reloading.write(0, BASE).await.unwrap();
        let refused = reloading.write(0, "").await.unwrap_err();
        assert!(refused.contains("base.yaml is empty"), "{refused}");
    }

    #[tokio::test]
    async fn access_control_that_is_cut_off_stays_until_a_restart() {
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
    async fn access_control_that_comes_later_applies_and_stays() {
        let mut reloading = Reloading::start([BASE, "kind: Configuration\n"]);
        assert!(reloading.is_open());
        reloading.write(1, CLOSED).await.unwrap();
        assert!(!reloading.is_open());
        reloading.write(1, "kind: Configuration\n").await.unwrap();
        assert!(!reloading.is_open());
    }

    #[test]
    fn what_a_restart_applies_is_named() {
        let old = Configuration::default();
        assert!(needs_restart(&old, &old).is_empty());
        let mut new = old.clone();
        new.access_control.default_action = "deny".to_owned();
        assert!(needs_restart(&old, &new).is_empty());
        new.api_denied.push(Default::default());
        new.denied_components.push("state.redis".to_owned());
        assert_eq!(needs_restart(&old, &new), ["api", "components"]);
    }

    #[test]
    fn a_file_without_a_folder_is_in_the_current_one() {
        assert_eq!(folder(Path::new("config.yaml")), Path::new("."));
        assert_eq!(folder(Path::new("/etc/c.yaml")), Path::new("/etc"));
    }
}
