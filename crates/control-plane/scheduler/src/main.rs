//! The `scheduler` binary.

use outrigger_scheduler::{Config, Scheduler, config::FLAGS};

outrigger_controlplane::main! {
    name: "scheduler",
    title: "Scheduler service",
    scope: "dapr.scheduler",
    flags: FLAGS,
    config: Config,
    service: Scheduler,
    arguments: Scheduler::arguments,
    perform: Scheduler::perform,
}
