//! Watches folders for changes of files, of files behind links, and of the folders themselves.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::event::ModifyKind;
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::LOG;

/// A batch of changes ends after this time without any.
const QUIET: Duration = Duration::from_millis(100);
/// Maximum delay of a report while changes continue.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of watched links, and of links in a chain.
const MAX_LINKS: usize = 1000;
const MAX_HOPS: usize = 8;

/// Reports changes of the files in some folders, without subfolders. A folder may be missing, appear and be
/// replaced.
#[derive(Clone)]
pub(super) struct Watch {
    shared: Arc<WatchState>,
    watcher: Arc<Mutex<Watching>>,
    folders: Arc<[PathBuf]>,
}

struct WatchState {
    changed: Notify,
    places: Mutex<WatchedPaths>,
}

/// The relevant paths.
#[derive(Default)]
struct WatchedPaths {
    /// Folders in which every file counts.
    folders: HashSet<PathBuf>,
    /// Single paths: the folders themselves, and targets of links.
    paths: HashSet<PathBuf>,
    /// Folders deleted since the last refresh. Their watches are gone, even if other folders have taken their
    /// paths.
    lost: HashSet<PathBuf>,
}

struct Watching {
    /// `None` if the system cannot watch folders.
    watcher: Option<RecommendedWatcher>,
    /// Watched folders by device and inode, because a path may come to name another folder.
    known: HashMap<PathBuf, (u64, u64)>,
}

impl Watch {
    /// Starts watching in the background, because a file system may hang, and reports a change then: the folders may
    /// have changed since they were read. If the system cannot watch folders, their changes are found by lists.
    pub(super) fn start(folders: &[PathBuf], control: &Handle) -> Self {
        let watch = Self::new(folders);
        let started = watch.clone();
        control.spawn_blocking(move || {
            started.refresh();
            started.shared.changed.notify_one();
        });
        watch
    }

    fn new(folders: &[PathBuf]) -> Self {
        let shared = Arc::new(WatchState {
            changed: Notify::new(),
            places: Mutex::default(),
        });
        let reported = Arc::clone(&shared);
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // An error may hide an event.
            if event.map_or(true, |event| reported.concerns(&event)) {
                reported.changed.notify_one();
            }
        });
        let watcher = watcher.inspect_err(|error| {
            tracing::warn!(
                target: LOG,
                "folders cannot be watched for changes, which are noticed late: {error}; raise the inotify limits"
            );
        });
        let absolute = |folder: &PathBuf| absolute(folder).unwrap_or_else(|_| folder.clone());
        Self {
            shared,
            watcher: Arc::new(Mutex::new(Watching {
                watcher: watcher.ok(),
                known: HashMap::new(),
            })),
            folders: folders.iter().map(absolute).collect(),
        }
    }

    /// Resolves links and finds existing folders. Blocks for some file system calls.
    pub(super) fn refresh(&self) {
        let places = WatchedPaths::find(&self.folders);
        let wanted = places.watched();
        let before = std::mem::replace(&mut *lock(&self.shared.places), places);
        lock(&self.watcher).follow(wanted, &before.lost);
    }

    /// Waits for a change and for the end of its batch.
    pub(super) async fn changed(&mut self) {
        self.shared.changed.notified().await;
        let end = Instant::now() + MAX_DELAY;
        loop {
            let quiet = (Instant::now() + QUIET).min(end);
            let more = timeout_at(quiet, self.shared.changed.notified()).await;
            if more.is_err() {
                return;
            }
        }
    }
}

impl WatchState {
    fn concerns(&self, event: &notify::Event) -> bool {
        // Reading a file, or changing its mode, is not a change.
        let idle = matches!(
            event.kind,
            EventKind::Access(_) | EventKind::Modify(ModifyKind::Metadata(_))
        );
        let mut places = lock(&self.places);
        if let EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) = event.kind {
            let known = |path: &&PathBuf| places.paths.contains(*path);
            let gone: Vec<_> = event.paths.iter().filter(known).cloned().collect();
            places.lost.extend(gone);
        }
        !idle && (event.paths.is_empty() || event.paths.iter().any(|path| places.hold(path)))
    }
}

impl WatchedPaths {
    fn find(folders: &[PathBuf]) -> Self {
        let mut places = Self::default();
        for folder in folders {
            places.folders.insert(folder.clone());
            places.follow(folder);
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            for entry in entries {
                if entry.file_type().is_ok_and(|kind| kind.is_symlink()) && places.paths.len() < MAX_LINKS {
                    places.follow(&entry.path());
                }
            }
        }
        places
    }

    /// Adds a path and the targets of its links.
    fn follow(&mut self, path: &Path) {
        let mut path = path.to_owned();
        for _ in 0..MAX_HOPS {
            let next = fs::read_link(&path).ok();
            let base = path.parent().map(Path::to_owned).unwrap_or_default();
            self.paths.insert(path);
            match next {
                Some(next) => path = base.join(next),
                None => return,
            }
        }
    }

