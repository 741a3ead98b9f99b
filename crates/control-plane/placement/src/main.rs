//! The `placement` binary: flags, then the library.

use std::process::ExitCode;

use outrigger_controlplane::{Binary, environment, unless_stopped};
use outrigger_placement::config::FLAGS;
use outrigger_placement::{Config, Placement, PlacementError};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const LOG: &str = "dapr.placement";

const BINARY: Binary = Binary {
    name: "placement",
    title: "Placement service",
    version: env!("CARGO_PKG_VERSION"),
    flags: FLAGS,
    // A round is made on one thread; the other keeps connections and elections alive meanwhile.
    workers: 2,
    scope: LOG,
    info: |text| tracing::info!(target: LOG, "{text}"),
};

fn main() -> ExitCode {
    BINARY.run(
        std::env::args().skip(1),
        |flags| Config::from_flags(flags, environment),
        |config| &config.log,
        async |config, stop| -> Result<(), PlacementError> {
            let build = Placement::build(config, environment, stop.clone());
            match unless_stopped(&stop, Box::pin(build)).await? {
                None => Ok(()),
                Some(placement) => placement.run().await,
            }
        },
    )
}
