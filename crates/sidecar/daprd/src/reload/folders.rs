//! Folders as a source of resources.

use std::path::PathBuf;

use async_trait::async_trait;
use outrigger_resources::load::{self, Kind};
use outrigger_resources::{Loaded, problem};
use tokio::runtime::Handle;

use super::watch::Watch;
use super::{Event, LOG, ListError, Shown, Source};

/// Folders with resource files, watched for changes.
pub struct FolderSource {
    folders: Vec<PathBuf>,
    namespace: Option<String>,
    app_id: String,
    watch: Watch,
    shown: Shown,
    /// Runs blocking calls.
    control: Handle,
}

impl FolderSource {
    /// Starts watching folders for the resources of an app; `namespace` as in [`load::Request`].
    pub fn new(folders: Vec<PathBuf>, namespace: Option<String>, app_id: String, control: Handle) -> Self {
        let shown: Vec<_> = folders
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        tracing::info!(target: LOG, "Watching directories: [{}]", shown.join(", "));
        let watch = Watch::start(&folders, &control);
        Self {
            folders,
            namespace,
            app_id,
            watch,
            shown: Shown::default(),
            control,
        }
    }
}

#[async_trait]
impl Source for FolderSource {
    async fn list(&mut self) -> Result<Loaded, ListError> {
        let (folders, namespace) = (self.folders.clone(), self.namespace.clone());
        let (app_id, watch) = (self.app_id.clone(), self.watch.clone());
        let listing = self.control.spawn_blocking(move || {
            watch.refresh();
            list(&folders, namespace.as_deref(), &app_id)
        });
        let listed = listing.await;
        let listed = listed.unwrap_or_else(|error| Err(ListError::Unavailable(error.to_string())))?;
        self.shown.show(&listed.warnings);
        Ok(listed)
    }

    async fn next(&mut self) -> Event {
        self.watch.changed().await;
        Event::Relist
    }
}

fn list(folders: &[PathBuf], namespace: Option<&str>, app_id: &str) -> Result<Loaded, ListError> {
    // A missing folder counts as being replaced: deployments move a new one into place.
    for folder in folders {
        std::fs::read_dir(folder).map_err(|error| {
            ListError::Unavailable(format!(
                "cannot read resources folder {}: {error}",
                folder.display()
            ))
        })?;
    }
    let request = load::Request {
        paths: folders,
        kinds: Kind::ALL,
        namespace,
        app_id,
    };
    load::folders(&request).map_err(|problems| {
        for problem in &problems {
            tracing::error!(target: LOG, "{problem}");
        }
        let summary = problem::summary(&problems);
        ListError::Contradiction(format!("disk: {summary}"))
    })
}
