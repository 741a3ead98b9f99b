//! The `injector` binary: flags, then the library.

use std::process::ExitCode;

use outrigger_controlplane::{Binary, environment, unless_stopped};
use outrigger_injector::config::FLAGS;
use outrigger_injector::{Config, Injector, InjectorError};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const LOG: &str = "dapr.injector";

const BINARY: Binary = Binary {
    name: "injector",
    title: "Sidecar injector",
    version: env!("CARGO_PKG_VERSION"),
    flags: FLAGS,
    // A patch takes microseconds; the other thread keeps health and metrics answering meanwhile.
    workers: 2,
    scope: LOG,
    info: |text| tracing::info!(target: LOG, "{text}"),
};

fn main() -> ExitCode {
    BINARY.run(
        std::env::args().skip(1),
        |flags| Config::from_flags(flags, environment),
        |config| &config.log,
        async |config, stop| -> Result<(), InjectorError> {
            let build = Box::pin(Injector::build(config, environment, stop.clone()));
            match unless_stopped(&stop, build).await? {
                None => Ok(()),
                Some(injector) => injector.run().await,
            }
        },
    )
}
