//! Launching of sidecars of a build.

use std::path::{Path, PathBuf};

use outrigger_testing::ports::free_ports;
use tokio::process::Command;

use crate::Failure;
use crate::plan::{Protocol, Resolver};
use crate::process::Process;

pub(super) const LOOPBACK: &str = "127.0.0.1";

/// A running sidecar.
pub(crate) struct Sidecar {
    pub(super) process: Process,
    pub(super) http: u16,
    pub(super) grpc: u16,
}

/// Common settings of all sidecars of a build.
pub(super) struct Launch {
    program: PathBuf,
    dir: PathBuf,
    trust: Option<Trust>,
    started: usize,
}

/// The CA of sidecars with mTLS.
pub(super) struct Trust {
    pub(super) port: u16,
    pub(super) anchors: String,
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
    /// Writes the sidecars' files: the indented `spec` of the Configuration, and components.
    pub(super) fn new(
        binaries: &Path,
        dir: &Path,
        trust: Option<Trust>,
        spec: &str,
        component: Option<&str>,
    ) -> Result<Self, Failure> {
        // Without the directory, the user's components would be loaded.
        std::fs::create_dir_all(dir.join("resources"))?;
        if let Some(component) = component {
            std::fs::write(dir.join("resources/component.yaml"), component)?;
        }
        let config = format!(
            "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: bench\nspec:\n{TELEMETRY}{spec}"
        );
        std::fs::write(dir.join("config.yaml"), config)?;
        Ok(Self {
            program: binaries.join("daprd"),
            dir: dir.to_owned(),
            trust,
            started: 0,
        })
    }

    pub(super) fn prepare(&mut self, app_id: &str, app: Option<(u16, Protocol)>) -> Prepared {
        self.started += 1;
        let name = format!("daprd-{}-{app_id}", self.started);
        let [http, grpc, internal, metrics] = free_ports();
        let mut command = Command::new(&self.program);
        command
            .arg("--config")
            .arg(self.dir.join("config.yaml"))
            .arg("--resources-path")
            .arg(self.dir.join("resources"))
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
                "--log-level=warn",
            ])
            .env("DAPR_HOST_IP", LOOPBACK);
        if let Some(trust) = &self.trust {
            command
                .args([
                    "--enable-mtls",
                    &format!("--sentry-address=localhost:{}", trust.port),
                    "--control-plane-trust-domain=localhost",
                    "--control-plane-namespace=default",
                ])
                .env("DAPR_TRUST_ANCHORS", &trust.anchors);
        }
        if let Some((port, protocol)) = app {
            let spoken = if protocol == Protocol::Http {
                "http"
            } else {
                "grpc"
            };
            command.args([&format!("--app-port={port}"), &format!("--app-protocol={spoken}")]);
        }
        Prepared {
            name,
            command,
            dir: self.dir.clone(),
            http,
            grpc,
        }
    }
}

/// One call in ten is traced, as by default; spans are dropped, so that no collector is involved.
const TELEMETRY: &str = "  tracing:
    samplingRate: \"0.1\"
  metrics:
    enabled: true
";

/// Name resolution as a part of the Configuration.
pub(super) fn name_resolution(resolver: Resolver, dir: &Path) -> String {
    match resolver {
        Resolver::Mdns => String::new(),
        Resolver::Sqlite => format!(
            "  nameResolution:\n    component: sqlite\n    version: v1\n    configuration:\n      connectionString: \"{}\"\n",
            dir.join("names.db").display()
        ),
    }
}

/// Checks that the binaries exist.
pub(super) fn check(binaries: &Path, names: &[&str]) -> Result<(), Failure> {
    for name in names {
        let program = binaries.join(name);
        if !program.is_file() {
            return Err(format!("{} does not exist", program.display()).into());
        }
    }
    Ok(())
}

/// The output of `daprd --version`.
pub(crate) fn version(binaries: &Path) -> Option<String> {
    let output = std::process::Command::new(binaries.join("daprd"))
        .arg("--version")
        .output()
        .ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
