//! The `operator` binary.

use outrigger_operator::{Config, Operator, config::FLAGS};

outrigger_controlplane::main! {
    name: "operator",
    title: "Operator",
    scope: "dapr.operator",
    flags: FLAGS,
    config: Config,
    service: Operator,
}
