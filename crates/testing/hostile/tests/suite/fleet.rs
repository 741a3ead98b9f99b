//! The servers under attack, each a process: sentry, placement and a scheduler with mTLS and in plaintext,
//! an operator, an injector, and sidecars with and without mTLS.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use outrigger_identity::{
    AnchorsSource, CaConfig, Expect, Identity, Mode, SecurityConfig, TrustAnchors, TrustBundle,
    anonymous_client_config, pem,
};
use outrigger_kube::testing::Server as KubernetesApi;
use outrigger_testing::ports::free_port;
use outrigger_wire::sentry::v1::SignCertificateRequest;
use prost::Message as _;
use rcgen::{CertificateParams, KeyPair};
use rustls::ClientConfig;
use serde_json::json;
use tempfile::TempDir;

use crate::app::{App, GrpcApp};
use crate::child::{Server, raise_file_limit};
use crate::honest;
use crate::listeners::{LISTENERS, Listener, Process, Security, TWINS};
use crate::peer::Target;

/// Startup timeout of a server.
const START: Duration = Duration::from_secs(60);
/// Attempts to find ports that stay free.
const TRIES: u32 = 10;

/// All servers. They are killed on drop.
pub struct Fleet {
    pub app: App,
    /// Behind the sidecar with mTLS, whose HTTP API is not attacked.
    grpc_app: GrpcApp,
    /// The API server for the operator and the injector.
    cluster: KubernetesApi,
    servers: Vec<(Process, Server)>,
    ports: HashMap<(Process, &'static str), u16>,
    mutual: Arc<ClientConfig>,
    anonymous: Arc<ClientConfig>,
    web: Arc<ClientConfig>,
    signing: Arc<[u8]>,
    folder: TempDir,
}

impl Fleet {
    pub async fn start() -> Self {
        raise_file_limit();
        for _ in 1..TRIES {
            if let Some(fleet) = Self::try_start().await {
                return fleet;
            }
        }
        Self::try_start()
            .await
            .expect("the servers do not start: see their logs")
    }

    async fn try_start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let app = App::start().await;
        let ports = free_ports();
        let web = web_certificate(&folder);
        let sentry = start_sentry(&folder, &ports);
        let credentials = folder.path().join("ca.crt");
        let anchors = wait_for_file(&credentials).await?;
        let mut fleet = Self {
            app,
            grpc_app: GrpcApp::start().await,
            cluster: cluster(&ports).await,
            servers: vec![(Process::Sentry, sentry)],
            mutual: Arc::clone(&web),
            anonymous: anonymous_client_config(
                TrustAnchors::new(TrustBundle::from_pem(anchors.as_bytes()).unwrap()),
                Expect::Any,
            ),
            web,
            signing: signing().into(),
            ports,
            folder,
        };
        if !fleet.is_up(Process::Sentry).await {
            return None;
        }
        let sentry = fleet.address(Process::Sentry, "port");
        fleet.mutual = identity(&sentry, &anchors).await.client_config(Expect::Any);
        let sidecars = [Process::Sidecar, Process::SecureSidecar, Process::SocketSidecar];
        for process in sidecars {
            let server = fleet.start_sidecar(process, &sentry, &anchors);
            fleet.servers.push((process, server));
        }
        let services = [
            Process::Placement,
            Process::Scheduler,
            Process::PlainPlacement,
            Process::PlainScheduler,
            Process::Operator,
            Process::Injector,
        ];
        for process in services {
            let server = match process {
                Process::Operator | Process::Injector => fleet.start_in_cluster(process, &sentry),
                _ => fleet.start_service(process, &sentry),
            };
            fleet.servers.push((process, server));
        }
        for process in sidecars.into_iter().chain(services) {
            if !fleet.is_up(process).await {
                return None;
            }
        }
        Some(fleet)
    }

