//! A simulated cluster: API server, sentry, and a connection to the API that can be cut.

use std::sync::Arc;

use outrigger_flags::{Parsed, parse};
use outrigger_identity::{AnchorsSource, CaConfig, Expect, Identity, Mode, SecurityConfig};
use outrigger_kube::testing::Server;
use outrigger_sentry::Sentry;
use outrigger_wire::placement::v1::placement_client::PlacementClient;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;

use crate::running::{Running, start_with};

pub(crate) const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/dapr-system/leases/placement.dapr.io";
const TRUST_DOMAIN: &str = "cp.example";

/// The environment of a pod. Tests may run as root.
pub(crate) fn environment(name: &str) -> Option<String> {
    let value = match name {
        "NAMESPACE" => "dapr-system",
        "DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK" => "true",
        _ => return None,
    };
    Some(value.to_owned())
}

/// A cluster; dropping it stops it.
pub(crate) struct Cluster {
    pub(crate) api: Server,
    folder: TempDir,
    sentry: String,
    _stop: DropGuard,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let (folder, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let configuration = folder.path().join("config.yaml");
        std::fs::write(&configuration, "").unwrap();
        let args = [
            format!("--config={}", configuration.display()),
            format!("--issuer-credentials={}", folder.path().display()),
            format!("--trust-domain={TRUST_DOMAIN}"),
            "--listen-address=127.0.0.1".to_owned(),
            "--port=0".to_owned(),
            "--healthz-port=0".to_owned(),
            "--enable-metrics=false".to_owned(),
        ];
        let Ok(Parsed::Run(flags)) = parse(outrigger_sentry::config::FLAGS, args) else {
            panic!("the flags are not understood");
        };
        let config = outrigger_sentry::Config::from_flags(&flags, environment).unwrap();
        let sentry = Sentry::build(config, |_| None, stop.clone()).await.unwrap();
        let address = sentry.addresses().grpc.to_string();
        tokio::spawn(async move { sentry.run().await.unwrap() });
        Self {
            api: Server::start().await,
            folder,
            sentry: address,
            _stop: stop.drop_guard(),
        }
    }

    /// Arguments of a replica that reaches the API at this address.
    pub(crate) fn arguments(&self, id: &str, api: std::net::SocketAddr) -> Vec<String> {
        let kubeconfig = self.folder.path().join(format!("kubeconfig-{id}"));
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{api}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let anchors = self.folder.path().join("ca.crt");
        let mut args: Vec<String> = [
            "--port=0",
            "--healthz-port=0",
            "--metrics-port=0",
            "--listen-address=127.0.0.1",
            "--metadata-enabled",
            "--mode=kubernetes",
            "--leader-election=lease",
        ]
        .map(str::to_owned)
        .into();
        args.extend([
            format!("--id={id}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--trust-domain={TRUST_DOMAIN}"),
            format!("--trust-anchors-file={}", anchors.display()),
            format!("--sentry-address={}", self.sentry),
        ]);
        args
    }

    /// Starts a replica in this process.
    pub(crate) async fn replica(&self, id: &str, api: std::net::SocketAddr) -> Running {
        start_with(self.arguments(id, api), environment).await
    }

    /// A client for the app's sidecar in namespace `ns`.
    pub(crate) async fn sidecar(&self, replica: &Running) -> PlacementClient<Channel> {
        let placement = format!("spiffe://{TRUST_DOMAIN}/ns/dapr-system/dapr-placement");
        let expect = Expect::Exact(placement.parse().unwrap());
        let address = replica.addresses.grpc.to_string();
        let identity = self.identity("ns", "app").await;
        PlacementClient::new(outrigger_identity::channel(&address, &identity, expect).unwrap())
    }

    async fn identity(&self, namespace: &str, app_id: &str) -> Identity {
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
            anchors: AnchorsSource::File(self.folder.path().join("ca.crt")),
            directory: None,
            events: Arc::new(|_| {}),
        };
        let never = CancellationToken::new();
        outrigger_identity::start(config, &never).await.unwrap().0
    }

    /// The content of the lease.
    pub(crate) fn lease(&self) -> Value {
        self.api
            .object(LEASE)
            .map_or(Value::Null, |lease| lease["spec"].clone())
    }
}

/// A proxy to the API; when cut, it is silent.
pub(crate) struct Way {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) cut: watch::Sender<bool>,
}

impl Way {
    pub(crate) async fn to(api: std::net::SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = watch::Sender::new(false);
        let seen = cut.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut seen = seen.clone();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(api).await else {
                        return;
                    };
                    tokio::select! {
                        biased;
                        _ = seen.wait_for(|cut| *cut) => {}
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
                    }
                    // Forwards nothing, without closing the connection.
                    std::future::pending::<()>().await;
                });
            }
        });
        Self { address, cut }
    }
}
