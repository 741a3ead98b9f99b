//! The path of a call on one thread: client, sidecar, sidecar, app, and back; or a state call that the
//! sidecar answers itself.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outrigger_runtime::life::Shutdown;
use outrigger_sidecar::config::{Command, Config};
use outrigger_sidecar::sidecar::{Env, Sidecar};
use outrigger_testing::ports::free_ports;
use tempfile::TempDir;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::Failure;
use crate::app;
use crate::client::{Call, Client, STORE};

const CALLER: &str = "caller";
const CALLEE: &str = "callee";
/// Timeout for the sidecars to find each other, under valgrind on a busy machine.
const READY: Duration = Duration::from_secs(120);

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    HttpToHttp,
    HttpToGrpc,
    Proxy,
    StateGetHttp,
    StateSaveHttp,
    StateGetGrpc,
    StateSaveGrpc,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::HttpToHttp,
        Self::HttpToGrpc,
        Self::Proxy,
        Self::StateGetHttp,
        Self::StateSaveHttp,
        Self::StateGetGrpc,
        Self::StateSaveGrpc,
    ];

    /// Name in the budget.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HttpToHttp => "http-to-http",
            Self::HttpToGrpc => "http-to-grpc",
            Self::Proxy => "proxy",
            Self::StateGetHttp => "state-get-http",
            Self::StateSaveHttp => "state-save-http",
            Self::StateGetGrpc => "state-get-grpc",
            Self::StateSaveGrpc => "state-save-grpc",
        }
    }
}

pub(crate) struct CallPath {
    runtime: Runtime,
    client: Client,
    /// Configuration and name registry; removed at the end.
    _dir: TempDir,
}

impl CallPath {
    /// Starts everything and waits until a call succeeds.
    pub(crate) fn start(kind: Kind) -> Result<Self, Failure> {
        // A process can install only one provider, and any is fine.
        let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let dir = tempfile::Builder::new().prefix("outrigger-cost-").tempdir()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(connect(kind, dir.path()))?;
        Ok(Self {
            runtime,
            client,
            _dir: dir,
        })
    }

    pub(crate) fn warm_up(&mut self, calls: usize) -> Result<(), Failure> {
        self.call(calls)
    }

    /// Makes sequential calls.
    pub(crate) fn call(&mut self, calls: usize) -> Result<(), Failure> {
        let client = &mut self.client;
        self.runtime.block_on(async {
            for _ in 0..calls {
                client.call().await?;
            }
            Ok(())
        })
    }
}

async fn connect(kind: Kind, dir: &Path) -> Result<Client, Failure> {
    std::fs::write(dir.join("config.yaml"), configuration(dir))?;
    std::fs::create_dir(dir.join("resources"))?;
    let of_state = !matches!(kind, Kind::HttpToHttp | Kind::HttpToGrpc | Kind::Proxy);
    if of_state {
        std::fs::write(dir.join("resources/state.yaml"), component())?;
    } else {
        let grpc_app = kind != Kind::HttpToHttp;
        let app = app::start(grpc_app).await?;
        let protocol = if grpc_app { "grpc" } else { "http" };
        let flags = [format!("--app-port={app}"), format!("--app-protocol={protocol}")];
        sidecar(CALLEE, dir, &flags).await?;
    }
    let (http, grpc) = sidecar(CALLER, dir, &[]).await?;
    if of_state {
        // The state to read must exist.
        until_answered(|| Client::http(http, Call::save_over_http())).await?;
    }
    match kind {
        Kind::HttpToHttp | Kind::HttpToGrpc => {
            until_answered(|| Client::http(http, Call::invoke(CALLEE))).await
        }
        Kind::Proxy => until_answered(async || Client::grpc(grpc, Call::proxied(CALLEE)?).await).await,
        Kind::StateGetHttp => until_answered(|| Client::http(http, Call::get_over_http())).await,
        Kind::StateSaveHttp => until_answered(|| Client::http(http, Call::save_over_http())).await,
        Kind::StateGetGrpc => until_answered(|| Client::grpc(grpc, Call::get_over_grpc())).await,
        Kind::StateSaveGrpc => until_answered(|| Client::grpc(grpc, Call::save_over_grpc())).await,
    }
}

/// A client whose first call has succeeded.
async fn until_answered(open: impl AsyncFn() -> Result<Client, Failure>) -> Result<Client, Failure> {
    let deadline = Instant::now() + READY;
    loop {
        let attempt = async {
            let mut client = open().await?;
            client.call().await?;
            Ok::<_, Failure>(client)
        };
        match attempt.await {
            Ok(client) => return Ok(client),
            Err(error) if Instant::now() > deadline => {
                return Err(format!("no call got through in {} s: {error}", READY.as_secs()).into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// An in-memory state store.
fn component() -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1
kind: Component
metadata:
  name: {STORE}
spec:
  type: state.in-memory
  version: v1
  metadata: []
"
    )
}

/// Enables everything that a call passes through: tracing, metrics, a policy. The sampling rate is
/// practically zero, because the caller decides which calls are traced.
fn configuration(dir: &Path) -> String {
    format!(
        "apiVersion: dapr.io/v1alpha1
kind: Configuration
metadata:
  name: cost
spec:
  tracing:
    samplingRate: \"0.000000001\"
  nameResolution:
    component: sqlite
    version: v1
    configuration:
      connectionString: \"{}\"
  accessControl:
    defaultAction: allow
    trustDomain: public
    policies:
      - appId: nobody
        defaultAction: deny
        namespace: default
        trustDomain: public
",
        dir.join("names.db").display()
    )
}

/// Builds a complete sidecar and runs it as a task of this runtime. Returns its API ports.
async fn sidecar(app_id: &str, dir: &Path, flags: &[String]) -> Result<(u16, u16), Failure> {
    let [http, grpc, internal, metrics] = free_ports();
    let mut arguments = vec![
        format!("--app-id={app_id}"),
        format!("--config={}", dir.join("config.yaml").display()),
        format!("--resources-path={}", dir.join("resources").display()),
        format!("--dapr-http-port={http}"),
        format!("--dapr-grpc-port={grpc}"),
        format!("--dapr-internal-grpc-port={internal}"),
        format!("--metrics-port={metrics}"),
        "--dapr-listen-addresses=127.0.0.1".to_owned(),
        "--dapr-internal-grpc-listen-address=127.0.0.1".to_owned(),
        "--metrics-listen-address=127.0.0.1".to_owned(),
        "--enable-profiling=false".to_owned(),
    ];
    arguments.extend_from_slice(flags);
    let env: Env = Arc::new(|name| (name == "DAPR_HOST_IP").then(|| "127.0.0.1".to_owned()));
    let command = Config::from_args(arguments, |name| env(name), |note| eprintln!("{note}"))?;
    let Command::Run(config) = command else {
        return Err("the sidecar's flags do not start it".into());
    };
    let sidecar = Sidecar::build(*config, env, Handle::current(), Shutdown::default()).await?;
    let name = app_id.to_owned();
    tokio::spawn(async move {
        if let Err(error) = sidecar.run().await {
            eprintln!("{name} ended: {error}");
        }
    });
    Ok((http, grpc))
}

#[cfg(test)]
mod tests {
    use super::{CallPath, Kind};

    #[test]
    fn every_kind_of_call_succeeds() {
        for kind in Kind::ALL {
            CallPath::start(kind).and_then(|mut path| path.call(3)).unwrap();
        }
    }
}
