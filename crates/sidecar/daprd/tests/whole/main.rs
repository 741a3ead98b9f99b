//! Whole sidecars, their apps and their certificate authority in one process, on private ports, with one file
//! per behaviour.

#![expect(unreachable_pub, reason = "modules of one binary")]
#![expect(
    clippy::unwrap_used,
    reason = "functions that tests share may fail like tests"
)]

mod actor_deactivation;
mod actor_errors;
mod actor_faults;
mod actors;
mod bindings;
mod callers;
mod common;
#[path = "../../../../components/pluggable/tests/pluggable/process/mod.rs"]
mod process;

mod configuration;
mod connections;
mod conversation;
mod crypto;
mod endpoints;
mod foreign_peers;
mod guard;
mod handover;
mod hanging_files;
mod hot_reload;
mod http1;
mod invoke_grpc;
mod invoke_http;
mod invoke_streaming;
mod jobs;
mod life;
mod lock;
mod mcp_servers;
mod metrics;
mod middleware;
mod mtls;
mod multicast;
mod operator;
mod placement_by_name;
mod placements;
mod pluggable;
mod pressure;
mod proxy;
mod pubsub_metrics;
mod pubsub_outbox;
mod pubsub_publish;
mod pubsub_retries;
mod reminders;
#[path = "../../../../engines/workflow/tests/simulation/replay.rs"]
mod replay;
mod resiliency;
mod secrets;
mod start_errors;
mod state;
mod status;
mod subscriptions;
mod time_limits;
mod tracing;
mod workflow;
mod workflow_api;
mod workflow_changed;
mod workflow_large;
mod workflow_stuck;
