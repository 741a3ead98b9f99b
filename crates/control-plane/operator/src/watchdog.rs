//! Finds pods that lack their sidecar because they were created while the injector was unavailable, and
//! deletes them so that their workloads recreate them.

use std::sync::Arc;
use std::time::Duration;

use outrigger_kube::annotations::{Annotations, INJECTED, WATCHED, has_sidecar};
use outrigger_kube::{ApiError, Client, Kind, Patch};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::metrics::Metrics;

const LOG: &str = "dapr.operator.watchdog";
/// Interval of checks for a ready injector.
const INJECTOR_INTERVAL: Duration = Duration::from_secs(5);
/// Selects the injector's deployment.
const INJECTOR_LABEL: &str = "labelSelector=app%3Ddapr-sidecar-injector";

/// Finds such pods.
#[derive(Debug, Clone)]
pub(crate) struct Watchdog {
    pub(crate) client: Client,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) settings: config::Watchdog,
    /// The only namespace; `None` means all.
    pub(crate) namespace: Option<String>,
    /// Namespace of the control plane, where the injector runs.
    pub(crate) control_plane: String,
}

/// The action for a pod.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// It has no sidecar and wants none.
    Leave,
    /// It has its sidecar.
    Mark,
    /// It lacks its sidecar.
    Delete,
}

#[derive(Deserialize)]
struct Pod {
    metadata: PodMeta,
    #[serde(default)]
    spec: PodSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMeta {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    containers: Option<Vec<Container>>,
    /// Started before the others; native sidecars are among them.
    #[serde(default)]
    init_containers: Option<Vec<Container>>,
}

#[derive(Deserialize)]
struct Container {
    #[serde(default)]
    name: String,
}

fn names(containers: &Option<Vec<Container>>) -> impl Iterator<Item = &str> {
    let containers = containers.as_deref().unwrap_or_default();
    containers.iter().map(|container| container.name.as_str())
}

fn verdict(pod: &Pod) -> Verdict {
    let none = BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    if pod.metadata.deletion_timestamp.is_some() || !Annotations(annotations).wants_sidecar() {
        return Verdict::Leave;
    }
    match has_sidecar(names(&pod.spec.containers), names(&pod.spec.init_containers)) {
        true => Verdict::Mark,
        false => Verdict::Delete,
    }
}

impl Watchdog {
    /// Checks periodically until stopped, or once if configured.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let looking = async {
            let mut limit = Limit::new(self.settings.per_minute);
            loop {
                match self.check_pods(&mut limit).await {
                    Ok(true) => {}
                    Ok(false) => {
                        tracing::debug!(target: LOG, "the injector is not ready: delaying the check of pods");
                        tokio::time::sleep(INJECTOR_INTERVAL).await;
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!(target: LOG, "cannot check pods for their sidecar: {error}");
                        tokio::time::sleep(INJECTOR_INTERVAL).await;
                        continue;
                    }
                }
                match self.settings.interval {
                    None => return std::future::pending::<()>().await,
                    Some(interval) => tokio::time::sleep(interval).await,
                }
            }
        };
        stop.run_until_cancelled(looking).await;
    }

    /// Whether an injector is ready; without one, recreated pods would lack their sidecar again.
    async fn is_injecting(&self) -> Result<bool, ApiError> {
        let injectors = self
            .client
            .all(Kind::DEPLOYMENTS, Some(&self.control_plane), INJECTOR_LABEL)
            .await?;
        let is_ready = |injector: &Value| {
            injector["status"]["readyReplicas"]
                .as_i64()
                .is_some_and(|count| count > 0)
        };
        Ok(injectors.iter().any(is_ready))
    }

    /// Checks all pods while an injector is ready. Returns whether one was ready until the end, which the
    /// rate limit may delay by an hour.
    async fn check_pods(&self, limit: &mut Limit) -> Result<bool, ApiError> {
        if !self.is_injecting().await? {
            return Ok(false);
        }
        let mut ready = Instant::now();
        let query = format!("labelSelector=%21{INJECTED}%2C%21{WATCHED}").replace("dapr.io/", "dapr.io%2F");
        // Keeps only the pods that need an action.
        let mut found = Vec::new();
        let take = |pod: Value| {
            let Ok(pod) = serde_json::from_value::<Pod>(pod) else {
                return Ok(());
            };
            match verdict(&pod) {
                Verdict::Leave => {}
                Verdict::Mark if !self.settings.labels => {}
                todo => found.push((todo, pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)),
            }
            Ok(())
        };
        let namespace = self.namespace.as_deref();
        let listed = self.client.each(Kind::PODS, namespace, &query, usize::MAX, take);
        listed.await?;
        for (todo, namespace, name, uid) in found {
            let namespace = Some(namespace.as_str()).filter(|namespace| !namespace.is_empty());
            let done = match todo {
                Verdict::Leave => continue,
                Verdict::Mark => {
                    let label = Patch::Merge(json!({"metadata": {"labels": {WATCHED: "true"}}}));
                    self.client.patch(Kind::PODS, namespace, &name, &label).await
                }
                Verdict::Delete => {
                    limit.wait().await;
                    if ready.elapsed() >= INJECTOR_INTERVAL {
                        if !self.is_injecting().await? {
                            return Ok(false);
                        }
                        ready = Instant::now();
                    }
                    let place = namespace.unwrap_or_default();
                    tracing::warn!(
                        target: LOG,
                        "the pod {place}/{name} has no sidecar: deleting it so that it is recreated"
                    );
                    let deleted = self.client.delete(Kind::PODS, namespace, &name, &uid).await;
                    if deleted.is_ok() {
                        self.metrics.pod_deleted();
                    }
                    deleted
                }
            };
            match done {
                // Conflict: a new pod has the name.
                Ok(()) | Err(ApiError::NotFound { .. } | ApiError::Conflict(_)) => {}
                Err(error) => tracing::error!(target: LOG, "pod {name}: {error}"),
            }
        }
        Ok(true)
    }
}

