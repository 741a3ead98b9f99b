//! Watches folders for changes.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher, event::ModifyKind};
use tokio::sync::mpsc;

/// Changes within this time count as one.
const BATCH: Duration = Duration::from_millis(500);

/// Reports changes of files in some folders, without subfolders.
#[derive(Debug)]
pub(crate) struct FolderWatch {
    changes: mpsc::Receiver<()>,
    /// Dropping this ends the events.
    _watcher: RecommendedWatcher,
}

/// Why a folder cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch the folder {} for changes; it must exist and be readable", folder.display())]
pub struct WatchError {
    /// The folder.
    pub folder: PathBuf,
    /// The system's error.
    pub source: notify::Error,
}

impl FolderWatch {
    /// Starts watching.
    pub(crate) fn new(folders: impl IntoIterator<Item = PathBuf>) -> Result<Self, WatchError> {
        let folders: BTreeSet<PathBuf> = folders.into_iter().collect();
        // A pending report covers any number of events.
        let (report, changes) = mpsc::channel(1);
        let fail = |folder: &PathBuf, source| WatchError {
            folder: folder.clone(),
            source,
        };
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // An error may hide an event.
            if event.map_or(true, |event| is_change(event.kind)) {
                let _ = report.try_send(());
            }
        })
        .map_err(|source| fail(&PathBuf::new(), source))?;
        for folder in &folders {
            watcher
                .watch(folder, RecursiveMode::NonRecursive)
                .map_err(|source| fail(folder, source))?;
        }
        Ok(Self {
            changes,
            _watcher: watcher,
        })
    }

    /// Waits for a change and for the end of its batch.
    pub(crate) async fn changed(&mut self) {
        if self.changes.recv().await.is_none() {
            // The watcher has died, so no changes will be noticed.
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(BATCH).await;
        while self.changes.try_recv().is_ok() {}
    }
}

/// Reading a file, or changing its mode, is not a change.
fn is_change(kind: EventKind) -> bool {
    !matches!(
        kind,
        EventKind::Access(_) | EventKind::Modify(ModifyKind::Metadata(_))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn notices_writes_but_not_reads() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "1").unwrap();
        let mut watch = FolderWatch::new([folder.path().to_owned(), folder.path().to_owned()]).unwrap();
        std::fs::read(&file).unwrap();
        let quiet = tokio::time::timeout(Duration::from_millis(300), watch.changed()).await;
        assert!(quiet.is_err(), "a read was reported");
        std::fs::write(&file, "2").unwrap();
        tokio::time::timeout(Duration::from_secs(10), watch.changed())
            .await
            .expect("the write was not reported");
    }

    #[test]
    fn names_missing_folder() {
        let error = FolderWatch::new(["/no/such/folder".into()]).unwrap_err();
        assert!(error.to_string().contains("/no/such/folder"), "{error}");
    }
}
