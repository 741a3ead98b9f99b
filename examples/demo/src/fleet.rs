//! The CA, a scheduler, placement, two apps and their sidecars: start, ready, stop.

use std::fs::Permissions;
use std::mem::swap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tokio::process::Command;

use crate::Failure;
use crate::bindings;
use crate::events::{self, Broker};
use crate::process::{Process, free_ports};
use crate::stores;

const APP_PY: &str = include_str!("../app.py");
const LOOPBACK: &str = "127.0.0.1";

/// The programs of a fleet; the two sidecars may come from different builds.
pub(crate) struct Binaries {
    pub(crate) sentry: PathBuf,
    pub(crate) scheduler: PathBuf,
    pub(crate) placement: PathBuf,
    pub(crate) http_sidecar: PathBuf,
    pub(crate) grpc_sidecar: PathBuf,
}

/// Ports of a running sidecar.
pub(crate) struct Sidecar {
    pub(crate) app_id: String,
    /// Port of its app.
    pub(crate) app: u16,
    pub(crate) http: u16,
    pub(crate) grpc: u16,
    pub(crate) metrics: u16,
}

/// An app and its sidecar.
pub(crate) struct Host {
    pub(crate) sidecar: Sidecar,
    app: Process,
    daprd: Process,
}

pub(crate) struct Fleet {
    /// The HTTP app in Python.
    pub(crate) python: Sidecar,
    /// The gRPC app in Rust.
    pub(crate) rust: Sidecar,
    /// In start order.
    processes: Vec<Process>,
    /// Processes started later.
    python_app: Process,
    python_sidecar: Process,
    rust_sidecar: Process,
    rust_app: Process,
    launch: Launch,
    dir: TempDir,
}

impl Fleet {
    pub(crate) async fn start(binaries: &Binaries, broker: &Broker) -> Result<Self, Failure> {
        let Binaries {
            sentry,
            scheduler,
            placement,
            http_sidecar,
            grpc_sidecar,
        } = binaries;
        let programs = [sentry, scheduler, placement, http_sidecar, grpc_sidecar];
        for program in programs {
            if !program.is_file() {
                return Err(format!(
                    "{} does not exist; build it, or name a folder with --bin-dir",
                    program.display()
                )
                .into());
            }
        }
        let dir = tempfile::Builder::new().prefix("outrigger-demo-").tempdir()?;
        match Started::start_in(binaries, broker, dir.path()).await {
            Ok(Started {
                python,
                rust,
                processes,
                launch,
            }) => Ok(Self {
                python: python.sidecar,
                rust: rust.sidecar,
                processes,
                python_app: python.app,
                python_sidecar: python.daprd,
                rust_sidecar: rust.daprd,
                rust_app: rust.app,
                launch,
                dir,
            }),
            Err(failure) => {
                // The error message names a log in the folder.
                let _kept = dir.keep();
                Err(failure)
            }
        }
    }

    /// Folder of the fleet's files.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts a second instance of the HTTP app, with the same app id and another sidecar.
    pub(crate) async fn second_python(&self) -> Result<Host, Failure> {
        let (id, peer) = (&self.python.app_id, &self.rust.app_id);
        self.launch.python("2", id, peer).await
    }

    /// Kills the instance of the HTTP app on this port, and its sidecar (`kill -9`). The other instance becomes the fleet's.
    pub(crate) async fn kill_python(&mut self, mut other: Host, port: u16) -> Result<(), Failure> {
        if self.python.app == port {
            swap(&mut self.python, &mut other.sidecar);
            swap(&mut self.python_app, &mut other.app);
            swap(&mut self.python_sidecar, &mut other.daprd);
        }
        other.daprd.kill().await?;
        other.app.kill().await
    }

    /// Kills the sidecar of the gRPC app (`kill -9`), and starts it again.
    pub(crate) async fn kill_rust_sidecar(&mut self) -> Result<(), Failure> {
        self.rust_sidecar.kill_and_start().await?;
        self.rust_sidecar.healthy(&healthz(&self.rust)).await
    }

    /// Stops all processes in reverse order. Keeps the logs after a failure.
    pub(crate) async fn stop(self, forget: bool) -> Result<(), Failure> {
        // The app first: Dapr's sidecar waits for the end of the worker's stream.
        let mut result = self.rust_app.stop().await;
        result = result.and(self.rust_sidecar.stop().await);
        result = result.and(self.python_sidecar.stop().await);
        result = result.and(self.python_app.stop().await);
        for process in self.processes.into_iter().rev() {
            result = result.and(process.stop().await);
        }
        if !forget || result.is_err() {
            eprintln!("The logs of every process are in {}", self.dir.keep().display());
        }
        result
    }
}

/// A fleet without its folder.
struct Started {
    python: Host,
    rust: Host,
    processes: Vec<Process>,
    launch: Launch,
}

