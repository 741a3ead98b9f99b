//! Sources for reloading the Configuration: files, or the operator of a cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use outrigger_resources::configuration::{self, Configuration, LoadedConfiguration};
use outrigger_resources::{Loaded, Problem, problem};
use outrigger_runtime::components::Env;
use outrigger_wire::operator::v1::ResourceEventType;
use tokio::runtime::Handle;

use crate::operator::{Change, Operator, Update, Updates};
use crate::reload::watch::Watch;
use crate::reload::{Event, LOG, ListError, Source};
use crate::value_checks::value_checks;

/// The files of `--config`, watched for changes.
pub struct ConfigurationFiles {
    files: Vec<PathBuf>,
    watch: Watch,
    env: Env,
    /// Runs blocking calls.
    control: Handle,
    started: Arc<Configuration>,
    /// The files without a document at the last read.
    empty: Vec<PathBuf>,
    logged: Logged,
}

impl ConfigurationFiles {
    /// Starts watching the folders of `files`. The sidecar was started with their contents; those in `empty`
    /// had no document.
    pub fn new(
        files: Vec<PathBuf>,
        env: Env,
        control: Handle,
        (started, empty): (Arc<Configuration>, Vec<PathBuf>),
    ) -> Self {
        let mut folders: Vec<_> = files.iter().map(|file| folder(file)).collect();
        folders.sort_unstable();
        folders.dedup();
        Self {
            watch: Watch::start(&folders, &control),
            files,
            env,
            control,
            started,
            empty,
            logged: Logged::default(),
        }
    }

    /// The problem of the files, if any.
    #[cfg(test)]
    pub(super) fn wrong(&self) -> Option<&str> {
        self.logged.refused.as_deref()
    }

    /// Reads the Configuration from the files, or returns their problem.
    async fn read(&mut self) -> Result<LoadedConfiguration, String> {
        let (files, env, watch) = (self.files.clone(), Arc::clone(&self.env), self.watch.clone());
        let reading = self.control.spawn_blocking(move || {
            watch.refresh();
            configuration::load(&files, &value_checks(), |name| env(name))
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
        // A writer may have truncated the file; that must not disable rules.
        if let Some(file) = loaded.empty.iter().find(|file| !self.empty.contains(file)) {
            return Err(format!(
                "{} has become empty; write its contents again",
                file.display()
            ));
        }
        if loaded.configuration == Configuration::default() && *self.started != Configuration::default() {
            return Err("the files of --config are empty; write their contents".to_owned());
        }
        self.empty.clone_from(&loaded.empty);
        Ok(loaded)
    }
}

#[async_trait]
impl Source for ConfigurationFiles {
    /// True, because the files may have changed since they were read.
    async fn begin(&mut self) -> bool {
        true
    }

    async fn list(&mut self) -> Result<Loaded, ListError> {
        let read = self.read().await;
        Ok(self.logged.listed(read))
    }

    async fn next(&mut self) -> Event {
        self.watch.changed().await;
        Event::Relist
    }
}

/// A Configuration of the cluster.
pub struct OperatorConfiguration {
    operator: Operator,
    name: String,
    updates: Updates,
    logged: Logged,
}

impl OperatorConfiguration {
    /// The Configuration with this name. Makes no request yet.
    pub fn new(operator: Operator, name: String) -> Self {
        Self {
            updates: operator.configuration_updates(),
            operator,
            name,
            logged: Logged::default(),
        }
    }

    /// Whether a change is one of this Configuration.
    fn is_mine(&self, change: &Change) -> bool {
        let changed = Configuration::from_json(&change.json);
        let is_mine = changed.is_ok_and(|changed| changed.name == self.name);
        if is_mine && change.event == ResourceEventType::Deleted {
            tracing::warn!(
                target: LOG,
                "Configuration {} was deleted; it stays in use until the sidecar ends, which cannot start again without it",
                self.name
            );
            return false;
        }
        is_mine
    }
}

#[async_trait]
impl Source for OperatorConfiguration {
    /// True, because it may have changed since it was read.
    async fn begin(&mut self) -> bool {
        // The first update reports that the stream was requested.
        self.updates.next().await;
        true
    }

    async fn list(&mut self) -> Result<Loaded, ListError> {
        let read = self.operator.configuration_now(&self.name).await;
        Ok(self.logged.listed(read.map_err(|error| error.to_string())))
    }

    async fn next(&mut self) -> Event {
        loop {
            match self.updates.next().await {
                Update::Change(change) if !self.is_mine(&change) => {}
                // Read by name, with the same secrets as at start.
                Update::Opening | Update::Change(_) => return Event::Relist,
            }
        }
    }
}

/// The last logged problems of the Configuration, which are logged again only if they change.
#[derive(Default)]
struct Logged {
    /// The problems found; `None` before the first read, because the start has logged them.
    mistakes: Option<Vec<Problem>>,
    /// Why the last read failed.
    refused: Option<String>,
}

impl Logged {
    /// The result of a read. A failed read lists nothing, so the desired state does not change.
    fn listed(&mut self, read: Result<LoadedConfiguration, String>) -> Loaded {
        let (loaded, refused) = match read {
            Ok(loaded) => (Some(loaded), None),
            Err(problem) => (None, Some(problem)),
        };
        if let Some(problem) = &refused
            && self.refused != refused
        {
            tracing::error!(target: LOG, "{problem}; the Configuration stays as it is");
        }
        self.refused = refused;
        let configuration = loaded.map(|loaded| {
            if let Some(known) = &self.mistakes {
                for mistake in loaded.mistakes.iter().filter(|mistake| !known.contains(mistake)) {
                    tracing::error!(target: LOG, "{mistake}");
                }
            }
            self.mistakes = Some(loaded.mistakes);
            loaded.configuration
        });
        Loaded {
            configuration,
            ..Loaded::default()
        }
    }
}

fn folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_file_in_current_folder() {
        assert_eq!(folder(Path::new("config.yaml")), Path::new("."));
        assert_eq!(folder(Path::new("/etc/c.yaml")), Path::new("/etc"));
    }
}
