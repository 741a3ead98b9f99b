//! gRPC server and client.

use std::sync::Arc;
use std::time::Duration;

use super::by_status::{ByStatus, Remembered};
use super::{Bytes, Counter, Family, Histogram, Millis, Registry};

/// `dapr_grpc_io_server_*`: unary calls to the API and internal servers, and proxied calls on the API server.
#[derive(Clone, Debug)]
pub struct GrpcServerMetrics {
    side: Option<Arc<Side>>,
}

/// `dapr_grpc_io_client_*` and `dapr_grpc_io_healthprobes_*`: unary calls to the app, other sidecars and
/// the control plane, and proxied calls on the internal server.
#[derive(Clone, Debug)]
pub struct GrpcClientMetrics {
    side: Option<Arc<Side>>,
    probe_count: Family<Counter, 1>,
    probe_roundtrip: Family<Histogram<Millis>, 1>,
    probes: Arc<ByStatus<(Counter, Histogram<Millis>)>>,
}

#[derive(Debug)]
struct Side {
    received: Family<Histogram<Bytes>, 1>,
    sent: Family<Histogram<Bytes>, 1>,
    latency: Family<Histogram<Millis>, 2>,
    completed: Family<Counter, 2>,
    methods: Remembered<GrpcMethod>,
}

/// The handles of one RPC method.
#[derive(Clone, Debug, Default)]
pub struct GrpcMethod {
    inner: Option<Arc<Method>>,
}

#[derive(Debug)]
struct Method {
    side: Arc<Side>,
    name: Box<str>,
    received: Histogram<Bytes>,
    sent: Histogram<Bytes>,
    by_status: ByStatus<(Counter, Histogram<Millis>)>,
}

impl GrpcServerMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let (method, status) = ("grpc_server_method", "grpc_server_status");
        let side = Side {
            received: registry.size(
                "grpc_io_server_received_bytes_per_rpc",
                "Bytes received per served RPC.",
                [method],
            ),
            sent: registry.size(
                "grpc_io_server_sent_bytes_per_rpc",
                "Bytes sent per served RPC.",
                [method],
            ),
            latency: registry.latency(
                "grpc_io_server_server_latency",
                "Time to serve an RPC.",
                [method, status],
            ),
            completed: registry.counter("grpc_io_server_completed_rpcs", "RPCs served.", [method, status]),
            methods: Remembered::default(),
        };
        Self {
            side: side.completed.is_enabled().then(|| Arc::new(side)),
        }
    }

    /// The handles of a method, given its full name with leading slash.
    pub fn method(&self, full_method: &str) -> GrpcMethod {
        Side::method(self.side.as_ref(), full_method)
    }
}

impl GrpcClientMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let (method, status) = ("grpc_client_method", "grpc_client_status");
        let side = Side {
            received: registry.size(
                "grpc_io_client_received_bytes_per_rpc",
                "Bytes received per RPC made.",
                [method],
            ),
            sent: registry.size(
                "grpc_io_client_sent_bytes_per_rpc",
                "Bytes sent per RPC made.",
                [method],
            ),
            latency: registry.latency(
                "grpc_io_client_roundtrip_latency",
                "Time of an RPC made.",
                [method, status],
            ),
            completed: registry.counter("grpc_io_client_completed_rpcs", "RPCs made.", [method, status]),
            methods: Remembered::default(),
        };
        Self {
            side: side.completed.is_enabled().then(|| Arc::new(side)),
            probe_count: registry.counter(
                "grpc_io_healthprobes_completed_count",
                "gRPC health probes of the app completed.",
                [status],
            ),
            probe_roundtrip: registry.latency(
                "grpc_io_healthprobes_roundtrip_latency",
                "Time of a gRPC health probe of the app.",
                [status],
            ),
            probes: Arc::default(),
        }
    }

    /// The handles of a method, given its full name with leading slash.
    pub fn method(&self, full_method: &str) -> GrpcMethod {
        Side::method(self.side.as_ref(), full_method)
    }

    /// Records a health probe of the app.
    pub fn probe_completed(&self, code: tonic::Code, elapsed: Duration) {
        if self.side.is_none() {
            return;
        }
        let status = code_name(code);
        let resolve = || {
            (
                self.probe_count.with([status]),
                self.probe_roundtrip.with([status]),
            )
        };
        self.probes.with(code as i32, resolve, |(count, latency)| {
            count.inc();
            latency.observe(elapsed);
        });
    }
}

impl Side {
    fn method(side: Option<&Arc<Self>>, full_method: &str) -> GrpcMethod {
        let Some(side) = side else {
            return GrpcMethod::default();
        };
        side.methods.get(full_method, || {
            let method = Method {
                side: side.clone(),
                name: full_method.into(),
                received: side.received.with([full_method]),
                sent: side.sent.with([full_method]),
                by_status: ByStatus::default(),
            };
            GrpcMethod {
                inner: Some(Arc::new(method)),
            }
        })
    }
}

impl GrpcMethod {
    /// Records a completed unary call: status, time, and message bytes received and sent by this side.
    pub fn completed(&self, code: tonic::Code, elapsed: Duration, received: u64, sent: u64) {
        if let Some(method) = &self.inner {
            method.received.observe(received);
            method.sent.observe(sent);
            self.stream_completed(code, elapsed);
        }
    }

    /// Records a completed proxied stream, without byte sizes.
    pub fn stream_completed(&self, code: tonic::Code, elapsed: Duration) {
        let Some(method) = &self.inner else { return };
        let resolve = || {
            let labels = [&*method.name, code_name(code)];
            (
                method.side.completed.with(labels),
                method.side.latency.with(labels),
            )
        };
        method.by_status.with(code as i32, resolve, |(count, latency)| {
            count.inc();
            latency.observe(elapsed);
        });
    }
}

/// The code's name as printed by gRPC for Go.
fn code_name(code: tonic::Code) -> &'static str {
    use tonic::Code;
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}
