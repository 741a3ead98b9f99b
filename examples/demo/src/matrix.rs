//! Sidecars and control planes of two builds in every combination.

use std::net::Ipv4Addr;
use std::path::Path;

use tempfile::TempDir;
use tokio::process::Command;

use crate::Failure;
use crate::events::Broker;
use crate::fleet::{Binaries, Fleet};
use crate::process::{Process, free_ports};

/// Runs the demo with the CA, scheduler and placement of either build, and each pair of different sidecars. Every
/// combination must pass.
pub(crate) async fn run(ours: &Path, peer: &Path) -> Result<(), Failure> {
    let sides = [("ours", ours), ("peer", peer)];
    let (mut passed, mut failed) = (0, 0);
    for number in 0..16_usize {
        let side = |bit: usize| sides[number >> bit & 1];
        let (ca, scheduler, placement) = (side(3), side(2), side(1));
        let (http, grpc) = (side(0), sides[1 - (number & 1)]);
        println!(
            "CA: {}; scheduler: {}; placement: {}; sidecars of the HTTP app, which host the actor: {}; sidecar of the \
             gRPC app: {}",
            ca.0, scheduler.0, placement.0, http.0, grpc.0
        );
        let binaries = Binaries {
            sentry: ca.1.join("sentry"),
            scheduler: scheduler.1.join("scheduler"),
            placement: placement.1.join("placement"),
            http_sidecar: http.1.join("daprd"),
            grpc_sidecar: grpc.1.join("daprd"),
        };
        match mixture(&binaries).await {
            Ok(()) => passed += 1,
            Err(failure) => {
                failed += 1;
                println!("failed: {failure}");
            }
        }
        println!();
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        Err("a mixture failed".into())
    } else {
        Ok(())
    }
}

async fn mixture(binaries: &Binaries) -> Result<(), Failure> {
    let redis = Redis::start().await?;
    let mut fleet = Fleet::start(binaries, &Broker::Redis(redis.address.clone())).await?;
    let called = crate::everything(&mut fleet).await;
    let ended = fleet.stop(called.is_ok()).await;
    called.and(ended).and(redis.process.stop().await)
}

/// The broker that both builds support.
struct Redis {
    address: String,
    process: Process,
    _dir: TempDir,
}

impl Redis {
    async fn start() -> Result<Self, Failure> {
        let dir = tempfile::Builder::new().prefix("outrigger-demo-").tempdir()?;
        let [port] = free_ports().await;
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(dir.path());
        let mut process = Process::start("redis", command, dir.path())
            .map_err(|error| format!("{error}: apt-get install redis-server"))?;
        process.listening(port).await?;
        Ok(Self {
            address: format!("{}:{port}", Ipv4Addr::LOCALHOST),
            process,
            _dir: dir,
        })
    }
}
