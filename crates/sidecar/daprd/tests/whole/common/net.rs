//! Sidecars that find each other through a private file, with or without a certificate authority.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outrigger_flags::{Parsed, parse};
use outrigger_identity::{AnchorsSource, CaConfig, Identity, Mode, SecurityConfig};
use outrigger_runtime::life::Shutdown;
use outrigger_sentry::{Config as SentryConfig, Sentry, config::FLAGS};
use outrigger_sidecar::config::{Command, Config};
use outrigger_sidecar::sidecar::{Env, Sidecar, SidecarError};
use outrigger_testing::ports::free_ports;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::node::Threads;
use super::{Node, Process, eventually, get, within};

/// Sidecars that know each other.
pub struct Net {
    dir: TempDir,
    ca: Option<Ca>,
    multicast: bool,
}

/// A certificate authority.
struct Ca {
    address: String,
    anchors: String,
    drain: CancellationToken,
    _credentials: TempDir,
}

impl Drop for Ca {
    fn drop(&mut self) {
        self.drain.cancel();
    }
}

impl Net {
    /// Sidecars with cleartext connections.
    pub fn plain() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            ca: None,
            multicast: false,
        }
    }

    /// Sidecars that use multicast DNS.
    pub fn multicast() -> Self {
        Self {
            multicast: true,
            ..Self::plain()
        }
    }

    /// Sidecars with identities.
    pub async fn secure() -> Self {
        Self::secure_with("").await
    }

    /// Like `secure`; `mtls` is the authority's `spec.mtls` as a YAML flow mapping.
    pub async fn secure_with(mtls: &str) -> Self {
        Self {
            ca: Some(Ca::start(mtls).await),
            ..Self::plain()
        }
    }

    /// Plans a sidecar.
    pub fn sidecar(&self, app_id: &str) -> Plan<'_> {
        Plan {
            net: self,
            app_id: app_id.to_owned(),
            flags: Vec::new(),
            env: HashMap::new(),
            spec: String::new(),
            resources: Vec::new(),
            configuration: None,
            ports: None,
        }
    }

    /// An identity from the authority, of a control plane process or any other.
    pub async fn identity(&self, app_id: &str) -> Identity {
        self.identity_in(None, app_id).await
    }

    /// Like `identity`, in a namespace; `None` means the default one.
    pub async fn identity_in(&self, namespace: Option<&str>, app_id: &str) -> Identity {
        let ca = self.ca.as_ref().expect("an authority");
        let request = SecurityConfig {
            ca: CaConfig {
                sentry_address: ca.address.clone(),
                control_plane_trust_domain: "localhost".parse().unwrap(),
                control_plane_namespace: "default".to_owned(),
                app_id: app_id.to_owned(),
                namespace: namespace.map(str::to_owned),
                jwt_audiences: Vec::new(),
                mode: Mode::Standalone,
                token_file: None,
                env: Arc::new(|_| None),
            },
            anchors: AnchorsSource::Pem(ca.anchors.clone()),
            directory: None,
            events: Arc::new(|_| {}),
        };
        let (identity, _renewal) = outrigger_identity::start(request, &CancellationToken::new())
            .await
            .unwrap();
        identity
    }

    /// The mTLS flags of a control plane process.
    pub fn of_control_plane(&self) -> [String; 3] {
        let ca = self.ca.as_ref().expect("an authority");
        let anchors = self.dir.path().join("ca.crt");
        std::fs::write(&anchors, &ca.anchors).unwrap();
        [
            "--tls-enabled=true".to_owned(),
            format!("--sentry-address={}", ca.address),
            format!("--trust-anchors-file={}", anchors.display()),
        ]
    }

    /// Stops the authority, so that it issues no certificates.
    pub fn without_authority(&self) {
        self.ca.as_ref().expect("an authority").drain.cancel();
    }

    /// Registers an app id at this port of another's sidecar. A sidecar must have started before.
    pub fn register(&self, id: &str, port: u16) {
        let names = rusqlite::Connection::open(self.registry()).unwrap();
        names.busy_timeout(Duration::from_secs(10)).unwrap();
        // The name is another spelling of the address that the sidecar registered; it does not expire.
        let sql = "INSERT INTO hosts (registration_id, address, app_id, namespace, last_update)
                   VALUES (?1, ?2, ?3, '', unixepoch() + 3600)";
        let address = format!("localhost:{port}");
        names
            .execute(sql, [&format!("test {id} {port}"), &address, id])
            .unwrap();
    }

    fn registry(&self) -> PathBuf {
        self.dir.path().join("names.db")
    }

    /// A sidecar `caller` without app, and a sidecar `callee` for the app on `port`.
    pub async fn pair(&self, port: u16) -> (Node, Node) {
        let callee = self.sidecar("callee").app(port).start().await;
        (self.sidecar("caller").start().await, callee)
    }
}

