//! The `sentry` binary.

use outrigger_sentry::{Config, Sentry, config::FLAGS};

outrigger_controlplane::main! {
    name: "sentry",
    title: "Sentry",
    scope: "dapr.sentry",
    flags: FLAGS,
    config: Config,
    service: Sentry,
}
