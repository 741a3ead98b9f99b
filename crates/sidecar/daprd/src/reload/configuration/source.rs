//! Where the Configuration is read again: its files, or the operator of a cluster.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use outrigger_resources::configuration::{self, Configuration, LoadedConfiguration};
use outrigger_resources::{Loaded, Problem, problem};
use outrigger_runtime::components::Env;
use tokio::runtime::Handle;

use crate::known::known;
use crate::operator::Operator;
use crate::reload::watch::{Watch, WatchError};
use crate::reload::{Event, LOG, ListError, Source};

/// The files of `--config`, watched.
pub struct ConfigurationFiles {
    files: Vec<PathBuf>,
    watch: Watch,
    env: Env,
    /// Runs what blocks.
    control: Handle,
    started: Arc<Configuration>,
    /// The files that held no document when they were read last.
    empty: Vec<PathBuf>,
    logged: Logged,
}

impl ConfigurationFiles {
    /// Starts watching the folders of `files`: a sidecar was started with what they said, and some were empty then.
    ///
    /// # Errors
    /// [`WatchError`] when the system does not let folders be watched.
    pub fn new(
        files: Vec<PathBuf>,
        env: Env,
        control: Handle,
        (started, empty): (Arc<Configuration>, Vec<PathBuf>),
    ) -> Result<Self, WatchError> {
        let mut folders: Vec<_> = files.iter().map(|file| folder(file)).collect();
        folders.sort_unstable();
        folders.dedup();
        Ok(Self {
            watch: Watch::new(&folders)?,
            files,
            env,
            control,
            started,
            empty,
            logged: Logged::default(),
        })
    }

    /// What is wrong with the files, if anything.
    #[cfg(test)]
    pub(super) fn wrong(&self) -> Option<&str> {
        self.logged.refused.as_deref()
    }

    /// The Configuration as the files say now; else what is wrong with them.
    async fn read(&mut self) -> Result<LoadedConfiguration, String> {
        let (files, env, watch) = (self.files.clone(), Arc::clone(&self.env), self.watch.clone());
        let reading = self.control.spawn_blocking(move || {
            watch.refresh();
            configuration::load(&files, &known(), |name| env(name))
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
        if let Some(file) = loaded.empty.iter().find(|file| !self.empty.contains(file)) {
            return Err(format!(
                "{} is empty, and was not; write what it should say",
                file.display()
            ));
        }
        if loaded.configuration == Configuration::default() && *self.started != Configuration::default() {
            return Err("the files of --config are empty; write what they should say".to_owned());
        }
        self.empty.clone_from(&loaded.empty);
        Ok(loaded)
    }
}

#[async_trait]
impl Source for ConfigurationFiles {
    /// They may have changed since they were read.
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

/// A Configuration of the cluster. The protocol has no stream of them: it is only asked for again.
pub struct OperatorConfiguration {
    operator: Operator,
    name: String,
    logged: Logged,
}

impl OperatorConfiguration {
    /// The one of this name. Asks nothing yet.
    pub fn new(operator: Operator, name: String) -> Self {
        Self {
            operator,
            name,
            logged: Logged::default(),
        }
    }
}

#[async_trait]
impl Source for OperatorConfiguration {
    /// It may have changed since it was read.
    async fn begin(&mut self) -> bool {
        true
    }

    async fn list(&mut self) -> Result<Loaded, ListError> {
        let read = self.operator.configuration_now(&self.name).await;
        Ok(self.logged.listed(read.map_err(|error| error.to_string())))
    }

    async fn next(&mut self) -> Event {
        std::future::pending().await
    }
}

/// What was logged of the Configuration: none of it is logged again while it stays the same.
#[derive(Default)]
struct Logged {
    /// What is wrong in it; `None` before it was first read, as the start logged that.
    mistakes: Option<Vec<Problem>>,
    /// Why it could not be read the last time.
    refused: Option<String>,
}

impl Logged {
    /// What came of reading it. Nothing is listed where it could not be read: what was desired stays.
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
    fn a_file_without_a_folder_is_in_the_current_one() {
        assert_eq!(folder(Path::new("config.yaml")), Path::new("."));
        assert_eq!(folder(Path::new("/etc/c.yaml")), Path::new("/etc"));
    }
}
