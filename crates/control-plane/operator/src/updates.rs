//! Streams of changes for sidecars.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use outrigger_backoff::Backoff;
use outrigger_kube::{Change, Changes, Meta};
use outrigger_wire::operator::v1::ResourceEventType;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::resource::{Resource, ResourceKind};
use crate::secrets::{NotBefore, SecretError, Secrets};

const LOG: &str = "dapr.operator.api";
/// Bounds of the pause before a missing secret is read again; half of each pause is random.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

/// The stream of one sidecar.
pub(crate) struct Follower<K> {
    changes: Receiver<Changes<Resource<K>>>,
    /// Received changes of the namespace that are not handled yet.
    left: VecDeque<Change<Resource<K>>>,
    /// The latest change of each resource with a missing secret, by name.
    waiting: HashMap<String, PendingChange<K>>,
    secrets: Arc<Secrets>,
    namespace: String,
    concerns: Concerns<K>,
    /// Cancelled at shutdown.
    drain: CancellationToken,
}

/// Whether a resource concerns the sidecar.
pub(crate) type Concerns<K> = Box<dyn Fn(&Meta, &Resource<K>) -> bool + Send + Sync>;

/// An update for a sidecar.
#[derive(Debug, PartialEq)]
pub(crate) struct Update {
    pub(crate) event: ResourceEventType,
    pub(crate) manifest: Bytes,
}

/// A change not sent to the sidecar yet.
struct PendingChange<K> {
    name: String,
    event: ResourceEventType,
    resource: Arc<Resource<K>>,
    /// When it was learned: secrets read earlier may be stale.
    at: Instant,
    /// When to read its secret.
    due: Instant,
    pauses: Backoff,
    /// Whether its secret was missing.
    missed: bool,
}

impl<K> PendingChange<K> {
    /// The update that a change means for a sidecar, if any.
    fn of(change: Change<Resource<K>>, concerns: &Concerns<K>) -> Option<Self> {
        let (event, resource) = seen(&change, concerns)?;
        Some(Self {
            name: change.meta.name,
            event,
            resource,
            at: change.at,
            due: change.at,
            pauses: Backoff::new(RETRY_PAUSES.0, RETRY_PAUSES.1).jittered(),
            missed: false,
        })
    }
}

impl<K: ResourceKind> Follower<K> {
    /// A stream of the resources of a namespace that concern a sidecar, until `drain`.
    pub(crate) fn new(
        changes: Receiver<Changes<Resource<K>>>,
        secrets: Arc<Secrets>,
        namespace: String,
        concerns: Concerns<K>,
        drain: CancellationToken,
    ) -> Self {
        Self {
            changes,
            left: VecDeque::new(),
            waiting: HashMap::new(),
            secrets,
            namespace,
            concerns,
            drain,
        }
    }

    /// The next update; `None` at shutdown.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the sidecar reads too slowly or a secret cannot be read; the sidecar must reconnect
    /// and list again.
    pub(crate) async fn next(&mut self) -> Option<Result<Update, Status>> {
        let drain = self.drain.clone();
        drain.run_until_cancelled(self.update()).await.flatten()
    }

    async fn update(&mut self) -> Option<Result<Update, Status>> {
        loop {
            let Some(pending_change) = self.next_due() else {
                match self.wait().await {
                    Ok(()) => continue,
                    Err(ended) => return ended.map(Err),
                }
            };
            let error = match self.manifest(&pending_change).await {
                Ok(manifest) => {
                    let event = pending_change.event;
                    return Some(Ok(Update { event, manifest }));
                }
                Err(error) => error,
            };
            match &error {
                SecretError::Unreadable { cause, .. } if cause.is_not_found() => {
                    self.retry_later(pending_change, &error)
                }
                error if error.is_passing() => {
                    return Some(Err(Status::unavailable(format!(
                        "a change of {} cannot be read: {error}; reconnect and list them",
                        K::KIND.plural
                    ))));
                }
                _ => tracing::warn!(
                    target: LOG,
                    "a change of {} {}/{} is not sent to sidecars: {error}",
                    K::KIND.plural, self.namespace, pending_change.name
                ),
            }
        }
    }