    fn start_sidecar(&self, process: Process, sentry: &str, anchors: &str) -> Server {
        let folder = self.folder.path().join(format!("{process:?}"));
        std::fs::create_dir(&folder).unwrap();
        let configuration = folder.join("config.yaml");
        // A file-based resolver, so nothing is sent on the network.
        let text = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: hostile\nspec:\n  nameResolution:\n    \
             component: sqlite\n    version: v1\n    configuration:\n      connectionString: {}\n",
            folder.join("names.db").display()
        );
        std::fs::write(&configuration, text).unwrap();
        // A binding to the app.
        let binding = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: web\nspec:\n  type: bindings.http\n  \
             version: v1\n  metadata:\n  - name: url\n    value: http://127.0.0.1:{}/\n",
            self.app.port
        );
        let resources = folder.join("resources");
        std::fs::create_dir(&resources).unwrap();
        std::fs::write(resources.join("web.yaml"), binding).unwrap();
        let store = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: store\nspec:\n  type: \
                     state.in-memory\n  version: v1\n";
        std::fs::write(resources.join("store.yaml"), store).unwrap();
        let broker = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata:\n  name: broker\nspec:\n  type: \
                      pubsub.in-memory\n  version: v1\n";
        std::fs::write(resources.join("broker.yaml"), broker).unwrap();
        let mut arguments = vec![
            "--app-id=hostile".to_owned(),
            format!("--resources-path={}", resources.display()),
            format!("--config={}", configuration.display()),
            "--dapr-public-listen-address=127.0.0.1".to_owned(),
            "--dapr-listen-addresses=127.0.0.1".to_owned(),
            "--dapr-internal-grpc-listen-address=127.0.0.1".to_owned(),
            "--metrics-listen-address=127.0.0.1".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        arguments.extend(self.port_flags(process));
        let app = match process {
            Process::SecureSidecar => self.grpc_app.port,
            _ => self.app.port,
        };
        arguments.push(format!("--app-port={app}"));
        let mut env = Vec::new();
        match process {
            Process::SecureSidecar => {
                arguments.push("--app-protocol=grpc".to_owned());
                arguments.push("--enable-mtls".to_owned());
                arguments.push(format!("--sentry-address={sentry}"));
                env.push(("DAPR_TRUST_ANCHORS", anchors.to_owned()));
            }
            Process::SocketSidecar => {
                arguments.push(format!("--unix-domain-socket={}", self.folder.path().display()));
            }
            _ => arguments.push("--enable-profiling".to_owned()),
        }
        let binary = env!("CARGO_BIN_EXE_hostile-daprd");
        Server::start(binary, &arguments, &env, &folder.join("log"))
    }

    /// A service with an identity from sentry, unless it uses plaintext.
    fn start_service(&self, process: Process, sentry: &str) -> Server {
        let folder = self.folder.path().join(format!("{process:?}"));
        std::fs::create_dir(&folder).unwrap();
        let mut arguments = vec![
            "--listen-address=127.0.0.1".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        if matches!(process, Process::Placement | Process::Scheduler) {
            let anchors = self.folder.path().join("ca.crt");
            arguments.push("--tls-enabled".to_owned());
            arguments.push(format!("--sentry-address={sentry}"));
            arguments.push(format!("--trust-anchors-file={}", anchors.display()));
        }
        arguments.extend(self.port_flags(process));
        let binary = if matches!(process, Process::Scheduler | Process::PlainScheduler) {
            arguments.push("--etcd-client-listen-address=127.0.0.1".to_owned());
            arguments.push(format!("--etcd-data-dir={}", folder.join("jobs").display()));
            env!("CARGO_BIN_EXE_hostile-scheduler")
        } else {
            env!("CARGO_BIN_EXE_hostile-placement")
        };
        Server::start(binary, &arguments, &[], &folder.join("log"))
    }

    /// The operator or the injector, outside of a pod.
    fn start_in_cluster(&self, process: Process, sentry: &str) -> Server {
        let folder = self.folder.path().join(format!("{process:?}"));
        std::fs::create_dir(&folder).unwrap();
        let kubeconfig = folder.join("kubeconfig");
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", self.cluster.address())}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let anchors = self.folder.path().join("ca.crt").display().to_string();
        let mut arguments = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            "--listen-address=127.0.0.1".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        arguments.extend(self.port_flags(process));
        let mut env = vec![
            ("NAMESPACE", "default".to_owned()),
            // Tests may run as root.
            ("DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK", "true".to_owned()),
        ];
        let binary = if process == Process::Operator {
            arguments.push(format!("--trust-anchors-file={anchors}"));
            arguments.push("--webhook-server-listen-address=127.0.0.1".to_owned());
            env!("CARGO_BIN_EXE_hostile-operator")
        } else {
            env.extend([
                ("SIDECAR_IMAGE", "daprd".to_owned()),
                ("DAPR_TRUST_ANCHORS_FILE", anchors),
                ("DAPR_CONTROL_PLANE_TRUST_DOMAIN", "localhost".to_owned()),
                ("DAPR_SENTRY_ADDRESS", sentry.to_owned()),
            ]);
            env!("CARGO_BIN_EXE_hostile-injector")
        };
        Server::start(binary, &arguments, &env, &folder.join("log"))
    }

    fn port_flags(&self, process: Process) -> impl Iterator<Item = String> {
        let ports = self.ports.iter().filter(move |((whose, _), _)| *whose == process);
        ports.map(|((_, flag), port)| match *flag {
            "initial-cluster" => format!("--initial-cluster=dapr-placement-0=127.0.0.1:{port}"),
            flag => format!("--{flag}={port}"),
        })
    }

    fn address(&self, process: Process, flag: &'static str) -> String {
        format!("127.0.0.1:{}", self.ports[&(process, flag)])
    }

    pub fn port(&self, listener: &Listener) -> u16 {
        self.port_of(listener.process, listener.flag)
    }

    /// The port set by a flag of a process.
    pub fn port_of(&self, process: Process, flag: &'static str) -> u16 {
        self.ports[&(process, flag)]
    }

    pub fn server(&self, process: Process) -> &Server {
        let server = self.servers.iter().find(|(whose, _)| *whose == process);
        &server.expect("all are started").1
    }

    /// The target of attacks on a listener.
    pub fn target(&self, listener: &'static Listener) -> Target {
        Target {
            listener,
            address: ([127, 0, 0, 1], self.port(listener)).into(),
            socket: listener
                .socket
                .map(|api| self.folder.path().join(format!("dapr-hostile-{api}.socket"))),
            process: self.server(listener.process).id(),
            source: Ipv4Addr::LOCALHOST,
            tls: match listener.security {
                Security::Clear => None,
                Security::Mutual => Some(Arc::clone(&self.mutual)),
                Security::Anonymous => Some(Arc::clone(&self.anonymous)),
                Security::Web => Some(Arc::clone(&self.web)),
                Security::Webhook => {
                    let mut config = ClientConfig::clone(&self.anonymous);
                    config.alpn_protocols.clear();
                    Some(Arc::new(config))
                }
            },
            signing: Arc::clone(&self.signing),
        }
    }

    /// Waits until every listener of a process responds.
    async fn is_up(&mut self, process: Process) -> bool {
        for listener in LISTENERS.iter().filter(|listener| listener.process == process) {
            let target = self.target(listener);
            let started = std::time::Instant::now();
            while !honest::is_up(&target, Duration::from_secs(1)).await {
                let server = self.servers.iter_mut().find(|(whose, _)| *whose == process);
                let over = server.is_none_or(|(_, server)| server.is_over());
                if over || started.elapsed() > START {
                    self.print_logs();
                    return false;
                }
            }
        }
        true
    }

    /// Prints the logs of the servers, to diagnose a failed test.
    pub fn print_logs(&self) {
        let sidecars = ["Sidecar", "SecureSidecar", "SocketSidecar"];
        let services = ["sentry", "Placement", "Scheduler", "Operator", "Injector"];
        let plain = ["PlainPlacement", "PlainScheduler"];
        for name in services.into_iter().chain(plain).chain(sidecars) {
            let log = std::fs::read_to_string(self.folder.path().join(name).join("log"));
            println!("--- {name}\n{}", log.unwrap_or_default());
        }
    }
}

