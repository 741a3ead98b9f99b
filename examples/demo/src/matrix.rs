//! Sidecars and CAs of two builds in every mixture.

use std::path::Path;

use crate::Failure;
use crate::fleet::{Binaries, Fleet};

/// Runs every call with each CA and each pair of different sidecars; every mixture must pass.
pub(crate) async fn run(ours: &Path, peer: &Path) -> Result<(), Failure> {
    let sides = [("ours", ours), ("peer", peer)];
    let (mut passed, mut failed) = (0, 0);
    for (ca, ca_dir) in sides {
        for [(http, http_dir), (grpc, grpc_dir)] in [[sides[0], sides[1]], [sides[1], sides[0]]] {
            println!("CA: {ca}; sidecar of the HTTP app: {http}; sidecar of the gRPC app: {grpc}");
            let binaries = Binaries {
                sentry: ca_dir.join("sentry"),
                scheduler: ours.join("scheduler"),
                placement: None,
                http_sidecar: http_dir.join("daprd"),
                grpc_sidecar: grpc_dir.join("daprd"),
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
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        Err("a mixture failed".into())
    } else {
        Ok(())
    }
}

async fn mixture(binaries: &Binaries) -> Result<(), Failure> {
    let fleet = Fleet::start(binaries).await?;
    let called = crate::everything(&fleet).await;
    let ended = fleet.stop(called.is_ok()).await;
    called.and(ended)
}