impl Started {
    async fn start_in(binaries: &Binaries, broker: &Broker, dir: &Path) -> Result<Self, Failure> {
        // Sidecars find each other by multicast: the suffix separates two demos on one network.
        let suffix: u16 = rand::random();
        let (python_id, rust_id) = (format!("python-{suffix:04x}"), format!("rust-{suffix:04x}"));
        let (ca, sentry_port, anchors) = sentry(&binaries.sentry, dir).await?;

        let (clock, scheduler_port) = scheduler(&binaries.scheduler, dir, sentry_port).await?;
        let (placed, placement_port) = placement(&binaries.placement, dir, sentry_port).await?;

        let resources = dir.join("resources");
        std::fs::create_dir(&resources)?;
        stores::write_resources(dir, &resources)?;
        bindings::write_resources(dir, &resources, &python_id)?;
        events::write_resources(dir, &resources, &python_id, broker)?;

        let launch = Launch {
            dir: dir.to_owned(),
            http_sidecar: binaries.http_sidecar.clone(),
            grpc_sidecar: binaries.grpc_sidecar.clone(),
            sentry_port,
            scheduler_port,
            placement_port,
            anchors,
        };
        let (python, rust) = tokio::try_join!(
            launch.python("1", &python_id, &rust_id),
            launch.rust(&rust_id, &python_id)
        )?;
        Ok(Self {
            python,
            rust,
            processes: vec![ca, clock, placed],
            launch,
        })
    }
}

fn healthz(sidecar: &Sidecar) -> String {
    format!("http://{LOOPBACK}:{}/v1.0/healthz", sidecar.http)
}

/// Starts a CA. Returns it with its port and trust anchors.
async fn sentry(program: &Path, dir: &Path) -> Result<(Process, u16, String), Failure> {
    let credentials = dir.join("credentials");
    std::fs::create_dir(&credentials)?;
    let config = dir.join("sentry.yaml");
    std::fs::write(
        &config,
        "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: sentry\nspec: {}\n",
    )?;
    let [port, healthz, metrics] = free_ports().await;
    let mut command = Command::new(program);
    command
        .arg("--config")
        .arg(&config)
        .arg("--issuer-credentials")
        .arg(&credentials)
        .args([
            "--trust-domain=localhost",
            &format!("--port={port}"),
            &format!("--listen-address={LOOPBACK}"),
            &format!("--healthz-port={healthz}"),
            &format!("--metrics-port={metrics}"),
        ]);
    let mut process = Process::start("sentry", command, dir)?;
    process
        .healthy(&format!("http://{LOOPBACK}:{healthz}/healthz"))
        .await?;
    let anchors = std::fs::read_to_string(credentials.join("ca.crt"))?;
    Ok((process, port, anchors))
}

/// Starts a scheduler with an identity of the CA. Returns it with its port.
async fn scheduler(program: &Path, dir: &Path, sentry_port: u16) -> Result<(Process, u16), Failure> {
    let [port, healthz, metrics, client, members] = free_ports().await;
    let jobs = dir.join("jobs");
    std::fs::create_dir(&jobs)?;
    // The etcd embedded in Dapr's scheduler rejects a folder that others can read.
    std::fs::set_permissions(&jobs, Permissions::from_mode(0o700))?;
    let mut command = Command::new(program);
    command
        .arg("--trust-anchors-file")
        .arg(dir.join("credentials").join("ca.crt"))
        .arg("--identity-directory-write")
        .arg(dir.join("identity"))
        .arg("--etcd-data-dir")
        .arg(jobs)
        .args([
            "--tls-enabled",
            "--trust-domain=localhost",
            &format!("--sentry-address=localhost:{sentry_port}"),
            &format!("--port={port}"),
            &format!("--listen-address={LOOPBACK}"),
            &format!("--healthz-port={healthz}"),
            &format!("--metrics-port={metrics}"),
            &format!("--etcd-client-port={client}"),
            &format!("--etcd-initial-cluster=dapr-scheduler-server-0=https://{LOOPBACK}:{members}"),
            &format!("--override-broadcast-host-port={LOOPBACK}:{port}"),
        ]);
    let mut process = Process::start("scheduler", command, dir)?;
    process
        .healthy(&format!("http://{LOOPBACK}:{healthz}/healthz"))
        .await?;
    Ok((process, port))
}

/// Starts a placement service with an identity of the CA. Returns it with its port.
async fn placement(program: &Path, dir: &Path, sentry_port: u16) -> Result<(Process, u16), Failure> {
    let [port, healthz, metrics, replicas] = free_ports().await;
    let mut command = Command::new(program);
    command
        .arg("--trust-anchors-file")
        .arg(dir.join("credentials").join("ca.crt"))
        .args([
            "--tls-enabled",
            "--trust-domain=localhost",
            &format!("--sentry-address=localhost:{sentry_port}"),
            &format!("--port={port}"),
            &format!("--listen-address={LOOPBACK}"),
            &format!("--healthz-port={healthz}"),
            &format!("--metrics-port={metrics}"),
            &format!("--initial-cluster=dapr-placement-0={LOOPBACK}:{replicas}"),
        ]);
    let mut process = Process::start("placement", command, dir)?;
    process
        .healthy(&format!("http://{LOOPBACK}:{healthz}/healthz"))
        .await?;
    Ok((process, port))
}

