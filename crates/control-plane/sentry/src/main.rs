//! The `sentry` binary: flags, then the library.

use std::process::ExitCode;

use outrigger_controlplane::{Binary, environment, unless_stopped};
use outrigger_sentry::config::FLAGS;
use outrigger_sentry::{Config, Sentry, SentryError};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const LOG: &str = "dapr.sentry";

const BINARY: Binary = Binary {
    name: "sentry",
    title: "Sentry",
    version: env!("CARGO_PKG_VERSION"),
    flags: FLAGS,
    // Signing takes microseconds; a second thread keeps health and metrics answering meanwhile.
    workers: 2,
    scope: LOG,
    info: |text| tracing::info!(target: LOG, "{text}"),
};

fn main() -> ExitCode {
    BINARY.run(
        std::env::args().skip(1),
        |flags| Config::from_flags(flags, environment),
        |config| &config.log,
        async |config, stop| -> Result<(), SentryError> {
            match unless_stopped(&stop, Sentry::build(config, environment)).await? {
                None => Ok(()),
                Some(sentry) => sentry.run(stop).await,
            }
        },
    )
}
