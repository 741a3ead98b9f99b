//! Two sidecars and their CA, of one build: mTLS, metrics, tracing of one call in ten, and a policy that
//! admits the caller by its certificate.

use std::path::Path;

use outrigger_testing::ports::free_ports;
use tokio::process::Command;

use super::attempt;
use super::launch::{LOOPBACK, Launch, Prepared, Sidecar, Trust, check, name_resolution};
use crate::Failure;
use crate::load::Call;
use crate::plan::{Protocol, Resolver};
use crate::process::Process;
use crate::procfs::Role;

/// A caller, a callee in front of the app, and their common CA.
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
        check(binaries, &["daprd", "sentry"])?;
        // The suffix separates runs on one network, because peers are resolved by multicast.
        let suffix: u32 = rand::random();
        let (caller_id, callee_id) = (format!("caller-{suffix:08x}"), format!("callee-{suffix:08x}"));
        let (sentry, trust) = sentry(&binaries.join("sentry"), dir).await?;
        let spec = name_resolution(resolver, dir) + &access(&caller_id);
        let mut launch = Launch::new(binaries, dir, Some(trust), &spec, None)?;
        let mut callee = launch.prepare(&callee_id, Some((app, protocol))).start()?;
        let health = Call::get(callee.http, "/v1.0/healthz")?;
        callee.process.ready(|| attempt(&health)).await?;
        let mut caller = launch.prepare(&caller_id, None).start()?;
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

    /// Prepares one more caller.
    pub(super) fn prepare_caller(&mut self) -> Prepared {
        self.launch.prepare(&self.caller_id, None)
    }

    pub(super) fn caller(&mut self) -> &mut Sidecar {
        &mut self.caller
    }

    pub(crate) fn callee_id(&self) -> &str {
        &self.callee_id
    }

    /// Port for calls of the protocol.
    pub(super) fn port(&self) -> u16 {
        match self.protocol {
            Protocol::Http => self.caller.http,
            _ => self.caller.grpc,
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

/// A fresh CA.
async fn sentry(program: &Path, dir: &Path) -> Result<(Process, Trust), Failure> {
    let credentials = dir.join("credentials");
    std::fs::create_dir(&credentials)?;
    let config = dir.join("sentry.yaml");
    std::fs::write(
        &config,
        "apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata:\n  name: sentry\nspec: {}\n",
    )?;
    let [port, healthz, metrics] = free_ports();
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
    Ok((process, Trust { port, anchors }))
}

/// The access policy: admits the caller by its certificate.
fn access(caller_id: &str) -> String {
    format!(
        "  accessControl:
    defaultAction: deny
    trustDomain: public
    policies:
      - appId: {caller_id}
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
"
    )
}
