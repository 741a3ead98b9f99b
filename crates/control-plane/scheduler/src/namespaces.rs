//! Watches the namespaces of a cluster and deletes the jobs of deleted ones.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrigger_controlplane::health::Part;
use outrigger_kube::{Client, Kind, Meta, Progress, Reflector, Scope, Store, Watched};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::names;
use crate::storage::{Storage, StorageError};

const LOG: &str = "dapr.scheduler";
/// For messages: the command that deletes the jobs of a namespace. It works with etcd and with the embedded
/// store.
const DELETE: &str = "`dapr scheduler delete-all app/NAMESPACE` (on PostgreSQL by SQL: docs/reference/scheduler.md has the statement)";
/// Pause between attempts to delete jobs.
const RETRY: Duration = Duration::from_secs(5);
/// Pause between attempts to watch namespaces after the API denied access.
const DENIED_RETRY: Duration = Duration::from_secs(300);
/// Maximum number of deleted namespaces queued while the store or the API fails.
const MAX_WAITING: usize = 65_536;

/// A namespace; only its name is used.
#[derive(Debug, PartialEq)]
struct Namespace;

impl Watched for Namespace {
    const KIND: Kind = Kind::NAMESPACES;

    fn read(_: &Meta, _: Value) -> Result<Option<Self>, String> {
        Ok(Some(Self))
    }
}

/// Deletes the jobs of deleted namespaces.
pub(crate) struct Namespaces {
    client: Client,
    storage: Arc<dyn Storage>,
    /// Queue of deleted namespaces whose jobs still exist.
    waiting: Mutex<BTreeSet<String>>,
    added: Notify,
    /// Pause after the API denied access.
    pause: Duration,
}

impl Namespaces {
    pub(crate) fn new(client: Client, storage: Arc<dyn Storage>) -> Self {
        Self {
            client,
            storage,
            waiting: Mutex::default(),
            added: Notify::new(),
            pause: DENIED_RETRY,
        }
    }