impl Ca {
    async fn start(mtls: &str) -> Self {
        let credentials = tempfile::tempdir().unwrap();
        let configuration = credentials.path().join("sentry.yaml");
        let text = match mtls {
            "" => String::new(),
            mtls => format!("apiVersion: dapr.io/v1alpha1\nkind: Configuration\nspec:\n  mtls: {mtls}\n"),
        };
        std::fs::write(&configuration, text).unwrap();
        let arguments = [
            "-port=0".to_owned(),
            "-listen-address=127.0.0.1".to_owned(),
            "-healthz-port=0".to_owned(),
            "-metrics-port=0".to_owned(),
            format!("-issuer-credentials={}", credentials.path().display()),
            format!("-config={}", configuration.display()),
        ];
        let Ok(Parsed::Run(flags)) = parse(FLAGS, arguments) else {
            panic!("the flags of sentry are not understood")
        };
        let config = SentryConfig::from_flags(&flags, |_| None).unwrap();
        let drain = CancellationToken::new();
        let sentry = Sentry::build(config, |_| None, drain.clone()).await.unwrap();
        let address = format!("127.0.0.1:{}", sentry.addresses().grpc.port());
        tokio::spawn(sentry.run());
        let anchors = std::fs::read_to_string(credentials.path().join("ca.crt")).unwrap();
        Self {
            address,
            anchors,
            drain,
            _credentials: credentials,
        }
    }
}

/// The ports of a sidecar.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub http: u16,
    pub grpc: u16,
    pub internal: u16,
    pub metrics: u16,
    pub public: u16,
}

impl Ports {
    /// Ports that are free now; they may be taken before they are bound.
    fn free() -> Self {
        let [http, grpc, internal, metrics, public] = free_ports();
        Self {
            http,
            grpc,
            internal,
            metrics,
            public,
        }
    }
}

/// The plan of a sidecar.
#[derive(Clone)]
pub struct Plan<'n> {
    net: &'n Net,
    app_id: String,
    flags: Vec<String>,
    env: HashMap<String, String>,
    spec: String,
    resources: Vec<String>,
    configuration: Option<String>,
    ports: Option<Ports>,
}

