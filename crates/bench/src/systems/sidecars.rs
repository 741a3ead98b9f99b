//! Two sidecars and their CA, of one build: mTLS, metrics, tracing of one call in ten, and a policy that lets the
//! caller in by its certificate.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::attempt;
use crate::Failure;
use crate::load::Call;
use crate::plan::{Protocol, Resolver};
use crate::process::{Process, free_ports};
use crate::procfs::Role;

const LOOPBACK: &str = "127.0.0.1";

/// A running sidecar.
pub(crate) struct Sidecar {
    pub(super) process: Process,
    pub(super) http: u16,
    pub(super) grpc: u16,
}

/// A caller, a callee in front of the app, and the CA that both trust.
pub(crate) struct Sidecars {
    launch: Launch,
    protocol: Protocol,
    caller: Sidecar,
    callee: Sidecar,
    callee_id: String,
    caller_id: String,
    sentry: Process,
}

impl Sidecars {
    pub(crate) async fn start(
        binaries: &Path,
        protocol: Protocol,
        app: u16,
        resolver: Resolver,
        dir: &Path,
    ) -> Result<Self, Failure> {
        for name in ["daprd", "sentry"] {
            let program = binaries.join(name);
            if !program.is_file() {
                return Err(format!("{} does not exist", program.display()).into());
            }
        }
        // Peers are found by multicast: the suffix keeps runs on one network apart.
        let suffix: u32 = rand::random();
        let (caller_id, callee_id) = (format!("caller-{suffix:08x}"), format!("callee-{suffix:08x}"));
        let (sentry, sentry_port, anchors) = sentry(&binaries.join("sentry"), dir).await?;
        let mut launch = Launch {
            program: binaries.join("daprd"),
            dir: dir.to_owned(),
            sentry_port,
            anchors,
            resolver,
            caller_id: caller_id.clone(),
            started: 0,
        };
        let mut callee = launch.prepare(&callee_id, Some((app, protocol))).await?.start()?;
        let health = Call::get(callee.http, "/v1.0/healthz")?;
        callee.process.ready(|| attempt(&health)).await?;
        let mut caller = launch.prepare(&caller_id, None).await?.start()?;
        caller.process.listening(caller.http).await?;
        Ok(Self {
            launch,
            protocol,
            caller,
            callee,
            callee_id,
            caller_id,
            sentry,
        })
    }

    /// One more caller, ready to start.
    pub(super) async fn prepare_caller(&mut self) -> Result<Prepared, Failure> {
        self.launch.prepare(&self.caller_id, None).await
    }

    pub(super) fn caller(&mut self) -> &mut Sidecar {
        &mut self.caller
    }

    pub(crate) fn callee_id(&self) -> &str {
        &self.callee_id
    }

    /// Where calls of the protocol go.
    pub(super) fn port(&self) -> u16 {
        match self.protocol {
            Protocol::Http => self.caller.http,
            Protocol::Grpc | Protocol::Proxy => self.caller.grpc,
        }
    }

    pub(crate) fn processes(&self) -> Vec<(Role, u32)> {
        vec![
            (Role::Caller, self.caller.process.pid()),
            (Role::Callee, self.callee.process.pid()),
        ]
    }

    pub(crate) async fn stop(self) -> Result<(), Failure> {
        self.caller.process.stop().await?;
        self.callee.process.stop().await?;
        self.sentry.stop().await
    }
}

/// A fresh CA; returns it with its port and its trust anchors.
async fn sentry(program: &Path, dir: &Path) -> Result<(Process, u16, String), Failure> {
    let credentials = dir.join("credentials");
    std::fs::create_dir(&credentials)?;
    let config = dir.join("sentry.yaml");
    std::fs::write(
        &config,
        "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: sentry\nspec: {}\n",
    )?;
    let [port, healthz, metrics] = free_ports().await?;
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
    let health = Call::get(healthz, "/healthz")?;
    process.ready(|| attempt(&health)).await?;
    let anchors = std::fs::read_to_string(credentials.join("ca.crt"))?;
    Ok((process, port, anchors))
}

