//! Whole sidecars, their apps and their certificate authority in one process, on ports of their own: a file per
//! behaviour.

#![expect(unreachable_pub, reason = "modules of one binary")]

mod common;

mod connections;
mod endpoints;
mod guard;
mod invoke_grpc;
mod invoke_http;
mod invoke_streaming;
mod life;
mod metrics;
mod mtls;
mod multicast;
mod pressure;
mod proxy;
mod resiliency;
mod tracing;
