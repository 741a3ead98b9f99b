//! What is measured: the app alone, or behind two sidecars of a build, or behind two nginx processes.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::Instant;

use crate::Failure;
use crate::app::Ports;
use crate::load::{Call, Connection, Traffic};
use crate::plan::{Plan, Protocol, System};
use crate::process::{Process, free_ports};
use crate::procfs::{Role, Watched};

mod certificates;
mod nginx;
mod sidecars;

pub(crate) use nginx::version as nginx_version;
pub(crate) use sidecars::{Sidecars, version as sidecar_version};

/// Path and method of calls that a proxy passes on as they are. Fortio's client calls the same method.
const ECHO: &str = "/echo";
const UNARY: &str = "/fgrpc.PingServer/Ping";

/// The app that all systems call.
pub(crate) struct App {
    process: Process,
    ports: Ports,
}

impl App {
    pub(crate) async fn start(dir: &Path) -> Result<Self, Failure> {
        let [http, grpc] = free_ports().await?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["app", &format!("--http={http}"), &format!("--grpc={grpc}")]);
        let mut process = Process::start("app", command, dir)?;
        process.listening(http).await?;
        process.listening(grpc).await?;
        Ok(Self {
            process,
            ports: Ports { http, grpc },
        })
    }

    fn port(&self, protocol: Protocol) -> u16 {
        match protocol {
            Protocol::Http => self.ports.http,
            Protocol::Grpc | Protocol::Proxy => self.ports.grpc,
        }
    }

    pub(crate) async fn stop(self) -> Result<(), Failure> {
        self.process.stop().await
    }
}

/// A system that is up and answers calls of one protocol.
pub(crate) struct Stack {
    pub(crate) protocol: Protocol,
    chain: Chain,
    watched: Watched,
    /// Where calls go.
    port: u16,
}

enum Chain {
    Direct,
    Sidecars(Box<Sidecars>),
    Nginx(Box<nginx::Proxies>),
}

impl Stack {
    pub(crate) async fn start(
        system: System,
        protocol: Protocol,
        app: &App,
        plan: &Plan,
        dir: &Path,
    ) -> Result<Self, Failure> {
        let dir = dir.join(format!("{}-{}", protocol.name(), system.name()));
        std::fs::create_dir_all(&dir)?;
        let port = app.port(protocol);
        let (chain, mut processes, port) = match system {
            System::Direct => (Chain::Direct, Vec::new(), port),
            System::Outrigger | System::Reference => {
                let binaries = match (system, &plan.reference) {
                    (System::Reference, Some(folder)) => folder,
                    _ => &plan.bin_dir,
                };
                let pair = Sidecars::start(binaries, protocol, port, plan.resolver, &dir).await?;
                let (processes, port) = (pair.processes(), pair.port());
                (Chain::Sidecars(Box::new(pair)), processes, port)
            }
            System::Nginx => {
                let pair = nginx::Proxies::start(protocol, port, plan.nginx_workers, &dir).await?;
                let (processes, port) = (pair.processes(), pair.port());
                (Chain::Nginx(Box::new(pair)), processes, port)
            }
        };
        processes.push((Role::App, app.process.pid()));
        let mut stack = Self {
            protocol,
            chain,
            watched: Watched::new(processes),
            port,
        };
        stack.first_answer().await?;
        Ok(stack)
    }

    async fn first_answer(&mut self) -> Result<(), Failure> {
        let call = self.call(0)?;
        match &mut self.chain {
            Chain::Direct => attempt(&call).await?,
            Chain::Sidecars(pair) => pair.caller().process.ready(|| attempt(&call)).await?,
            Chain::Nginx(pair) => pair.caller().process.ready(|| attempt(&call)).await?,
        }
        Ok(())
    }

    /// The processes whose cost counts.
    pub(crate) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// A call through the system.
    pub(crate) fn call(&self, payload: usize) -> Result<Call, Failure> {
        self.call_at(self.port, payload)
    }

    fn call_at(&self, port: u16, payload: usize) -> Result<Call, Failure> {
        let Chain::Sidecars(pair) = &self.chain else {
            return match self.protocol {
                Protocol::Http => Call::post(port, ECHO, payload),
                Protocol::Grpc => Call::on_invoke(port, payload),
                Protocol::Proxy => Call::unary(port, UNARY, payload),
            };
        };
        let id = pair.callee_id();
        match self.protocol {
            Protocol::Http => Call::post(port, &format!("/v1.0/invoke/{id}/method{ECHO}"), payload),
            Protocol::Grpc => Call::invoke_service(port, id, payload),
            Protocol::Proxy => Call::unary(port, UNARY, payload)?.with_header("dapr-app-id", id),
        }
    }

    /// The identity of the callee, for load generators that have to name it.
    pub(crate) fn callee_id(&self) -> Option<&str> {
        match &self.chain {
            Chain::Sidecars(pair) => Some(pair.callee_id()),
            _ => None,
        }
    }

    /// Starts one more first hop and waits for its first answered call. None for the direct call.
    pub(crate) async fn spare(&mut self) -> Result<Option<Spare>, Failure> {
        // The clock starts with the process: files and command lines are written before.
        let (started, process, port, health) = match &mut self.chain {
            Chain::Direct => return Ok(None),
            Chain::Sidecars(pair) => {
                let prepared = pair.prepare_caller().await?;
                let started = Instant::now();
                let hop = prepared.start()?;
                let port = if self.protocol == Protocol::Http {
                    hop.http
                } else {
                    hop.grpc
                };
                (started, hop.process, port, Call::get(hop.http, "/v1.0/healthz")?)
            }
            Chain::Nginx(pair) => {
                let prepared = pair.prepare_caller().await?;
                let started = Instant::now();
                let hop = prepared.start()?;
                (started, hop.process, hop.port, Call::get(hop.health, "/healthz")?)
            }
        };
        let mut process = process;
        let call = self.call_at(port, 0)?;
        process.ready(|| attempt(&call)).await?;
        Ok(Some(Spare {
            first_call: started.elapsed(),
            process,
            health,
        }))
    }

    pub(crate) async fn stop(self) -> Result<(), Failure> {
        match self.chain {
            Chain::Direct => Ok(()),
            Chain::Sidecars(pair) => pair.stop().await,
            Chain::Nginx(pair) => pair.stop().await,
        }
    }
}

/// A first hop of its own, beside the one that is measured.
pub(crate) struct Spare {
    /// From the start of the process to its first answered call.
    pub(crate) first_call: Duration,
    pub(crate) process: Process,
    /// A call that the hop answers itself, to keep connections to it that do nothing else.
    pub(crate) health: Call,
}

/// One call on a connection of its own, given up after two seconds.
async fn attempt(call: &Call) -> Result<(), String> {
    let traffic = Arc::new(Traffic::default());
    let once = async {
        let mut connection = Connection::open(call, &traffic).await?;
        connection.call().await
    };
    match tokio::time::timeout(Duration::from_secs(2), once).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("{}: {error}", call.name())),
        Err(_) => Err(format!("{}: no answer in 2 s", call.name())),
    }
}