    /// The next change to send: received ones first, then those whose pause is over.
    fn next_due(&mut self) -> Option<PendingChange<K>> {
        while let Some(change) = self.left.pop_front() {
            // Supersedes the delayed change.
            self.waiting.remove(&change.meta.name);
            if let Some(pending_change) = PendingChange::of(change, &self.concerns) {
                return Some(pending_change);
            }
        }
        let now = Instant::now();
        let due = self
            .waiting
            .values()
            .find(|pending_change| pending_change.due <= now)?;
        let name = due.name.clone();
        self.waiting.remove(&name)
    }

    /// Waits for a received change or for the end of a pause.
    ///
    /// # Errors
    /// The stream ends, with this status if there is one.
    async fn wait(&mut self) -> Result<(), Option<Status>> {
        let next = self
            .waiting
            .values()
            .map(|pending_change| pending_change.due)
            .min();
        let due = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => pending().await,
            }
        };
        tokio::select! {
            changes = self.changes.recv() => match changes {
                Ok(changes) => {
                    let mine = changes.iter().filter(|one| one.meta.namespace == self.namespace);
                    self.left.extend(mine.cloned());
                    Ok(())
                }
                Err(RecvError::Closed) => Err(None),
                Err(RecvError::Lagged(missed)) => Err(Some(Status::unavailable(format!(
                    "the stream is {missed} changes of {} behind: reconnect and list them",
                    K::KIND.plural
                )))),
            },
            () = due => Ok(()),
        }
    }

    /// Delays a change whose secret is missing, because the secret may be created shortly after.
    fn retry_later(&mut self, mut pending_change: PendingChange<K>, error: &SecretError) {
        let (plural, namespace, name) = (K::KIND.plural, &self.namespace, &pending_change.name);
        if pending_change.missed {
            tracing::debug!(target: LOG, "a change of {plural} {namespace}/{name} is still delayed: {error}");
        } else {
            tracing::warn!(
                target: LOG,
                "a change of {plural} {namespace}/{name} is delayed: {error}; create the secret (it is read again at \
                 least every {} s)",
                RETRY_PAUSES.1.as_secs()
            );
        }
        pending_change.missed = true;
        pending_change.due = Instant::now() + pending_change.pauses.pause();
        self.waiting.insert(pending_change.name.clone(), pending_change);
    }

    /// The manifest of a deleted resource needs no secrets, which may be deleted too.
    async fn manifest(&self, pending_change: &PendingChange<K>) -> Result<Bytes, SecretError> {
        let resource = &pending_change.resource;
        if !resource.has_secrets || pending_change.event == ResourceEventType::Deleted {
            return Ok(resource.manifest.clone());
        }
        let revealed = self.secrets.reveal(
            K::SECRETS,
            &self.namespace,
            &resource.manifest,
            NotBefore::change(pending_change.at),
        );
        Ok(revealed.await?.into())
    }
}

