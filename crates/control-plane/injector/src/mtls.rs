//! Whether sidecars use mTLS, according to the control plane's Configuration.

use std::time::Duration;

use outrigger_kube::{Client, Kind};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

const LOG: &str = "dapr.injector";
/// How long a response of the API is cached, because pods of a deployment are created together.
const CACHE_TTL: Duration = Duration::from_secs(1);
/// Timeout of a response of the API. The API server waits 10 s for a review and then creates the pod without
/// its sidecar; a stale setting is better.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the control plane's Configuration; concurrent reviews share one read.
#[derive(Debug)]
pub(crate) struct Mtls {
    client: Client,
    namespace: String,
    /// Name of the Configuration.
    name: String,
    read: Mutex<Option<(Instant, bool)>>,
}

impl Mtls {
    /// `namespace` is that of the control plane, `name` that of its Configuration.
    pub(crate) fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            read: Mutex::default(),
        }
    }

    /// The mTLS setting, at most a second old. If the Configuration cannot be read, the last known setting
    /// applies; if none was ever read, mTLS is on.
    pub(crate) async fn is_on(&self) -> bool {
        // Concurrent callers wait for the read in progress.
        let mut read = self.read.lock().await;
        let last = match *read {
            Some((when, on)) if when.elapsed() < CACHE_TTL => return on,
            Some((_, on)) => on,
            None => true,
        };
        let on = self.ask(last).await;
        *read = Some((Instant::now(), on));
        on
    }

    async fn ask(&self, last: bool) -> bool {
        let Self { namespace, name, .. } = self;
        let asked = self
            .client
            .get::<Value>(Kind::CONFIGURATIONS, Some(namespace), name);
        let cause = match tokio::time::timeout(READ_TIMEOUT, asked).await {
            Ok(Ok(object)) => return object["spec"]["mtls"]["enabled"].as_bool().unwrap_or(true),
            Ok(Err(error)) if error.is_not_found() => {
                tracing::debug!(target: LOG, "mTLS is on: there is no Configuration {name} in {namespace}");
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", READ_TIMEOUT.as_secs()),
        };
        tracing::warn!(
            target: LOG,
            "cannot read the Configuration {name} in {namespace}: {cause}; sidecars of new pods have mTLS {} until \
             then",
            if last { "on" } else { "off" }
        );
        last
    }
}

#[cfg(test)]
mod tests {
    use futures::future::{join, join_all};
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
    async fn concurrent_pods_share_api_call() {
        let server = Server::start().await;
        says(&server, false);
        let mtls = Mtls::new(server.client(), "system", "mine");
        let answers = join_all((0..100).map(|_| mtls.is_on())).await;
        assert!(answers.iter().all(|on| !on));
        // On a slow machine the first 100 may take longer than the cache lifetime.
        let calls = server.requests("GET", ADDRESS).len();
        assert!((1..10).contains(&calls), "{calls} calls");
    }

    #[tokio::test]
    async fn applies_changes_and_defaults_to_on() {
        let server = Server::start().await;
        let mtls = Mtls::new(server.client(), "system", "mine");
        assert!(mtls.is_on().await, "there is none");
        says(&server, false);
        let changed = async {
            while mtls.is_on().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(CACHE_TTL * 10, changed).await.unwrap();
        server.delete(ADDRESS);
        let on = async {
            while !mtls.is_on().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(CACHE_TTL * 10, on).await.unwrap();
    }

    /// Lets the cache expire.
    async fn later() {
        tokio::time::pause();
        tokio::time::advance(CACHE_TTL).await;
        tokio::time::resume();
    }

    #[tokio::test]
    async fn keeps_last_setting_on_failure() {
        let server = Server::start().await;
        says(&server, false);
        let told = Mtls::new(server.client(), "system", "mine");
        let untold = Mtls::new(server.client(), "system", "mine");
        assert!(!told.is_on().await);
        later().await;
        server.down(true);
        assert!(!told.is_on().await && untold.is_on().await, "refused");
        later().await;
        server.silent(true);
        for (mtls, last) in [(&told, false), (&untold, true)] {
            let calls = server.requests("GET", ADDRESS).len();
            let begun = Instant::now();
            // Time advances only while all tasks wait.
            let waits = async {
                server.asked("GET", ADDRESS, calls + 1).await;
                tokio::time::pause();
            };
            let (on, ()) = join(mtls.is_on(), waits).await;
            tokio::time::resume();
            assert_eq!(on, last);
            let waited = begun.elapsed();
            assert!(
                waited < Duration::from_secs(10),
                "the API server gave up: {waited:?}"
            );
        }
    }
}
