//! The real services of the control plane, in the process of the test: they can be killed and started again in their place.

use std::net::SocketAddr;

use outrigger_flags::{Parsed, parse};
use outrigger_placement::Placement;
use outrigger_scheduler::Scheduler;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use super::{Plan, within};

/// A scheduler and, where it was started, a placement service.
pub struct Control {
    pub scheduler: Service,
    pub placement: Service,
    jobs: TempDir,
    /// `--handover` of placement.
    handover: bool,
}

/// A service on a runtime of its own, so that it can be killed.
#[derive(Default)]
pub struct Service {
    port: u16,
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

    /// Ends like a killed process.
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

    /// With a placement that lets hosts hand actors over.
    pub async fn with_handover() -> Self {
        let mut control = Self::scheduler().await;
        control.handover = true;
        control.start_placement().await;
        control
    }

    /// A scheduler alone.
    pub async fn scheduler() -> Self {
        let mut control = Self {
            scheduler: Service::default(),
            placement: Service::default(),
            jobs: tempfile::tempdir().unwrap(),
            handover: false,
        };
        control.start_scheduler().await;
        control
    }

    /// On its port and its data, where it has some already.
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
                // The one before may still hold its file and its port.
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

    /// On its port, where it has one already.
    pub async fn start_placement(&mut self) {
        let arguments = [
            format!("--port={}", self.placement.port),
            "--healthz-port=0".to_owned(),
            "--metrics-port=0".to_owned(),
            "--listen-address=127.0.0.1".to_owned(),
            "--initial-cluster=dapr-placement-0=127.0.0.1:0".to_owned(),
            format!("--handover={}", self.handover),
        ];
        let Ok(Parsed::Run(flags)) = parse(outrigger_placement::config::FLAGS, arguments) else {
            panic!("the flags of placement are not understood");
        };
        let runtime = Service::threads();
        let started = runtime.spawn(async move {
            loop {
                let config = outrigger_placement::Config::from_flags(&flags, |_| None).unwrap();
                if let Ok(placement) = Placement::build(config, |_| None, CancellationToken::new()).await {
                    let address: SocketAddr = placement.addresses().grpc;
                    tokio::spawn(placement.run());
                    return address.port();
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        });
        self.placement.port = within(started).await.unwrap();
        self.placement.runtime = Some(runtime);
    }

    /// A sidecar that knows the scheduler.
    pub fn with_scheduler<'n>(&self, plan: Plan<'n>) -> Plan<'n> {
        plan.flag(&format!(
            "--scheduler-host-address=127.0.0.1:{}",
            self.scheduler.port
        ))
    }

    /// A sidecar that knows both.
    pub fn with_both<'n>(&self, plan: Plan<'n>) -> Plan<'n> {
        let placement = format!("--placement-host-address=127.0.0.1:{}", self.placement.port);
        self.with_scheduler(plan).flag(&placement)
    }
}
