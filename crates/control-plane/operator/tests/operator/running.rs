//! An operator under test, and a sidecar's side of its contract.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outrigger_flags::{Flag, Parsed, Values, parse};
use outrigger_identity::{
    AnchorsSource, CaConfig, Expect, Identity, Mode, SecurityConfig, TrustAnchors, TrustBundle,
};
use outrigger_kube::testing::Server;
use outrigger_operator::{Addresses, Config, Operator};
use outrigger_sentry::Sentry;
use outrigger_wire::operator::v1::operator_client::OperatorClient;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;

/// Deadline for expected events.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
const TRUST_DOMAIN: &str = "cp.example";
pub(crate) const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/subscriptions.dapr.io";

/// A running operator with its environment; all of it stops when dropped.
pub(crate) struct Running {
    pub(crate) api: Server,
    pub(crate) addresses: Addresses,
    pub(crate) anchors: String,
    sentry: String,
    _folder: TempDir,
    _stop: DropGuard,
}

fn flags(table: &'static [Flag], args: &[String]) -> Values {
    let Ok(Parsed::Run(flags)) = parse(table, args.iter().cloned()) else {
        panic!("{args:?}");
    };
    flags
}

async fn start_sentry(folder: &Path, stop: CancellationToken) -> String {
    let configuration = folder.join("config.yaml");
    std::fs::write(&configuration, "").unwrap();
    let args = [
        format!("--config={}", configuration.display()),
        format!("--issuer-credentials={}", folder.display()),
        format!("--trust-domain={TRUST_DOMAIN}"),
        "--listen-address=127.0.0.1".to_owned(),
        "--port=0".to_owned(),
        "--healthz-port=0".to_owned(),
        "--enable-metrics=false".to_owned(),
    ];
    let namespace = |name: &str| (name == "NAMESPACE").then(|| "dapr-system".to_owned());
    let flags = flags(outrigger_sentry::config::FLAGS, &args);
    let config = outrigger_sentry::Config::from_flags(&flags, namespace).unwrap();
    let sentry = Sentry::build(config, |_| None, stop).await.unwrap();
    let address = sentry.addresses().grpc.to_string();
    tokio::spawn(async move { sentry.run().await.unwrap() });
    address
}

pub(crate) async fn start(more: &[&str]) -> Running {
    start_on(Server::start().await, more).await
}

/// Like [`start`], in a cluster that may have objects.
pub(crate) async fn start_on(api: Server, more: &[&str]) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let stop = CancellationToken::new();
    let sentry = start_sentry(folder.path(), stop.clone()).await;
    let anchors = folder.path().join("ca.crt");
    let mtls = json!({"controlPlaneTrustDomain": TRUST_DOMAIN, "sentryAddress": sentry});
    api.put(
        "/apis/dapr.io/v1alpha1/namespaces/dapr-system/configurations/daprsystem",
        json!({"metadata": {"name": "daprsystem", "namespace": "dapr-system"}, "spec": {"mtls": mtls}}),
    );
    api.put(
        DEFINITION,
        json!({"metadata": {"name": "subscriptions.dapr.io"}, "spec": {"conversion": {"webhook": {"clientConfig": {
            "service": {"name": "dapr-webhook", "namespace": "replaceme"}}}}}}),
    );
    let mut args = vec![format!("--trust-anchors-file={}", anchors.display())];
    for flag in ["port", "healthz-port", "metrics-port", "webhook-server-port"] {
        args.push(format!("--{flag}=0"));
    }
    for flag in [
        "listen-address",
        "healthz-listen-address",
        "metrics-listen-address",
        "webhook-server-listen-address",
    ] {
        args.push(format!("--{flag}=127.0.0.1"));
    }
    args.extend(more.iter().map(|&arg| arg.to_owned()));
    let namespace = |name: &str| (name == "NAMESPACE").then(|| "dapr-system".to_owned());
    let flags = flags(outrigger_operator::config::FLAGS, &args);
    let config = Config::from_flags(&flags, namespace).unwrap();
    let operator = Operator::with_client(api.client(), config, environment, stop.clone());
    let operator = operator.await.unwrap();
    let addresses = operator.addresses();
    tokio::spawn(async move { operator.run().await.unwrap() });
    let running = Running {
        api,
        addresses,
        anchors: std::fs::read_to_string(anchors).unwrap(),
        sentry,
        _folder: folder,
        _stop: stop.drop_guard(),
    };
    running.until_healthy().await;
    running
}

/// Tests may run as root.
fn environment(name: &str) -> Option<String> {
    (name == "DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK").then(|| "true".to_owned())
}

impl Running {
    async fn until_healthy(&self) {
        let healthy = async {
            while !http(self.addresses.healthz, "/healthz")
                .await
                .starts_with("HTTP/1.1 200")
            {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TIMEOUT, healthy).await.unwrap();
    }

    pub(crate) fn anchors(&self) -> TrustAnchors {
        TrustAnchors::new(TrustBundle::from_pem(self.anchors.as_bytes()).unwrap())
    }

    /// The identity of an app.
    pub(crate) async fn identity(&self, namespace: &str, app_id: &str) -> Identity {
        let config = SecurityConfig {
            ca: CaConfig {
                sentry_address: self.sentry.clone(),
                control_plane_trust_domain: TRUST_DOMAIN.parse().unwrap(),
                control_plane_namespace: "dapr-system".to_owned(),
                app_id: app_id.to_owned(),
                namespace: Some(namespace.to_owned()),
                jwt_audiences: Vec::new(),
                mode: Mode::Standalone,
                token_file: None,
                env: Arc::new(|_| None),
            },
            anchors: AnchorsSource::Pem(self.anchors.clone()),
            directory: None,
            events: Arc::new(|_| {}),
        };
        outrigger_identity::start(config, &CancellationToken::new())
            .await
            .unwrap()
            .0
    }

    /// The client of an app's sidecar.
    pub(crate) async fn sidecar(&self, namespace: &str, app_id: &str) -> OperatorClient<Channel> {
        let identity = self.identity(namespace, app_id).await;
        let operator = format!("spiffe://{TRUST_DOMAIN}/ns/dapr-system/dapr-operator");
        let expect = Expect::Exact(operator.parse().unwrap());
        let address = self.addresses.grpc.to_string();
        OperatorClient::new(outrigger_identity::channel(&address, &identity, expect).unwrap())
    }

    pub(crate) fn component(&self, name: &str, scopes: &[&str], items: Value) {
        let address = format!("/apis/dapr.io/v1alpha1/namespaces/shop/components/{name}");
        self.api.put(
            &address,
            json!({"apiVersion": "dapr.io/v1alpha1", "kind": "Component",
                "metadata": {"name": name, "namespace": "shop"}, "scopes": scopes,
                "spec": {"type": "state.redis", "version": "v1", "metadata": items}}),
        );
    }
}

/// The response to a GET as text.
pub(crate) async fn http(address: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let Ok(mut stream) = tokio::net::TcpStream::connect(address).await else {
        return String::new();
    };
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