    /// Runs until `stop`. `ready` is set once the namespaces are known or access to them is denied: a
    /// scheduler with the rights of one namespace alone works without them.
    pub(crate) async fn run(self, ready: Part, stop: CancellationToken) {
        let following = async {
            let mut is_told = false;
            loop {
                self.follow(&ready).await;
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(
                        target: LOG,
                        "namespaces are not watched: the service account lacks a ClusterRole with get, list and \
                         watch on namespaces (the chart creates none with global.rbac.namespaced). Jobs of a deleted \
                         namespace remain: delete them with {DELETE}. Next attempt in {} seconds",
                        self.pause.as_secs()
                    );
                }
                ready.set(true);
                tokio::time::sleep(self.pause).await;
            }
        };
        stop.run_until_cancelled(Box::pin(async { tokio::join!(following, self.delete()) }))
            .await;
    }

    /// Logs namespaces that have jobs and are not in the cluster; they may have been deleted while no
    /// scheduler ran. Their jobs are not deleted: several clusters may share the store, and sidecars may run
    /// outside of any cluster.
    async fn log_unknown(&self, store: &Store<Namespace>) {
        loop {
            match self.unknown(store).await {
                Ok(unknown) if unknown.is_empty() => return,
                Ok(unknown) => {
                    return tracing::warn!(
                        target: LOG,
                        "jobs exist for namespaces that the cluster does not have: {}. If these were deleted while \
                         no scheduler ran, delete their jobs with {DELETE}",
                        unknown.join(", ")
                    );
                }
                Err(cause) => tracing::warn!(
                    target: LOG,
                    "cannot check for jobs of deleted namespaces, retrying: {cause}"
                ),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn unknown(&self, store: &Store<Namespace>) -> Result<Vec<String>, StorageError> {
        let known: BTreeSet<String> = store.all().into_iter().map(|(meta, _)| meta.name).collect();
        Ok(self.with_jobs().await?.difference(&known).cloned().collect())
    }

    /// The namespaces that have jobs and whose names are valid in Kubernetes.
    async fn with_jobs(&self) -> Result<BTreeSet<String>, StorageError> {
        let mut namespaces = BTreeSet::new();
        for [mut from, below] in names::kinds() {
            while let Some(name) = self.storage.first(from, below.clone()).await? {
                let Some((namespace, after)) = names::namespace(&name) else {
                    // This scheduler does not make such names; the remaining ones sort after it.
                    break;
                };
                if is_label(namespace) && namespaces.len() < MAX_WAITING {
                    namespaces.insert(namespace.to_owned());
                }
                from = after;
            }
        }
        Ok(namespaces)
    }

    /// Queues deleted namespaces until the API denies access.
    async fn follow(&self, ready: &Part) {
        let reflector = Reflector::<Namespace>::new(self.client.clone(), Scope::default());
        let mut progress = reflector.progress();
        let store = reflector.store();
        let mut changes = store.follow();
        let refused = async {
            loop {
                // The sender lives in the reflector, which outlives this function.
                let known = progress.wait_for(|progress| *progress != Progress::Pending).await;
                if known.is_ok_and(|progress| *progress == Progress::Complete) {
                    ready.set(true);
                    self.log_unknown(&store).await;
                    return std::future::pending::<()>().await;
                }
                // The watch failed; a list tells whether access is denied.
                match self.client.all(Kind::NAMESPACES, None, "").await {
                    Err(error) if error.is_forbidden() => return,
                    _ => {
                        // Retries after the pause, or as soon as the watch works.
                        let complete = progress.wait_for(|progress| *progress == Progress::Complete);
                        let _ = tokio::time::timeout(RETRY, complete).await;
                    }
                }
            }
        };
        // Concurrent with deletion: deletion may wait for the store, and the watch must not lag.
        let noting = async {
            loop {
                match changes.recv().await {
                    Ok(changes) => {
                        let gone = changes.iter().filter(|change| change.new.is_none());
                        gone.for_each(|change| self.note(change.meta.name.clone()));
                    }
                    Err(RecvError::Lagged(missed)) => missed_some(missed),
                    Err(RecvError::Closed) => return,
                }
            }
        };
        tokio::select! {
            () = reflector.run(CancellationToken::new()) => {}
            () = refused => {}
            () = noting => {}
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, namespace: String) {
        let mut waiting = self.waiting();
        if waiting.len() < MAX_WAITING {
            waiting.insert(namespace);
        } else {
            missed_some(1);
        }
        self.added.notify_one();
    }

    /// Deletes the jobs of all queued namespaces, repeatedly. A failing namespace does not delay others.
    async fn delete(&self) {
        loop {
            let all = std::mem::take(&mut *self.waiting());
            for namespace in all {
                if let Err(cause) = self.delete_jobs_of(&namespace).await {
                    tracing::error!(
                        target: LOG,
                        "cannot delete the jobs of the deleted namespace {namespace}, retrying: {cause}"
                    );
                    self.waiting().insert(namespace);
                }
            }
            let is_done = self.waiting().is_empty();
            tokio::select! {
                () = self.added.notified() => {}
                () = tokio::time::sleep(RETRY), if !is_done => {}
            }
        }
    }

    /// Deletes the jobs of a namespace only if the API confirms that the namespace does not exist, because a
    /// list may be incomplete.
    async fn delete_jobs_of(&self, namespace: &str) -> Result<(), String> {
        match self.client.get::<Value>(Kind::NAMESPACES, None, namespace).await {
            Err(error) if error.is_not_found() => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(format!("cannot confirm the deletion: {error}")),
        }
        for prefix in names::of_namespace(namespace) {
            let deleted = self.storage.delete_prefix(prefix).await;
            deleted.map_err(|error| error.to_string())?;
        }
        tracing::info!(target: LOG, "deleted the jobs of the deleted namespace {namespace}");
        Ok(())
    }
}

/// Whether Kubernetes accepts this name for a namespace (a DNS label).
fn is_label(name: &str) -> bool {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(fits)
}

fn missed_some(missed: u64) {
    tracing::error!(
        target: LOG,
        "{missed} changes of namespaces were missed: jobs of deleted namespaces may remain; delete them with {DELETE}"
    );
}

#[cfg(test)]
mod tests {
    use outrigger_controlplane::health::Health;
    use outrigger_kube::testing::Server;
    use serde_json::json;

    use super::*;
    use crate::storage::embedded::{Embedded, Location};

    fn store(folder: &std::path::Path) -> Arc<dyn Storage> {
        let location = Location {
            folder: folder.to_owned(),
            id: "s".to_owned(),
            quota: i64::MAX,
        };
        let (store, mut changes) = Embedded::open(&location).unwrap();
        tokio::spawn(async move { while changes.recv().await.is_some() {} });
        store
    }

    #[tokio::test]
    async fn is_ready_without_namespace_rights() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start().await;
        let refused = json!({"kind": "Status", "message": "namespaces is forbidden"});
        server.fix("/api/v1/namespaces", 403_u16.try_into().unwrap(), refused);
        let (mut health, stop) = (Health::default(), CancellationToken::new());
        let mut namespaces = Namespaces::new(server.client(), store(folder.path()));
        namespaces.pause = Duration::from_millis(20);
        let running = tokio::spawn(namespaces.run(health.part("namespaces"), stop.clone()));
        // Each attempt asks twice; the second answer has the reason.
        server.asked("LIST", "/api/v1/namespaces", 5).await;
        assert!(health.is_ready());
        // Once access is granted, the watch starts.
        let listed = json!({"metadata": {"resourceVersion": "1"}, "items": []});
        server.fix("/api/v1/namespaces", 200_u16.try_into().unwrap(), listed);
        server.asked("WATCH", "/api/v1/namespaces", 1).await;
        assert!(health.is_ready());
        stop.cancel();
        running.await.unwrap();
    }

    #[tokio::test]
    async fn is_not_ready_without_api() {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start().await;
        server.down(true);
        let (mut health, stop) = (Health::default(), CancellationToken::new());
        let namespaces = Namespaces::new(server.client(), store(folder.path()));
        let running = tokio::spawn(namespaces.run(health.part("namespaces"), stop.clone()));
        server.asked("LIST", "/api/v1/namespaces", 2).await;
        assert!(!health.is_ready(), "nobody said that it may not");
        server.down(false);
        server.asked("WATCH", "/api/v1/namespaces", 1).await;
        assert!(health.is_ready());
        stop.cancel();
        running.await.unwrap();
    }

    /// A store with two jobs in each namespace.
    async fn stored(folder: &std::path::Path, namespaces: &[&str]) -> Arc<dyn Storage> {
        let storage = store(folder);
        for namespace in namespaces {
            for [begin, name] in [["app", "a||job"], ["actorreminder", "t||i||job"]] {
                let name = format!("{begin}||{namespace}||{name}");
                storage.schedule(name, b"x".to_vec(), false).await.unwrap();
            }
        }
        storage
    }

    async fn namespaces_of(storage: &Arc<dyn Storage>) -> Vec<String> {
        let jobs = storage.list(String::new(), 1 << 20).await.unwrap();
        let namespaces = jobs.iter().filter_map(|(name, _)| names::namespace(name));
        let namespaces: BTreeSet<String> = namespaces.map(|(name, _)| name.to_owned()).collect();
        namespaces.into_iter().collect()
    }

    #[tokio::test]
    async fn keeps_jobs_of_unknown_namespaces() {
        let folder = tempfile::tempdir().unwrap();
        // `Standalone_1` is not a valid Kubernetes name, so it is never reported.
        let namespaces = ["gone", "gone-too", "here", "Standalone_1"];
        let storage = stored(folder.path(), &namespaces).await;
        let server = Server::start().await;
        for name in ["here", "without-jobs"] {
            let path = format!("/api/v1/namespaces/{name}");
            server.put(&path, json!({"metadata": {"name": name}}));
        }
        let all = Namespaces::new(server.client(), Arc::clone(&storage));
        let reflector = Reflector::<Namespace>::new(server.client(), Scope::default());
        let (store, mut progress) = (reflector.store(), reflector.progress());
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let stop = stop.clone();
            async move { reflector.run(stop).await }
        });
        let complete = progress.wait_for(|progress| *progress == Progress::Complete);
        tokio::time::timeout(Duration::from_secs(10), complete)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(all.unknown(&store).await.unwrap(), ["gone", "gone-too"]);
        all.log_unknown(&store).await;
        assert!(all.waiting().is_empty());
        assert_eq!(
            namespaces_of(&storage).await,
            ["Standalone_1", "gone", "gone-too", "here"]
        );
        stop.cancel();
        running.await.unwrap();
    }

    #[tokio::test]
    async fn incomplete_list_deletes_no_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let storage = stored(folder.path(), &["here"]).await;
        let server = Server::start().await;
        let found = json!({"metadata": {"name": "here"}});
        let all = Namespaces::new(server.client(), Arc::clone(&storage));
        // The list lacks `here`, but a direct request finds it.
        server.put("/api/v1/namespaces/here", found);
        assert_eq!(
            all.with_jobs().await.unwrap(),
            BTreeSet::from(["here".to_owned()])
        );
        all.delete_jobs_of("here").await.unwrap();
        server.down(true);
        assert!(all.delete_jobs_of("here").await.is_err());
        assert_eq!(namespaces_of(&storage).await, ["here"]);
    }

    #[tokio::test]
    async fn deletes_jobs_of_deleted_namespace() {
        let folder = tempfile::tempdir().unwrap();
        let storage = stored(folder.path(), &["default", "default-foo", "def"]).await;
        let server = Server::start().await;
        for name in ["default", "default-foo", "def", "a-stuck"] {
            server.put(
                &format!("/api/v1/namespaces/{name}"),
                json!({"metadata": {"name": name}}),
            );
        }
        let (mut health, stop) = (Health::default(), CancellationToken::new());
        let namespaces = Namespaces::new(server.client(), Arc::clone(&storage));
        let running = tokio::spawn(namespaces.run(health.part("namespaces"), stop.clone()));
        server.asked("WATCH", "/api/v1/namespaces", 1).await;
        assert!(health.is_ready());
        // A namespace whose lookup fails does not delay others.
        let stuck = "/api/v1/namespaces/a-stuck";
        server.fix(stuck, 500_u16.try_into().unwrap(), json!({"kind": "Status"}));
        server.delete(stuck);
        server.asked("GET", stuck, 1).await;
        server.delete("/api/v1/namespaces/default");
        server.asked("GET", "/api/v1/namespaces/default", 1).await;
        let left = async {
            loop {
                let jobs = storage.list(String::new(), 1 << 20).await.unwrap();
                if jobs.len() < 6 {
                    let of_default = storage.list("app||default||".to_owned(), 1 << 20).await.unwrap();
                    if jobs.len() == 4 && of_default.is_empty() {
                        return jobs;
                    }
                }
                tokio::task::yield_now().await;
            }
        };
        let left = tokio::time::timeout(Duration::from_secs(10), left).await.unwrap();
        assert!(
            left.iter().all(|(name, _)| !name.contains("||default||")),
            "{left:?}"
        );
        stop.cancel();
        running.await.unwrap();
    }
}
