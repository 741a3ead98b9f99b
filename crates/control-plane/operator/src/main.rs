//! The `operator` binary: flags, then the library.

use std::process::ExitCode;

use outrigger_controlplane::{Binary, environment, unless_stopped};
use outrigger_operator::config::FLAGS;
use outrigger_operator::{Config, Operator, OperatorError};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const LOG: &str = "dapr.operator";

const BINARY: Binary = Binary {
    name: "operator",
    title: "Operator",
    version: env!("CARGO_PKG_VERSION"),
    flags: FLAGS,
    // Lists of many resources are long to encode; the other thread keeps streams alive meanwhile.
    workers: 2,
    scope: LOG,
    info: |text| tracing::info!(target: LOG, "{text}"),
};

fn main() -> ExitCode {
    BINARY.run(
        std::env::args().skip(1),
        |flags| Config::from_flags(flags, environment),
        |config| &config.log,
        async |config, stop| -> Result<(), OperatorError> {
            let build = Operator::build(config, environment, stop.clone());
            match unless_stopped(&stop, Box::pin(build)).await? {
                None => Ok(()),
                Some(operator) => operator.run().await,
            }
        },
    )
}
