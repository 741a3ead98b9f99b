//! The Configuration's files: what changes in them is applied where that is possible while calls run, and named where it
//! is not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_api::access::Access;
use outrigger_policy::access::{AccessControl, AppProtocol};
use outrigger_resources::configuration::{self, Configuration};
use outrigger_resources::problem;
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
}

/// What a Configuration is applied to.
pub struct Applied {
    /// Who may call what of the app.
    pub access: Arc<Access>,
    /// How its operations are matched.
    pub protocol: AppProtocol,
    /// What the sidecar was started with.
    pub started: Arc<Configuration>,
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
                match &read {
                    Ok(configuration) => self.apply(configuration),
                    Err(problem) => tracing::error!(
                        target: LOG,
                        "{problem}; the Configuration stays as it is"
                    ),
                }
                last = read;
            }
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

    /// The Configuration as the files say now; else what is wrong with them.
    async fn read(&self) -> Result<Configuration, String> {
        let (files, env, watch) = (self.files.clone(), Arc::clone(&self.env), self.watch.clone());
        let was_empty = *self.applied.started == Configuration::default();
        let reading = self.control.spawn_blocking(move || {
            watch.refresh();
            let loaded = configuration::load(&files, |name| env(name));
            match loaded {
                // Whoever writes a file may have emptied it before: that must not open what was closed.
                Ok(loaded) if loaded.configuration == Configuration::default() && !was_empty => {
                    Err("the files of --config are empty; write what they should say".to_owned())
                }
                Ok(loaded) => Ok(loaded.configuration),
                Err(problems) => Err(match &problems[..] {
                    [one] => one.to_string(),
                    several => problem::summary(several),
                }),
            }
        });
        reading.await.unwrap_or_else(|error| Err(error.to_string()))
    }
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
    use super::*;

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
