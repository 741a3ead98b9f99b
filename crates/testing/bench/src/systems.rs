//! The measured systems: the app alone, or behind two sidecars or two proxies; a store alone, or behind a
//! sidecar.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::Failure;
use crate::load::{Call, Connection, Traffic};
use crate::plan::{Api, Plan, Protocol, StateCall, System, Verb};
use crate::process::Process;
use crate::procfs::Watched;

mod backend;
mod certificates;
mod envoy;
mod keeper;
mod launch;
mod nginx;
mod proxies;
mod servers;
mod sidecars;

pub(crate) use backend::Backend;
pub(crate) use envoy::version as envoy_version;
pub(crate) use launch::version as sidecar_version;
pub(crate) use nginx::version as nginx_version;

use envoy::Envoy;
use keeper::StateSystem;
use nginx::Nginx;
use proxies::{Product, Proxies};
use sidecars::Sidecars;

/// Path and method of proxied calls. Fortio's client calls the same method.
const ECHO: &str = "/echo";
const UNARY: &str = "/fgrpc.PingServer/Ping";

/// A running system for one protocol.
pub(crate) struct Stack {
    pub(crate) protocol: Protocol,
    chain: Chain,
    watched: Watched,
    /// Port that receives calls.
    port: u16,
    /// The size of the stored values.
    filled: Option<usize>,
}

impl Chain {
    /// Prepares one more sidecar that receives calls.
    fn prepare_first(&mut self) -> Option<launch::Prepared> {
        match self {
            Self::Sidecars(pair) => Some(pair.prepare_caller()),
            Self::Keeper(one) => Some(one.prepare()),
            Self::Direct | Self::Proxies(_) => None,
        }
    }
}

enum Chain {
    Direct,
    Keeper(Box<StateSystem>),
    Sidecars(Box<Sidecars>),
    Proxies(Box<Proxies>),
}

impl Stack {
    pub(crate) async fn start(
        system: System,
        protocol: Protocol,
        backend: &Backend,
        plan: &Plan,
        dir: &Path,
    ) -> Result<Self, Failure> {
        let dir = dir.join(format!("{}-{}", protocol.name(), system.name()));
        std::fs::create_dir_all(&dir)?;
        let port = backend.port(protocol);
        let (chain, mut processes, port) = match system {
            System::Direct => (Chain::Direct, Vec::new(), port),
            System::Outrigger | System::Reference => {
                let binaries = match (system, &plan.reference) {
                    (System::Reference, Some(folder)) => folder,
                    _ => &plan.bin_dir,
                };
                if let Some(call) = protocol.state() {
                    let component = backend.component();
                    let one = StateSystem::start(binaries, system, call, &component, &dir).await?;
                    let (processes, port) = (one.processes(), one.port());
                    (Chain::Keeper(Box::new(one)), processes, port)
                } else {
                    let pair = Sidecars::start(binaries, protocol, port, plan.resolver, &dir).await?;
                    let (processes, port) = (pair.processes(), pair.port());
                    (Chain::Sidecars(Box::new(pair)), processes, port)
                }
            }
            System::Envoy | System::Nginx => {
                let product: Box<dyn Product> = if system == System::Envoy {
                    Box::new(Envoy {
                        program: plan.envoy.clone(),
                        workers: plan.envoy_workers,
                    })
                } else {
                    Box::new(Nginx {
                        workers: plan.nginx_workers,
                    })
                };
                let pair = Proxies::start(product, protocol, port, &dir).await?;
                let (processes, port) = (pair.processes(), pair.port());
                (Chain::Proxies(Box::new(pair)), processes, port)
            }
        };
        processes.extend(backend.processes());
        let mut stack = Self {
            protocol,
            chain,
            watched: Watched::new(processes),
            port,
            filled: None,
        };
        stack.first_answer().await?;
        Ok(stack)
    }

    async fn first_answer(&mut self) -> Result<(), Failure> {
        let call = self.probe(self.port)?;
        match &mut self.chain {
            Chain::Direct => attempt(&call).await?,
            Chain::Keeper(one) => one.sidecar().process.ready(|| attempt(&call)).await?,
            Chain::Sidecars(pair) => pair.caller().process.ready(|| attempt(&call)).await?,
            Chain::Proxies(pair) => pair.caller().process.ready(|| attempt(&call)).await?,
        }
        Ok(())
    }