/// The cluster's objects that the operator and the injector require.
async fn cluster(ports: &HashMap<(Process, &'static str), u16>) -> KubernetesApi {
    let api = KubernetesApi::start().await;
    let sentry = format!("127.0.0.1:{}", ports[&(Process::Sentry, "port")]);
    api.put(
        "/apis/dapr.io/v1alpha1/namespaces/default/configurations/daprsystem",
        json!({"metadata": {"name": "daprsystem", "namespace": "default"},
            "spec": {"mtls": {"controlPlaneTrustDomain": "localhost", "sentryAddress": sentry}}}),
    );
    api.put(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/subscriptions.dapr.io",
        json!({"metadata": {"name": "subscriptions.dapr.io"}, "spec": {"conversion": {"webhook": {"clientConfig": {
            "service": {"name": "dapr-webhook", "namespace": "replaceme"}}}}}}),
    );
    api.put(
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/dapr-sidecar-injector",
        json!({"metadata": {"name": "dapr-sidecar-injector"}, "webhooks": [{"clientConfig": {"service": {}}}]}),
    );
    api
}

/// A free port for each port flag of each process.
fn free_ports() -> HashMap<(Process, &'static str), u16> {
    let attacked = LISTENERS.iter().map(|listener| (listener.process, listener.flag));
    let twins = TWINS.iter().map(|twin| (twin.process, twin.flag));
    attacked.chain(twins).map(|flag| (flag, free_port())).collect()
}

fn start_sentry(folder: &TempDir, ports: &HashMap<(Process, &'static str), u16>) -> Server {
    let own = folder.path().join("sentry");
    std::fs::create_dir(&own).unwrap();
    let configuration = own.join("config.yaml");
    std::fs::write(&configuration, "").unwrap();
    let mut arguments = vec![
        "--listen-address=127.0.0.1".to_owned(),
        "--jwt-enabled".to_owned(),
        "--oidc-enabled".to_owned(),
        "--log-level=warn".to_owned(),
        format!("--config={}", configuration.display()),
        format!("--issuer-credentials={}", folder.path().display()),
        format!(
            "--oidc-server-tls-cert-file={}",
            folder.path().join("web.crt").display()
        ),
        format!(
            "--oidc-server-tls-key-file={}",
            folder.path().join("web.key").display()
        ),
    ];
    let flags = ports
        .iter()
        .filter(|((process, _), _)| *process == Process::Sentry);
    arguments.extend(flags.map(|((_, flag), port)| format!("--{flag}={port}")));
    Server::start(
        env!("CARGO_BIN_EXE_hostile-sentry"),
        &arguments,
        &[],
        &own.join("log"),
    )
}

async fn wait_for_file(path: &std::path::Path) -> Option<String> {
    let started = std::time::Instant::now();
    while started.elapsed() < START {
        match std::fs::read_to_string(path) {
            Ok(text) if text.contains("-----END") => return Some(text),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
    None
}

/// A certificate for the OIDC server, and a client configuration that trusts it.
fn web_certificate(folder: &TempDir) -> Arc<ClientConfig> {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    std::fs::write(folder.path().join("web.key"), key.serialize_pem()).unwrap();
    std::fs::write(folder.path().join("web.crt"), certificate.pem()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// The identity of an attacker with a valid certificate.
async fn identity(sentry: &str, anchors: &str) -> Identity {
    let request = SecurityConfig {
        ca: CaConfig {
            sentry_address: sentry.to_owned(),
            control_plane_trust_domain: "localhost".parse().unwrap(),
            control_plane_namespace: "default".to_owned(),
            app_id: "attacker".to_owned(),
            namespace: None,
            jwt_audiences: Vec::new(),
            mode: Mode::Standalone,
            token_file: None,
            env: Arc::new(|_| None),
        },
        anchors: AnchorsSource::Pem(anchors.to_owned()),
        directory: None,
        events: Arc::new(|_| {}),
    };
    let (identity, _renewal) = outrigger_identity::start(request, &Default::default())
        .await
        .unwrap();
    identity
}

/// A certificate request.
fn signing() -> Vec<u8> {
    let key = KeyPair::generate().unwrap();
    let request = CertificateParams::default().serialize_request(&key).unwrap();
    SignCertificateRequest {
        id: "honest".to_owned(),
        namespace: "default".to_owned(),
        certificate_signing_request: pem::encode("CERTIFICATE REQUEST", request.der())
            .into_bytes()
            .into(),
        ..SignCertificateRequest::default()
    }
    .encode_to_vec()
}
