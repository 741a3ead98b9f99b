//! The `injector` binary.

use outrigger_injector::{Config, Injector, config::FLAGS};

outrigger_controlplane::main! {
    name: "injector",
    title: "Sidecar injector",
    scope: "dapr.injector",
    flags: FLAGS,
    config: Config,
    service: Injector,
}