    /// The processes whose cost is measured.
    pub(crate) fn watched(&self) -> &Watched {
        &self.watched
    }

    /// A call through the system.
    pub(crate) fn call(&self, payload: usize) -> Result<Call, Failure> {
        self.call_at(self.port, payload)
    }

    /// Stores a value of this size under every key that is read.
    pub(crate) async fn fill(&mut self, payload: usize) -> Result<(), Failure> {
        let Some(call) = self.protocol.state() else {
            return Ok(());
        };
        if call.verb == Verb::Save || self.filled == Some(payload) {
            return Ok(());
        }
        for save in self.state_at(saving(call), self.port, payload)?.each() {
            attempt(save).await?;
        }
        self.filled = Some(payload);
        Ok(())
    }

    /// A call that succeeds once the system is ready.
    fn probe(&self, port: u16) -> Result<Call, Failure> {
        match self.protocol.state() {
            // There is nothing to read yet.
            Some(call) => self.state_at(saving(call), port, 0),
            None => self.call_at(port, 0),
        }
    }

    fn state_at(&self, call: StateCall, port: u16, payload: usize) -> Result<Call, Failure> {
        match self.chain {
            Chain::Direct => Call::of_driver(call, port, payload),
            _ => Call::of_state(call, port, payload),
        }
    }

    fn call_at(&self, port: u16, payload: usize) -> Result<Call, Failure> {
        if let Some(call) = self.protocol.state() {
            return self.state_at(call, port, payload);
        }
        let Chain::Sidecars(pair) = &self.chain else {
            return match self.protocol {
                Protocol::Http => Call::post(port, ECHO, payload),
                Protocol::Grpc => Call::on_invoke(port, payload),
                _ => Call::unary(port, UNARY, payload),
            };
        };
        let id = pair.callee_id();
        match self.protocol {
            Protocol::Http => Call::post(port, &format!("/v1.0/invoke/{id}/method{ECHO}"), payload),
            Protocol::Grpc => Call::invoke_service(port, id, payload),
            _ => Call::unary(port, UNARY, payload)?.with_header("dapr-app-id", id),
        }
    }

    /// The identity of the callee, for load generators that need it.
    pub(crate) fn callee_id(&self) -> Option<&str> {
        match &self.chain {
            Chain::Sidecars(pair) => Some(pair.callee_id()),
            _ => None,
        }
    }

    /// Starts one more first hop and waits for its first successful call. `None` for the direct call.
    pub(crate) async fn spare(&mut self) -> Result<Option<Spare>, Failure> {
        // The clock starts with the process: files and command lines are prepared before.
        let (started, process, port, health) = match &mut self.chain {
            Chain::Proxies(pair) => {
                let prepared = pair.prepare_caller()?;
                let started = Instant::now();
                let hop = prepared.start()?;
                (started, hop.process, hop.port, Call::get(hop.health, "/healthz")?)
            }
            chain => {
                let Some(prepared) = chain.prepare_first() else {
                    return Ok(None);
                };
                let started = Instant::now();
                let hop = prepared.start()?;
                let over_http = match self.protocol {
                    Protocol::State(call) => call.api == Api::Http,
                    protocol => protocol == Protocol::Http,
                };
                let port = if over_http { hop.http } else { hop.grpc };
                (started, hop.process, port, Call::get(hop.http, "/v1.0/healthz")?)
            }
        };
        let mut process = process;
        let call = self.probe(port)?;
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
            Chain::Keeper(one) => one.stop().await,
            Chain::Sidecars(pair) => pair.stop().await,
            Chain::Proxies(pair) => pair.stop().await,
        }
    }
}

fn saving(call: StateCall) -> StateCall {
    StateCall {
        verb: Verb::Save,
        ..call
    }
}

/// An additional first hop, separate from the measured one.
pub(crate) struct Spare {
    /// From the start of the process to its first successful call.
    pub(crate) first_call: Duration,
    pub(crate) process: Process,
    /// A call answered by the hop itself, for idle connections.
    pub(crate) health: Call,
}

/// One call on a new connection, with a timeout of two seconds.
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