impl Plan<'_> {
    /// With an HTTP app on this port.
    pub fn app(self, port: u16) -> Self {
        self.flag(&format!("--app-port={port}"))
    }

    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Adds YAML lines to the `spec` of its Configuration, indented by two spaces.
    pub fn spec(mut self, lines: &str) -> Self {
        self.spec.push_str(lines.trim_end());
        self.spec.push('\n');
        self
    }

    /// Adds a resource file.
    pub fn resource(mut self, yaml: &str) -> Self {
        self.resources.push(yaml.to_owned());
        self
    }

    /// Uses the operator's Configuration of this name instead of a file.
    pub fn configuration(mut self, name: &str) -> Self {
        self.configuration = Some(name.to_owned());
        self
    }

    /// Uses the ports of a sidecar that has stopped.
    pub fn ports(mut self, ports: Ports) -> Self {
        self.ports = Some(ports);
        self
    }

    fn config(&self, ports: Ports, folder: &TempDir) -> (Config, Env) {
        let (arguments, env) = self.arguments(ports, folder);
        let lookup: Env = Arc::new(move |name| env.get(name).cloned());
        match Config::from_args(arguments, |name| lookup(name), |note| panic!("{note}")) {
            Ok(Command::Run(config)) => (*config, lookup),
            other => panic!("{other:?}"),
        }
    }

    /// The command line and environment, and the files that they name.
    fn arguments(&self, ports: Ports, folder: &TempDir) -> (Vec<String>, HashMap<String, String>) {
        let configuration = folder.path().join("config.yaml");
        let registry = self.net.registry();
        let resources = folder.path().join("resources");
        std::fs::create_dir(&resources).unwrap();
        for (index, yaml) in self.resources.iter().enumerate() {
            std::fs::write(resources.join(format!("{index}.yaml")), yaml).unwrap();
        }
        let resolution = if self.net.multicast {
            String::new()
        } else {
            format!(
                "  nameResolution:\n    component: sqlite\n    version: v1\n    configuration:\n      \
                 connectionString: {}\n",
                registry.display()
            )
        };
        let text = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: test\nspec:\n{resolution}{}",
            self.spec
        );
        std::fs::write(&configuration, text).unwrap();
        let mut arguments = vec![
            format!("--app-id={}", self.app_id),
            format!("--dapr-http-port={}", ports.http),
            format!("--dapr-grpc-port={}", ports.grpc),
            format!("--dapr-internal-grpc-port={}", ports.internal),
            format!("--metrics-port={}", ports.metrics),
            format!("--dapr-public-port={}", ports.public),
            "--dapr-public-listen-address=127.0.0.1".to_owned(),
            "--dapr-listen-addresses=127.0.0.1".to_owned(),
            "--dapr-internal-grpc-listen-address=127.0.0.1".to_owned(),
            "--metrics-listen-address=127.0.0.1".to_owned(),
            match &self.configuration {
                Some(name) => format!("--config={name}"),
                None => format!("--config={}", configuration.display()),
            },
            format!("--resources-path={}", resources.display()),
        ];
        let mut env = self.env.clone();
        if let Some(ca) = &self.net.ca {
            arguments.push("--enable-mtls".to_owned());
            arguments.push(format!("--sentry-address={}", ca.address));
            env.insert("DAPR_TRUST_ANCHORS".to_owned(), ca.anchors.clone());
        }
        env.insert("DAPR_UNSAFE_SKIP_CONTAINER_UID_GID_CHECK".into(), "true".into());
        arguments.extend(self.flags.iter().cloned());
        (arguments, env)
    }

    /// Starts it as a separate process, which can be killed, and waits until it is ready.
    pub async fn spawn(self) -> Process {
        let mut tries = 0;
        loop {
            let ports = self.ports.unwrap_or_else(Ports::free);
            let folder = tempfile::tempdir().unwrap();
            let (arguments, env) = self.arguments(ports, &folder);
            let log = std::fs::File::create(folder.path().join("log")).unwrap();
            let child = std::process::Command::new(env!("CARGO_BIN_EXE_daprd"))
                .args(arguments)
                .envs(env)
                .stdin(std::process::Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap();
            let mut process = Process { ports, child, folder };
            if process.is_ready().await {
                return process;
            }
            tries += 1;
            assert!(tries < 50, "the sidecar does not start: {}", process.log());
        }
    }

    /// Starts it on separate threads and waits until it is ready.
    pub async fn start(self) -> Node {
        let node = self.launch().await;
        let open = async || TcpStream::connect(("127.0.0.1", node.ports.http)).await.is_ok();
        eventually(open).await;
        eventually(async || node.ask(get("/v1.0/healthz")).await.status == 204).await;
        node
    }

    /// Starts it without waiting for its app.
    pub async fn launch(self) -> Node {
        match self.try_launch().await {
            Ok(node) => node,
            Err(error) => panic!("the sidecar does not start: {error}"),
        }
    }

    /// Starts it, if it can be built, and waits until its ports are open. Ports taken by other processes are
    /// replaced.
    pub async fn try_launch(self) -> Result<Node, SidecarError> {
        let mut tries = 0;
        loop {
            let error = match self.attempt().await {
                Ok(node) => return Ok(node),
                Err(error) => error,
            };
            if !matches!(error, SidecarError::Ports(_)) || tries > 50 {
                return Err(error);
            }
            tries += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn attempt(&self) -> Result<Node, SidecarError> {
        let ports = self.ports.unwrap_or_else(Ports::free);
        let folder = tempfile::tempdir().unwrap();
        let (config, env) = self.config(ports, &folder);
        let threads = Threads::start();
        let shutdown = Shutdown::default();
        let (control, asked) = (threads.control().handle().clone(), shutdown.clone());
        // All sidecars of the tests share this process.
        outrigger_accept::raise_descriptors();
        let built = threads
            .data()
            .spawn(async move { Sidecar::build(config, env, control, asked).await });
        let sidecar = within(built).await.unwrap()?;
        let task = threads.data().spawn(sidecar.run());
        let node = Node {
            ports,
            shutdown,
            task,
            threads,
            folder,
        };
        // The server for other sidecars opens last.
        let open = async || TcpStream::connect(("127.0.0.1", ports.internal)).await.is_ok();
        eventually(async || node.is_over() || open().await).await;
        if node.is_over() {
            node.ended().await?;
            panic!("the sidecar ended at once");
        }
        Ok(node)
    }
}