/// Settings of the sidecars.
struct Launch {
    dir: PathBuf,
    http_sidecar: PathBuf,
    grpc_sidecar: PathBuf,
    sentry_port: u16,
    scheduler_port: u16,
    placement_port: u16,
    anchors: String,
}

struct App<'a> {
    /// Name of its sidecar in file names.
    name: &'a str,
    id: &'a str,
    port: u16,
    /// The ports of its sidecar's APIs.
    http: u16,
    grpc: u16,
    protocol: &'a str,
    /// The only app that may call this one.
    peer: &'a str,
}

impl Launch {
    /// Starts the HTTP app and its sidecar; `number` distinguishes instances.
    async fn python(&self, number: &str, id: &str, peer: &str) -> Result<Host, Failure> {
        let [port, http, grpc] = free_ports().await;
        let script = self.dir.join("app.py");
        std::fs::write(&script, APP_PY)?;
        let python = std::env::var("DEMO_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let mut command = Command::new(&python);
        command.arg(script).args([port.to_string(), http.to_string()]);
        let app = Process::start(&format!("app-python-{number}"), command, &self.dir);
        let app = app.map_err(|error| {
            format!("{error}\nThe HTTP app needs Python 3: install it, or name it in DEMO_PYTHON")
        })?;
        let told = App {
            name: &format!("{id}-{number}"),
            id,
            port,
            http,
            grpc,
            protocol: "http",
            peer,
        };
        self.host(app, &self.http_sidecar, &told).await
    }

    /// Starts the gRPC app and its sidecar.
    async fn rust(&self, id: &str, peer: &str) -> Result<Host, Failure> {
        let [port, http, grpc] = free_ports().await;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["app-grpc", &port.to_string(), &grpc.to_string()]);
        let app = Process::start("app-rust", command, &self.dir)?;
        let told = App {
            name: id,
            id,
            port,
            http,
            grpc,
            protocol: "grpc",
            peer,
        };
        self.host(app, &self.grpc_sidecar, &told).await
    }

    /// Waits for an app, and starts its sidecar.
    async fn host(&self, mut app: Process, program: &Path, told: &App<'_>) -> Result<Host, Failure> {
        app.listening(told.port).await?;
        let (sidecar, mut daprd) = self.sidecar(program, told).await?;
        daprd.healthy(&healthz(&sidecar)).await?;
        Ok(Host { sidecar, app, daprd })
    }

    async fn sidecar(&self, program: &Path, app: &App<'_>) -> Result<(Sidecar, Process), Failure> {
        let config = self.dir.join(format!("{}.yaml", app.name));
        std::fs::write(&config, access_control(app.peer))?;
        let [internal, metrics] = free_ports().await;
        let App { http, grpc, .. } = *app;
        let mut command = Command::new(program);
        let resources = self.dir.join("resources");
        command
            .arg("--config")
            .arg(&config)
            .arg("--resources-path")
            .arg(&resources)
            .args([
                &format!("--app-id={}", app.id),
                &format!("--app-port={}", app.port),
                &format!("--app-protocol={}", app.protocol),
                &format!("--dapr-http-port={http}"),
                &format!("--dapr-grpc-port={grpc}"),
                &format!("--dapr-internal-grpc-port={internal}"),
                &format!("--dapr-listen-addresses={LOOPBACK}"),
                &format!("--dapr-internal-grpc-listen-address={LOOPBACK}"),
                &format!("--metrics-port={metrics}"),
                &format!("--metrics-listen-address={LOOPBACK}"),
                "--enable-profiling=false",
                "--enable-mtls",
                &format!("--sentry-address=localhost:{}", self.sentry_port),
                &format!("--scheduler-host-address={LOOPBACK}:{}", self.scheduler_port),
                &format!("--placement-host-address={LOOPBACK}:{}", self.placement_port),
                "--control-plane-trust-domain=localhost",
                "--control-plane-namespace=default",
            ]);
        command
            .env("DAPR_TRUST_ANCHORS", &self.anchors)
            .env("DAPR_HOST_IP", LOOPBACK);
        let process = Process::start(&format!("daprd-{}", app.name), command, &self.dir)?;
        Ok((
            Sidecar {
                app_id: app.id.to_owned(),
                app: app.port,
                http,
                grpc,
                metrics,
            },
            process,
        ))
    }
}

/// Configuration of a sidecar: access control allows the peer alone, by the identity in its certificate, and denies it
/// `/private`. One secret is hidden from the app.
fn access_control(peer: &str) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1
kind: Configuration
metadata:
  name: demo
spec:
  secrets:
    scopes:
      - storeName: vault
        deniedSecrets: [{hidden}]
  accessControl:
    defaultAction: deny
    trustDomain: public
    policies:
      - appId: {peer}
        namespace: default
        trustDomain: public
        defaultAction: allow
        operations:
          - name: /private
            httpVerb: ['*']
            action: deny
",
        hidden = stores::HIDDEN
    )
}