/// What all sidecars of a build are started with.
struct Launch {
    program: PathBuf,
    dir: PathBuf,
    sentry_port: u16,
    anchors: String,
    resolver: Resolver,
    caller_id: String,
    started: usize,
}

/// A sidecar whose files are written and whose command line is complete.
pub(super) struct Prepared {
    name: String,
    command: Command,
    dir: PathBuf,
    http: u16,
    grpc: u16,
}

impl Prepared {
    pub(super) fn start(self) -> Result<Sidecar, Failure> {
        let process = Process::start(&self.name, self.command, &self.dir)?;
        Ok(Sidecar {
            process,
            http: self.http,
            grpc: self.grpc,
        })
    }
}

impl Launch {
    async fn prepare(&mut self, app_id: &str, app: Option<(u16, Protocol)>) -> Result<Prepared, Failure> {
        self.started += 1;
        let name = format!("daprd-{}-{app_id}", self.started);
        let config = self.dir.join("config.yaml");
        std::fs::write(&config, self.configuration())?;
        // Without one, components of the user who runs the benchmark would be loaded.
        let resources = self.dir.join("resources");
        std::fs::create_dir_all(&resources)?;
        let [http, grpc, internal, metrics] = free_ports().await?;
        let mut command = Command::new(&self.program);
        command
            .arg("--config")
            .arg(&config)
            .arg("--resources-path")
            .arg(&resources)
            .args([
                &format!("--app-id={app_id}"),
                &format!("--dapr-http-port={http}"),
                &format!("--dapr-grpc-port={grpc}"),
                &format!("--dapr-internal-grpc-port={internal}"),
                &format!("--dapr-listen-addresses={LOOPBACK}"),
                &format!("--dapr-internal-grpc-listen-address={LOOPBACK}"),
                &format!("--metrics-port={metrics}"),
                &format!("--metrics-listen-address={LOOPBACK}"),
                "--enable-profiling=false",
                "--enable-mtls",
                "--log-level=warn",
                &format!("--sentry-address=localhost:{}", self.sentry_port),
                "--control-plane-trust-domain=localhost",
                "--control-plane-namespace=default",
            ])
            .env("DAPR_TRUST_ANCHORS", &self.anchors)
            .env("DAPR_HOST_IP", LOOPBACK);
        if let Some((port, protocol)) = app {
            let spoken = if protocol == Protocol::Http {
                "http"
            } else {
                "grpc"
            };
            command.args([&format!("--app-port={port}"), &format!("--app-protocol={spoken}")]);
        }
        Ok(Prepared {
            name,
            command,
            dir: self.dir.clone(),
            http,
            grpc,
        })
    }

    /// One call in ten is traced, as by default; spans go nowhere, so that no collector takes part.
    fn configuration(&self) -> String {
        let resolver = match self.resolver {
            Resolver::Mdns => String::new(),
            Resolver::Sqlite => format!(
                "  nameResolution:\n    component: sqlite\n    version: v1\n    configuration:\n      connectionString: \"{}\"\n",
                self.dir.join("names.db").display()
            ),
        };
        format!(
            "apiVersion: dapr.io/v1alpha1
kind: Configuration
metadata:
  name: bench
spec:
  tracing:
    samplingRate: \"0.1\"
  metrics:
    enabled: true
{resolver}  accessControl:
    defaultAction: deny
    trustDomain: public
    policies:
      - appId: {}
        namespace: default
        trustDomain: public
        defaultAction: deny
        operations:
          - name: /echo
            httpVerb: ['POST']
            action: allow
          - name: /fgrpc.PingServer/Ping
            httpVerb: ['*']
            action: allow
          - name: echo
            httpVerb: ['POST']
            action: allow
",
            self.caller_id
        )
    }
}

/// What `daprd --version` says of a build.
pub(crate) fn version(binaries: &Path) -> Option<String> {
    let output = std::process::Command::new(binaries.join("daprd"))
        .arg("--version")
        .output()
        .ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
