//! The namespaces of a cluster: when one is gone, so are its jobs.

use std::sync::Arc;
use std::time::Duration;

use outrigger_accept::health::Part;
use outrigger_kube::{Client, Kind, Meta, Progress, Reflector, Scope, Watched};
use serde_json::Value;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::names;
use crate::storage::Storage;

const LOG: &str = "dapr.scheduler";
/// Between two attempts to delete the jobs of a namespace.
const RETRY: Duration = Duration::from_secs(5);

/// A namespace, of which only the name matters.
#[derive(Debug, PartialEq)]
struct Namespace;

impl Watched for Namespace {
    const KIND: Kind = Kind::NAMESPACES;

    fn read(_: &Meta, _: Value) -> Result<Option<Self>, String> {
        Ok(Some(Self))
    }
}

/// Follows the namespaces.
pub(crate) struct Namespaces {
    client: Client,
    storage: Arc<dyn Storage>,
}

impl Namespaces {
    pub(crate) fn new(client: Client, storage: Arc<dyn Storage>) -> Self {
        Self { client, storage }
    }

    /// Deletes jobs with their namespace, until told to stop. Ready once the namespaces are known.
    pub(crate) async fn run(self, ready: Part, stop: CancellationToken) {
        let reflector = Reflector::<Namespace>::new(self.client.clone(), Scope::default());
        let mut progress = reflector.progress();
        let mut changes = reflector.store().follow();
        let known = async {
            let complete = progress
                .wait_for(|progress| *progress == Progress::Complete)
                .await
                .is_ok();
            ready.set(complete);
            std::future::pending::<()>().await;
        };
        let deleting = async {
            loop {
                match changes.recv().await {
                    Ok(change) if change.new.is_none() => self.gone(&change.meta.name).await,
                    Ok(_) => {}
                    Err(RecvError::Lagged(missed)) => tracing::error!(
                        target: LOG,
                        "{missed} changes of namespaces were missed: jobs of deleted namespaces may be left; delete \
                         them with `dapr scheduler delete-all app/NAMESPACE`"
                    ),
                    Err(RecvError::Closed) => return,
                }
            }
        };
        tokio::select! {
            () = reflector.run(stop) => {}
            () = known => {}
            () = deleting => {}
        }
    }

    /// Deletes the jobs of a namespace; only if the API says that there is none of that name, because a list may lack
    /// one for other reasons.
    async fn gone(&self, namespace: &str) {
        loop {
            match self.client.get::<Value>(Kind::NAMESPACES, None, namespace).await {
                Err(error) if error.is_not_found() => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(target: LOG, "cannot tell whether the namespace {namespace} is gone: {error}");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            let [actors, apps] = names::of_namespace(namespace);
            let deleted = async {
                self.storage.delete_prefix(actors).await?;
                self.storage.delete_prefix(apps).await
            };
            match deleted.await {
                Ok(()) => {
                    tracing::info!(target: LOG, "the namespace {namespace} is gone: deleted its jobs");
                    return;
                }
                Err(error) => {
                    tracing::error!(
                        target: LOG,
                        "cannot delete the jobs of the namespace {namespace}, which is gone: {error}; tried again soon"
                    );
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_accept::health::Health;
    use outrigger_kube::testing::Server;
    use serde_json::json;

    use super::*;
    use crate::storage::embedded::{Embedded, Location};

    #[tokio::test]
    async fn jobs_end_with_their_namespace_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location {
            folder: folder.path().to_owned(),
            id: "s".to_owned(),
            quota: i64::MAX,
        };
        let (store, mut changes) = Embedded::open(&location).unwrap();
        tokio::spawn(async move { while changes.recv().await.is_some() {} });
        let storage: Arc<dyn Storage> = store;
        for namespace in ["default", "default-foo", "def"] {
            for [begin, name] in [["app", "a||job"], ["actorreminder", "t||i||job"]] {
                let name = format!("{begin}||{namespace}||{name}");
                storage.schedule(name, b"x".to_vec(), false).await.unwrap();
            }
        }
        let server = Server::start().await;
        for name in ["default", "default-foo", "def"] {
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