/// Limits the deletions per minute.
#[derive(Debug)]
struct Limit {
    pause: Duration,
    next: Instant,
}

impl Limit {
    fn new(per_minute: Option<u32>) -> Self {
        Self {
            pause: per_minute.map_or(Duration::ZERO, |count| Duration::from_secs(60) / count.max(1)),
            next: Instant::now(),
        }
    }

    async fn wait(&mut self) {
        tokio::time::sleep_until(self.next).await;
        self.next = Instant::now() + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use outrigger_kube::testing::Server;

    use super::*;

    fn pod(name: &str, enabled: &str, containers: &[&str]) -> Value {
        let containers: Vec<_> = containers.iter().map(|name| json!({"name": name})).collect();
        json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("uid-of-{name}"), "annotations": {"dapr.io/enabled": enabled}},
            "spec": {"containers": containers}})
    }

    fn at(name: &str) -> String {
        format!("/api/v1/namespaces/ns/pods/{name}")
    }

    #[test]
    fn chooses_action_per_pod() {
        let verdict = |pod: Value| super::verdict(&serde_json::from_value(pod).unwrap());
        assert_eq!(verdict(pod("a", "true", &["app"])), Verdict::Delete);
        assert_eq!(verdict(pod("a", "true", &["app", "daprd"])), Verdict::Mark);
        let mut native = pod("a", "true", &["app"]);
        native["spec"]["initContainers"] = json!([{"name": "init"}]);
        assert_eq!(verdict(native.clone()), Verdict::Delete);
        native["spec"]["initContainers"] = json!([{"name": "daprd", "restartPolicy": "Always"}]);
        assert_eq!(verdict(native.clone()), Verdict::Mark, "a native sidecar is one");
        // The injector ignores "yes", so a new pod would lack its sidecar as well.
        for other in ["false", "yes", "1", "on", " true"] {
            assert_eq!(verdict(pod("a", other, &["app"])), Verdict::Leave, "{other:?}");
        }
        assert_eq!(verdict(json!({"metadata": {}})), Verdict::Leave);
        let mut going = pod("a", "true", &["app"]);
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(verdict(going), Verdict::Leave);
    }

    #[tokio::test]
    async fn deletes_pods_once_injector_is_ready() {
        let server = Server::start().await;
        for (name, enabled, containers) in [
            ("lacks", "true", &["app"][..]),
            ("has", "true", &["app", "daprd"]),
            ("wants-none", "no", &["app"]),
        ] {
            server.put(&at(name), pod(name, enabled, containers));
        }
        let settings = config::Watchdog {
            interval: None,
            labels: true,
            per_minute: None,
        };
        let watchdog = Watchdog {
            client: server.client(),
            metrics: Arc::default(),
            settings,
            namespace: Some("ns".to_owned()),
            control_plane: "s".to_owned(),
        };
        let mut limit = Limit::new(None);
        assert!(!watchdog.check_pods(&mut limit).await.unwrap(), "no injector");
        assert!(server.object(&at("lacks")).is_some());
        let injector = json!({"metadata": {"name": "i", "namespace": "s"}, "status": {"readyReplicas": 1}});
        server.put("/apis/apps/v1/namespaces/s/deployments/i", injector);
        assert!(watchdog.check_pods(&mut limit).await.unwrap());
        assert!(server.object(&at("lacks")).is_none());
        let told = watchdog.metrics.render();
        assert!(
            told.contains("dapr_operator_watchdog_deleted_pods_total 1"),
            "{told}"
        );
        let deleted = server.requests("DELETE", &at("lacks"));
        assert_eq!(deleted.len(), 1);
        assert_eq!(deleted[0]["preconditions"]["uid"], "uid-of-lacks");
        assert_eq!(
            server.object(&at("has")).unwrap()["metadata"]["labels"][WATCHED],
            "true"
        );
        assert!(server.object(&at("wants-none")).unwrap()["metadata"]["labels"].is_null());
    }

    #[tokio::test(start_paused = true)]
    async fn stops_deleting_without_injector() {
        let server = Server::start().await;
        let injector = |ready: u32| json!({"metadata": {"name": "i", "namespace": "s"}, "status": {"readyReplicas": ready}});
        let address = "/apis/apps/v1/namespaces/s/deployments/i";
        server.put(address, injector(1));
        for name in ["a", "b", "c"] {
            server.put(&at(name), pod(name, "true", &["app"]));
        }
        let watchdog = Watchdog {
            client: server.client(),
            metrics: Arc::default(),
            settings: config::Watchdog {
                interval: None,
                labels: false,
                per_minute: Some(1),
            },
            namespace: None,
            control_plane: "s".to_owned(),
        };
        let mut limit = Limit::new(Some(1));
        let leaving = async {
            server.asked("DELETE", "/pods/", 1).await;
            server.put(address, injector(0));
        };
        let (looked, ()) = tokio::join!(watchdog.check_pods(&mut limit), leaving);
        assert!(!looked.unwrap(), "it was ready only at the beginning");
        assert_eq!(server.requests("DELETE", "/pods/").len(), 1);
        server.put(address, injector(1));
        assert!(watchdog.check_pods(&mut limit).await.unwrap());
        assert_eq!(server.requests("DELETE", "/pods/").len(), 3);
    }

    #[tokio::test]
    async fn keeps_pod_with_reused_name() {
        let server = Server::start().await;
        server.put(&at("lacks"), pod("lacks", "true", &["app", "daprd"]));
        let delete = server
            .client()
            .delete(Kind::PODS, Some("ns"), "lacks", "before")
            .await;
        assert!(matches!(delete, Err(ApiError::Conflict(_))), "{delete:?}");
        assert!(server.object(&at("lacks")).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn limits_deletion_rate() {
        let (mut limit, begun) = (Limit::new(Some(20)), Instant::now());
        for _ in 0..5 {
            limit.wait().await;
        }
        assert_eq!(begun.elapsed(), Duration::from_secs(12));
        let mut any = Limit::new(None);
        any.wait().await;
        any.wait().await;
        assert_eq!(begun.elapsed(), Duration::from_secs(12));
    }
}
