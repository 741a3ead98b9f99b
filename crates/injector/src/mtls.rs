//! Whether sidecars speak TLS to each other, as the Configuration of the control plane says.

use std::time::Duration;

use outrigger_kube::{Client, Kind};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

const LOG: &str = "dapr.injector";
/// How long an answer of the API counts: pods of a deployment come together.
const KEPT: Duration = Duration::from_secs(1);

/// Reads the Configuration of the control plane, for all pods that are reviewed at the same time once.
#[derive(Debug)]
pub(crate) struct Mtls {
    client: Client,
    namespace: String,
    /// Name of the Configuration.
    name: String,
    read: Mutex<Option<(Instant, bool)>>,
}

impl Mtls {
    /// `namespace` is that of the control plane, `name` its Configuration's.
    pub(crate) fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            read: Mutex::default(),
        }
    }

    /// As the Configuration says, now or a second ago; on where that cannot be read.
    pub(crate) async fn is_on(&self) -> bool {
        // Who comes while it is being read waits for that answer.
        let mut read = self.read.lock().await;
        match *read {
            Some((when, on)) if when.elapsed() < KEPT => on,
            _ => {
                let on = self.ask().await;
                *read = Some((Instant::now(), on));
                on
            }
        }
    }

    async fn ask(&self) -> bool {
        let found = self
            .client
            .get::<Value>(Kind::CONFIGURATIONS, Some(&self.namespace), &self.name)
            .await;
        match found {
            Ok(object) => object["spec"]["mtls"]["enabled"].as_bool().unwrap_or(true),
            Err(error) => {
                tracing::debug!(target: LOG, "mTLS is on: the Configuration {} cannot be read: {error}", self.name);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use outrigger_kube::testing::Server;
    use serde_json::json;

    use super::*;

    const ADDRESS: &str = "/apis/dapr.io/v1alpha1/namespaces/system/configurations/mine";

    fn says(server: &Server, enabled: bool) {
        server.put(
            ADDRESS,
            json!({"metadata": {"name": "mine"}, "spec": {"mtls": {"enabled": enabled}}}),
        );
    }

    #[tokio::test]
    async fn many_pods_at_once_cost_one_call_of_the_api() {
        let server = Server::start().await;
        says(&server, false);
        let mtls = Mtls::new(server.client(), "system", "mine");
        let answers = join_all((0..100).map(|_| mtls.is_on())).await;
        assert!(answers.iter().all(|on| !on));
        // The first 100 may have taken longer than one answer counts, on a slow machine.
        let calls = server.requests("GET", ADDRESS).len();
        assert!((1..10).contains(&calls), "{calls} calls");
    }

    #[tokio::test]
    async fn a_change_counts_soon_and_what_cannot_be_read_means_on() {
        let server = Server::start().await;
        let mtls = Mtls::new(server.client(), "system", "mine");
        assert!(mtls.is_on().await, "there is none");
        says(&server, false);
        let changed = async {
            while mtls.is_on().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(KEPT * 10, changed).await.unwrap();
        server.down(true);
        let on = async {
            while !mtls.is_on().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(KEPT * 10, on).await.unwrap();
    }
}
