//! Streams of changes, as sidecars see them.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use outrigger_kube::{Change, Changes};
use outrigger_wire::operator::v1::ResourceEventType;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::resource::{Resource, ResourceKind};
use crate::secrets::Secrets;

const LOG: &str = "dapr.operator.api";

/// Who follows changes.
pub(crate) struct Follower<K> {
    pub(crate) changes: Receiver<Changes<Resource<K>>>,
    /// Those of the namespace that are received, and not looked at.
    pub(crate) left: VecDeque<Change<Resource<K>>>,
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) namespace: String,
    /// Only what is for this app; everything without.
    pub(crate) app_id: Option<String>,
    /// The operator ends.
    pub(crate) drain: CancellationToken,
}

/// Something that a sidecar has to know.
#[derive(Debug, PartialEq)]
pub(crate) struct Update {
    pub(crate) event: ResourceEventType,
    pub(crate) manifest: Bytes,
}

impl<K: ResourceKind> Follower<K> {
    /// The next update; nothing when the operator ends.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the sidecar read too slowly: it has to connect and list again.
    pub(crate) async fn next(&mut self) -> Option<Result<Update, Status>> {
        loop {
            if self.drain.is_cancelled() {
                return None;
            }
            let Some(change) = self.left.pop_front() else {
                match self.drain.run_until_cancelled(self.changes.recv()).await? {
                    Ok(changes) => {
                        let mine = changes.iter().filter(|one| one.meta.namespace == self.namespace);
                        self.left.extend(mine.cloned());
                    }
                    Err(RecvError::Closed) => return None,
                    Err(RecvError::Lagged(missed)) => {
                        return Some(Err(Status::unavailable(format!(
                            "the stream is {missed} changes of {} behind: connect again and list them",
                            K::KIND.plural
                        ))));
                    }
                }
                continue;
            };
            let Some((event, resource)) = seen(&change, self.app_id.as_deref()) else {
                continue;
            };
            if let Some(manifest) = self.manifest(event, &resource, &change.meta.name).await {
                return Some(Ok(Update { event, manifest }));
            }
        }
    }

    /// Of what is gone nobody needs the secrets, which may be gone as well.
    async fn manifest(&self, event: ResourceEventType, resource: &Resource<K>, name: &str) -> Option<Bytes> {
        if !resource.has_secrets || event == ResourceEventType::Deleted {
            return Some(resource.manifest.clone());
        }
        let revealed = self
            .secrets
            .reveal(K::SECRETS, &self.namespace, &resource.manifest)
            .await;
        match revealed {
            Ok(manifest) => Some(manifest.into()),
            Err(error) => {
                let (plural, namespace) = (K::KIND.plural, &self.namespace);
                tracing::warn!(
                    target: LOG,
                    "a change of {plural} {namespace}/{name} is not sent to sidecars: {error}; create the secret, \
                     then touch the resource"
                );
                None
            }
        }
    }
}

/// What a change is for an app: one that begins to concern it is new to it, one that no longer does is gone for it.
fn seen<K>(
    change: &Change<Resource<K>>,
    app_id: Option<&str>,
) -> Option<(ResourceEventType, Arc<Resource<K>>)> {
    let concerns = |resource: &&Arc<Resource<K>>| app_id.is_none_or(|app_id| resource.is_for(app_id));
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
    use outrigger_kube::{Meta, Progress, Reflector, Scope, Watched};
    use serde_json::{Value, json};

    use super::*;
    use crate::resource::Component;

    fn with(scopes: Value) -> Option<Arc<Resource<Component>>> {
        let object = json!({"metadata": {"name": "c", "namespace": "ns"}, "scopes": scopes});
        Some(Arc::new(
            Resource::read(&Meta::of(&object), object).unwrap().unwrap(),
        ))
    }

    #[test]
    fn scopes_make_changes_appear_and_disappear() {
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
            };
            assert_eq!(
                seen(&change, Some("app")).map(|(event, _)| event),
                expected,
                "{change:?}"
            );
        }
        let change = Change {
            meta,
            old: None,
            new: others(),
        };
        assert!(seen(&change, None).is_some(), "who asks for no app sees all");
    }

    #[tokio::test]
    async fn a_list_that_is_different_for_others_ends_no_stream() {
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
        let mut follower = Follower {
            changes: reflector.store().follow(),
            left: VecDeque::new(),
            secrets: Arc::new(Secrets::new(server.client(), Arc::default())),
            namespace: "ns".to_owned(),
            app_id: None,
            drain: drain.clone(),
        };
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
