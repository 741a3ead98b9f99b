//! The `placement` binary.

use outrigger_placement::{Config, Placement, config::FLAGS};

outrigger_controlplane::main! {
    name: "placement",
    title: "Placement service",
    scope: "dapr.placement",
    flags: FLAGS,
    config: Config,
    service: Placement,
}