/// How an app sees a change: a resource that enters its scope is new, one that leaves it is deleted.
fn seen<K>(
    change: &Change<Resource<K>>,
    concerns: &Concerns<K>,
) -> Option<(ResourceEventType, Arc<Resource<K>>)> {
    let concerns = |resource: &&Arc<Resource<K>>| concerns(&change.meta, resource);
    let (old, new) = (
        change.old.as_ref().filter(concerns),
        change.new.as_ref().filter(concerns),
    );
    match (old, new) {
        (None, Some(new)) => Some((ResourceEventType::Created, Arc::clone(new))),
        (Some(_), Some(new)) => Some((ResourceEventType::Updated, Arc::clone(new))),
        (Some(old), None) => Some((ResourceEventType::Deleted, Arc::clone(old))),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use outrigger_kube::testing::Server;
    use outrigger_kube::{Client, Progress, Reflector, Scope, Watched};
    use serde_json::{Value, json};
    use tokio::net::TcpListener;
    use tokio::sync::broadcast::{Sender, channel};
    use tonic::Code;

    use super::*;
    use crate::resource::Component;

    const SECRET: &str = "/api/v1/namespaces/ns/secrets/s";

    fn follower(
        client: Client,
        changes: Receiver<Changes<Resource<Component>>>,
        drain: CancellationToken,
    ) -> Follower<Component> {
        let secrets = Arc::new(Secrets::new(client, Arc::default()));
        Follower::new(changes, secrets, "ns".to_owned(), Box::new(|_, _| true), drain)
    }

    /// A stream that will report a component with this property.
    fn following(
        client: Client,
        property: Value,
    ) -> (Sender<Changes<Resource<Component>>>, Follower<Component>) {
        let (changes, followed) = channel(8);
        let follower = follower(client, followed, CancellationToken::new());
        changes.send(change(None, Some(property))).unwrap();
        (changes, follower)
    }

    /// The component's property changed.
    fn change(old: Option<Value>, new: Option<Value>) -> Changes<Resource<Component>> {
        let read = |property: Value| {
            let object =
                json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"metadata": [property]}});
            Arc::new(
                Resource::<Component>::read(&Meta::of(&object), object)
                    .unwrap()
                    .unwrap(),
            )
        };
        let meta = Meta {
            namespace: "ns".to_owned(),
            name: "c".to_owned(),
        };
        Arc::new([Change {
            meta,
            old: old.map(read),
            new: new.map(read),
            at: Instant::now(),
        }])
    }

    fn reference() -> Value {
        json!({"name": "p", "secretKeyRef": {"name": "s", "key": "k"}})
    }

    fn secret() -> Value {
        json!({"metadata": {"name": "s", "namespace": "ns"}, "data": {"k": "eA=="}})
    }

    /// The next event and the value of the property.
    async fn told(follower: &mut Follower<Component>) -> (ResourceEventType, Value) {
        let next = tokio::time::timeout(Duration::from_secs(120), follower.next()).await;
        let Update { event, manifest } = next.unwrap().unwrap().unwrap();
        let mut manifest: Value = serde_json::from_slice(&manifest).unwrap();
        (event, manifest["spec"]["metadata"][0]["value"].take())
    }

    #[tokio::test(start_paused = true)]
    async fn delays_change_until_secret_exists() {
        let server = Server::start().await;
        let (_changes, mut follower) = following(server.client(), reference());
        let making = async {
            server.asked("LIST", "/api/v1/secrets", 1).await;
            server.put(SECRET, secret());
        };
        let (told, ()) = tokio::join!(told(&mut follower), making);
        assert_eq!(told, (ResourceEventType::Created, json!("eA==")));
        assert!(follower.waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn newer_change_replaces_delayed_one() {
        let server = Server::start().await;
        let (changes, mut follower) = following(server.client(), reference());
        let plain = || json!({"name": "p", "value": "x"});
        let changing = async {
            server.asked("LIST", "/api/v1/secrets", 2).await;
            changes.send(change(Some(reference()), Some(plain()))).unwrap();
        };
        let (told_first, ()) = tokio::join!(told(&mut follower), changing);
        assert_eq!(told_first, (ResourceEventType::Updated, json!("x")));
        assert!(follower.waiting.is_empty());

        let asked = server.requests("LIST", "/api/v1/secrets").len();
        let deleting = async {
            changes.send(change(Some(plain()), Some(reference()))).unwrap();
            server.asked("LIST", "/api/v1/secrets", asked + 1).await;
            changes.send(change(Some(reference()), None)).unwrap();
        };
        let (told_last, ()) = tokio::join!(told(&mut follower), deleting);
        assert_eq!(told_last.0, ResourceEventType::Deleted);
        assert!(follower.waiting.is_empty());
    }

    #[tokio::test]
    async fn unreadable_secret_ends_stream() {
        let server = Server::start().await;
        let refused = json!({"kind": "Status", "message": "away"});
        server.fix(SECRET, http::StatusCode::INTERNAL_SERVER_ERROR, refused);
        let (_changes, mut follower) = following(server.client(), reference());
        let status = follower.next().await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("ns/s"), "{status}");
    }

    #[tokio::test]
    async fn shutdown_ends_stream_during_read() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::plain(silent.local_addr().unwrap()).unwrap();
        let (_changes, mut follower) = following(client, reference());
        let drain = follower.drain.clone();
        let ending = async {
            let connection = silent.accept().await.unwrap();
            drain.cancel();
            connection
        };
        let ended = async { tokio::join!(follower.next(), ending) };
        let (next, _connection) = tokio::time::timeout(Duration::from_secs(20), ended)
            .await
            .unwrap();
        assert!(next.is_none());
    }

    fn with(scopes: Value) -> Option<Arc<Resource<Component>>> {
        let object = json!({"metadata": {"name": "c", "namespace": "ns"}, "scopes": scopes});
        Some(Arc::new(
            Resource::read(&Meta::of(&object), object).unwrap().unwrap(),
        ))
    }

    #[test]
    fn scopes_add_and_remove_resources() {
        let (mine, others, all) = (
            || with(json!(["app"])),
            || with(json!(["b"])),
            || with(Value::Null),
        );
        let meta = Meta {
            namespace: "ns".to_owned(),
            name: "c".to_owned(),
        };
        for (old, new, expected) in [
            (None, mine(), Some(ResourceEventType::Created)),
            (None, others(), None),
            (others(), all(), Some(ResourceEventType::Created)),
            (all(), mine(), Some(ResourceEventType::Updated)),
            (all(), others(), Some(ResourceEventType::Deleted)),
            (mine(), None, Some(ResourceEventType::Deleted)),
            (others(), None, None),
        ] {
            let change = Change {
                meta: meta.clone(),
                old,
                new,
                at: Instant::now(),
            };
            let of_app: Concerns<Component> = Box::new(|_, resource| resource.is_for("app"));
            assert_eq!(
                seen(&change, &of_app).map(|(event, _)| event),
                expected,
                "{change:?}"
            );
        }
    }

    #[tokio::test]
    async fn relist_of_others_keeps_stream() {
        let server = Server::start().await;
        let put = |namespace: &str, name: &str| {
            let address = format!("/apis/dapr.io/v1alpha1/namespaces/{namespace}/components/{name}");
            server.put(
                &address,
                json!({"metadata": {"name": name, "namespace": namespace}}),
            );
        };
        (0..1500).for_each(|number| put("other", &format!("c{number}")));
        put("ns", "one");
        put("ns", "two");
        let reflector = Reflector::<Resource<Component>>::new(server.client(), Scope::default());
        let drain = CancellationToken::new();
        let mut follower = follower(server.client(), reflector.store().follow(), drain.clone());
        let mut progress = reflector.progress();
        tokio::spawn(reflector.run(drain.clone()));
        progress
            .wait_for(|known| *known == Progress::Complete)
            .await
            .unwrap();
        let mut names = Vec::new();
        for _ in 0..2 {
            let Update { event, manifest } = follower.next().await.unwrap().unwrap();
            assert_eq!(event, ResourceEventType::Created);
            let manifest: Value = serde_json::from_slice(&manifest).unwrap();
            names.push(manifest["metadata"]["name"].as_str().unwrap().to_owned());
        }
        names.sort();
        assert_eq!(names, ["one", "two"]);
        drain.cancel();
        assert_eq!(follower.next().await.map(|_| ()), None);
    }
}