    fn hold(&self, path: &Path) -> bool {
        self.paths.contains(path) || path.parent().is_some_and(|parent| self.folders.contains(parent))
    }

    /// The folders to watch.
    fn watched(&self) -> BTreeSet<PathBuf> {
        let parents = self.paths.iter().filter_map(|path| path.parent());
        let all = parents.map(Path::to_owned).chain(self.folders.iter().cloned());
        all.collect()
    }
}

impl Watching {
    fn follow(&mut self, wanted: BTreeSet<PathBuf>, lost: &HashSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let identity = |path: &PathBuf| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let now: HashMap<_, _> = wanted
            .into_iter()
            .filter_map(|path| identity(&path).map(|id| (path, id)))
            .collect();
        for (path, id) in &self.known {
            if now.get(path) != Some(id) || lost.contains(path) {
                // Fails if the folder and its watch are gone.
                let _gone = watcher.unwatch(path);
            }
        }
        let before = std::mem::replace(&mut self.known, now);
        let is_new = |path: &PathBuf, id| before.get(path) != Some(id) || lost.contains(path);
        let all = self.known.iter();
        let new: Vec<_> = all.filter(|(path, id)| is_new(path, *id)).collect();
        let mut failed = Vec::new();
        for (path, _) in new {
            if let Err(error) = watcher.watch(path, RecursiveMode::NonRecursive) {
                tracing::warn!(
                    target: LOG,
                    "changes in {} will be noticed late, because it cannot be watched: {error}",
                    path.display()
                );
                failed.push(path.clone());
            }
        }
        for path in failed {
            self.known.remove(&path);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::time::timeout;

    use super::*;

    async fn notices(watch: &mut Watch) -> bool {
        let noticed = timeout(Duration::from_secs(10), watch.changed()).await.is_ok();
        watch.refresh();
        noticed
    }

    async fn is_quiet(watch: &mut Watch) -> bool {
        timeout(Duration::from_millis(300), watch.changed())
            .await
            .is_err()
    }

    #[tokio::test]
    async fn notices_created_changed_and_deleted_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        let mut watch = Watch::new(&[folder.path().to_owned()]);
        watch.refresh();
        assert!(is_quiet(&mut watch).await);
        fs::write(&file, "1").unwrap();
        assert!(notices(&mut watch).await);
        fs::read(&file).unwrap();
        assert!(is_quiet(&mut watch).await, "a read is no change");
        fs::rename(&file, folder.path().join("b.yaml")).unwrap();
        assert!(notices(&mut watch).await);
        fs::remove_file(folder.path().join("b.yaml")).unwrap();
        assert!(notices(&mut watch).await);
    }

    #[tokio::test]
    async fn watches_link_targets_only() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = elsewhere.path().join("target");
        fs::write(&target, "1").unwrap();
        symlink(&target, folder.path().join("a.yaml")).unwrap();
        let mut watch = Watch::new(&[folder.path().to_owned()]);
        watch.refresh();
        fs::write(elsewhere.path().join("neighbour"), "1").unwrap();
        assert!(is_quiet(&mut watch).await);
        fs::write(&target, "2").unwrap();
        assert!(notices(&mut watch).await);
    }

    #[tokio::test]
    async fn notices_replaced_folder() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        fs::create_dir(at("one")).unwrap();
        symlink("one", at("current")).unwrap();
        let mut watch = Watch::new(&[at("current"), at("later")]);
        watch.refresh();
        fs::create_dir(at("two")).unwrap();
        symlink("two", at("next")).unwrap();
        fs::rename(at("next"), at("current")).unwrap();
        assert!(notices(&mut watch).await, "the link leads elsewhere");
        fs::write(at("two").join("a.yaml"), "1").unwrap();
        assert!(notices(&mut watch).await, "the new folder is watched");
        fs::create_dir(at("later")).unwrap();
        assert!(notices(&mut watch).await, "a folder that was missing");
        fs::write(at("later").join("a.yaml"), "1").unwrap();
        assert!(notices(&mut watch).await);
        fs::remove_dir_all(at("later")).unwrap();
        assert!(notices(&mut watch).await);
        fs::create_dir(at("later")).unwrap();
        fs::write(at("later").join("b.yaml"), "1").unwrap();
        assert!(notices(&mut watch).await, "it is back");
        fs::write(at("later").join("c.yaml"), "1").unwrap();
        assert!(notices(&mut watch).await);
        fs::remove_dir_all(at("later")).unwrap();
        fs::create_dir(at("later")).unwrap();
        assert!(notices(&mut watch).await, "gone and back at once");
        fs::write(at("later").join("d.yaml"), "1").unwrap();
        assert!(notices(&mut watch).await);
    }
}
