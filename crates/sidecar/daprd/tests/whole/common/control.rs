//! The real control plane services, in the test's process. They can be killed and restarted at the same
//! address.

use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpListener};

use outrigger_flags::{Parsed, parse};
use outrigger_placement::Placement;
use outrigger_scheduler::Scheduler;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use super::client::try_send;
use super::{Answer, Plan, eventually, get, within};

/// A scheduler and optionally a placement service.
pub struct Control {
    pub scheduler: Service,
    pub placement: Service,
    jobs: TempDir,
    /// Flags of placement.
    flags: Vec<String>,
}

/// A service on a separate runtime, so that it can be killed.
#[derive(Default)]
pub struct Service {
    port: u16,
    metrics: Option<u16>,
    runtime: Option<Runtime>,
}

impl Service {
    fn threads() -> Runtime {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    }

    /// A placement service on this port, or a free one. Retries until the previous service has released it.
    async fn placement(port: u16, more: Vec<String>) -> Self {
        let mut arguments = vec![format!("--port={port}")];
        arguments.extend(
            [
                "--healthz-port=0",
                "--metrics-port=0",
                "--listen-address=127.0.0.1",
            ]
            .map(str::to_owned),
        );
        arguments.extend(more);
        let Ok(Parsed::Run(flags)) = parse(outrigger_placement::config::FLAGS, arguments) else {
            panic!("the flags of placement are not understood");
        };
        let runtime = Self::threads();
        let started = runtime.spawn(async move {
            loop {
                let config = outrigger_placement::Config::from_flags(&flags, |_| None).unwrap();
                if let Ok(placement) = Placement::build(config, |_| None, CancellationToken::new()).await {
                    let addresses = placement.addresses();
                    tokio::spawn(placement.run());
                    return addresses;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        let addresses = within(started).await.unwrap();
        Self {
            port: addresses.grpc.port(),
            metrics: addresses.metrics.map(|address| address.port()),
            runtime: Some(runtime),
        }
    }

    /// Whether it is the leading placement service.
    async fn leads(&self) -> bool {
        let (Some(port), Some(_)) = (self.metrics, &self.runtime) else {
            return false;
        };
        let Some(answer) = try_send(port, get("/metrics")).await else {
            return false;
        };
        let answer = Answer::try_read(answer).await;
        answer.is_some_and(|answer| answer.text().contains("\ndapr_placement_leader_status 1"))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops like a killed process.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Control {
    pub async fn start() -> Self {
        let mut control = Self::scheduler().await;
        control.start_placement().await;
        control
    }

    /// With a placement that supports handover.
    pub async fn with_handover() -> Self {
        Self::with_placement(&["--handover"]).await
    }

    /// With these flags of placement.
    pub async fn with_placement(flags: &[&str]) -> Self {
        let mut control = Self::scheduler().await;
        control.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        control.start_placement().await;
        control
    }

    /// A scheduler without placement.
    pub async fn scheduler() -> Self {
        let mut control = Self {
            scheduler: Service::default(),
            placement: Service::default(),
            jobs: tempfile::tempdir().unwrap(),
            flags: Vec::new(),
        };
        control.start_scheduler().await;
        control
    }

    /// Starts it on its previous port and data, if any.
    pub async fn start_scheduler(&mut self) {
        let arguments = [
            format!("--port={}", self.scheduler.port),
            "--healthz-port=0".to_owned(),
            "--metrics-port=0".to_owned(),
            "--etcd-client-port=0".to_owned(),
            "--listen-address=127.0.0.1".to_owned(),
            "--etcd-client-listen-address=127.0.0.1".to_owned(),
            format!("--etcd-data-dir={}", self.jobs.path().display()),
        ];
        let Ok(Parsed::Run(flags)) = parse(outrigger_scheduler::config::FLAGS, arguments) else {
            panic!("the flags of the scheduler are not understood");
        };
        let runtime = Service::threads();
        let started = runtime.spawn(async move {
            loop {
                let config = outrigger_scheduler::Config::from_flags(&flags, |_| None).unwrap();
                // The previous one may still hold its file and its port.
                if let Ok(scheduler) = Scheduler::build(config, |_| None, CancellationToken::new()).await {
                    let address: SocketAddr = scheduler.addresses().grpc;
                    tokio::spawn(scheduler.run());
                    return address.port();
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        self.scheduler.port = within(started).await.unwrap();
        self.scheduler.runtime = Some(runtime);
    }

    /// Starts it on its previous port, if any.
    pub async fn start_placement(&mut self) {
        let alone = "--initial-cluster=dapr-placement-0=127.0.0.1:0".to_owned();
        let flags = [self.flags.clone(), vec![alone]].concat();
        self.placement = Service::placement(self.placement.port, flags).await;
    }

    /// The sidecar flag for placement.
    pub fn placement_flag(&self) -> String {
        format!("--placement-host-address=127.0.0.1:{}", self.placement.port)
    }

    /// A sidecar with the scheduler.
    pub fn with_scheduler<'n>(&self, plan: Plan<'n>) -> Plan<'n> {
        plan.flag(&format!(
            "--scheduler-host-address=127.0.0.1:{}",
            self.scheduler.port
        ))
    }

    /// A sidecar with both.
    pub fn with_both<'n>(&self, plan: Plan<'n>) -> Plan<'n> {
        self.with_scheduler(plan).flag(&self.placement_flag())
    }
}

/// Placement services that elect a leader.
pub struct Replicas {
    members: Vec<Service>,
    /// Flags of each.
    flags: Vec<Vec<String>>,
}

/// Below the kernel's ephemeral ports, which could be taken before the replica listens.
const PORTS: std::ops::Range<u16> = 10_240..32_768;

/// Addresses without listeners.
fn free_addresses() -> [SocketAddr; 3] {
    let ports = std::iter::repeat_with(|| {
        let random = RandomState::new().hash_one(()) % PORTS.len() as u64;
        PORTS.start + u16::try_from(random).unwrap()
    });
    let mut listeners = ports.filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    let held = [(); 3].map(|()| listeners.next().unwrap());
    held.map(|listener| listener.local_addr().unwrap())
}

impl Replicas {
    /// Starts three; `handover` tells whether they support handover.
    pub async fn start(handover: bool) -> Self {
        let addresses = free_addresses();
        let named = ["a", "b", "c"].into_iter().zip(addresses);
        let cluster: Vec<String> = named.map(|(id, address)| format!("{id}={address}")).collect();
        let flags = ["a", "b", "c"].map(|id| {
            vec![
                format!("--id={id}"),
                format!("--initial-cluster={}", cluster.join(",")),
                format!("--handover={handover}"),
            ]
        });
        let mut replicas = Self {
            members: Vec::new(),
            flags: flags.into(),
        };
        for flags in &replicas.flags {
            let member = Service::placement(0, flags.clone()).await;
            replicas.members.push(member);
        }
        replicas.leader().await;
        replicas
    }

    /// The sidecar flag for all of them.
    pub fn flag(&self) -> String {
        let addresses = self
            .members
            .iter()
            .map(|member| format!("127.0.0.1:{}", member.port));
        let addresses: Vec<String> = addresses.collect();
        format!("--placement-host-address={}", addresses.join(","))
    }

    /// Waits for a leader; returns its index.
    pub async fn leader(&self) -> usize {
        let mut leader = None;
        eventually(async || {
            for (at, member) in self.members.iter().enumerate() {
                if member.leads().await {
                    leader = Some(at);
                }
            }
            leader.is_some()
        })
        .await;
        leader.expect("it was found")
    }

    /// Stops one like a killed process.
    pub fn kill(&mut self, member: usize) {
        self.members[member].kill();
    }

    /// Restarts a killed one at its address.
    pub async fn start_again(&mut self, member: usize) {
        let port = self.members[member].port;
        self.members[member] = Service::placement(port, self.flags[member].clone()).await;
    }
}
