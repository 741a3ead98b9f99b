//! The servers, started and drained together.

use std::sync::Arc;

use outrigger_accept::{Accept as _, Admission};
use outrigger_api::http::PublicApi;
use outrigger_http2::limits::HEADER_LIST;
use outrigger_identity::Identity;
use outrigger_runtime::life::{Lifecycle, Readiness, Stage, Tasks};
use outrigger_telemetry::metrics::{Metrics, Page};
use outrigger_transport::listen::{self, Handler, HeldAnswers, Listener, Options, Versions};
use tokio::runtime::Handle;

use super::LOG;
use super::context::{Apis, SidecarContext};
use super::ports::{Claimed, PortsError, Sockets};
use crate::config::Config;
use crate::profiling::{self, Profiling};
use crate::status::Status;

/// Handlers for bound sockets.
pub(super) struct Servers {
    sockets: Sockets,
    apis: Apis,
    internal_tls: Option<Arc<rustls::ServerConfig>>,
    metrics: Arc<Metrics>,
    /// Additional pages of the metrics port.
    pages: Arc<[Page]>,
    control: Handle,
    head_limit: usize,
    http_versions: Versions,
}

/// Running servers.
struct Serving {
    /// Servers that drain their calls.
    calls: Tasks,
    /// Servers for telemetry, which run until the process ends.
    telemetry: Tasks,
}

impl Servers {
    pub(super) fn new(
        config: &Config,
        control: &Handle,
        sockets: Sockets,
        apis: Apis,
        context: &SidecarContext,
        identity: &Option<Identity>,
        status: Status,
    ) -> Self {
        Self {
            sockets,
            apis,
            internal_tls: identity.as_ref().map(Identity::server_config),
            metrics: Arc::clone(context.metrics.all()),
            pages: status.pages(),
            control: control.clone(),
            head_limit: config.api.read_buffer_size,
            http_versions: match config.api.disable_h2c {
                true => Versions::Http1,
                false => Versions::Both,
            },
        }
    }

    /// Starts accepting connections, until `lifecycle` ends it.
    ///
    /// # Errors
    /// [`PortsError`] if another process was faster.
    pub(super) fn start(
        &mut self,
        readiness: &Readiness,
        lifecycle: &mut Lifecycle,
    ) -> Result<(), PortsError> {
        let serving = Serving {
            calls: lifecycle.tasks(Stage::Calls, "calls in flight"),
            telemetry: lifecycle.tasks(Stage::Background, "the servers of metrics and profiles"),
        };
        let metrics_served = readiness.condition("metrics-exporter");
        let grpc_served = readiness.condition("grpc-api-server");
        let internal_served = readiness.condition("grpc-internal-server");
        self.start_telemetry(&serving)?;
        metrics_served.met();
        let head_limit = u32::try_from(self.head_limit).unwrap_or(u32::MAX);
        let plain = |versions| Options {
            versions,
            tls: None,
            head_limit: self.head_limit,
            header_list_limit: head_limit.saturating_add(4096),
            connections: listen::api_connections(),
            held: HeldAnswers::default(),
            unfinished: listen::unfinished_bounds(self.apis.http.max_body),
        };
        let grpc = Options {
            header_list_limit: grpc_header_list(head_limit),
            ..plain(Versions::Http2)
        };
        let internal = Options {
            tls: self.internal_tls.clone(),
            connections: listen::peer_connections(),
            ..grpc.clone()
        };
        let public_options = Options {
            connections: listen::public_connections(),
            ..plain(Versions::Both)
        };
        let sockets = &mut self.sockets;
        let public = Arc::new(PublicApi(Arc::clone(&self.apis.http)));
        serving.all(
            std::mem::take(&mut sockets.grpc),
            &self.apis.grpc,
            &grpc,
            "gRPC server",
        )?;
        grpc_served.met();
        serving.all(
            std::mem::take(&mut sockets.public),
            &public,
            &public_options,
            "Public HTTP server",
        )?;
        serving.all(
            std::mem::take(&mut sockets.http),
            &self.apis.http,
            &plain(self.http_versions),
            "HTTP server",
        )?;
        serving.all(
            std::mem::take(&mut sockets.internal),
            &self.apis.internal,
            &internal,
            "gRPC server",
        )?;
        internal_served.met();
        Ok(())
    }

    /// Starts the metrics and profiling servers.
    fn start_telemetry(&mut self, serving: &Serving) -> Result<(), PortsError> {
        // Their sockets belong to the control threads, which outlive the data plane.
        let _control = self.control.enter();
        let sockets = &mut self.sockets;
        for listener in std::mem::take(&mut sockets.metrics).listen()? {
            if let Listener::Tcp(listener) = listener {
                let address = listener
                    .local_addr()
                    .map_or_else(|e| e.to_string(), |a| a.to_string());
                tracing::info!(target: "dapr.metrics", "metrics server started on {address}/");
                let (metrics, pages) = (Arc::clone(&self.metrics), Arc::clone(&self.pages));
                let stop = serving.telemetry.stop.clone();
                let server = outrigger_telemetry::metrics::serve(listener, metrics, pages, stop);
                serving.telemetry.tasks.spawn_on(server, &self.control);
            }
        }
        for listener in std::mem::take(&mut sockets.profiling).listen()? {
            if let Listener::Tcp(listener) = listener {
                let profiling = Arc::new(Profiling::new(self.control.clone()));
                let server = profiling::serve(listener, profiling, serving.telemetry.stop.clone());
                serving.telemetry.tasks.spawn_on(server, &self.control);
            }
        }
        Ok(())
    }
}

/// Maximum size of a header list on gRPC servers, given `--read-buffer-size`. A request head allowed over
/// HTTP/1.1 is allowed here too: HTTP/2 counts each field with 32 more bytes than its text, and few fields
/// are shorter than that.
fn grpc_header_list(flag: u32) -> u32 {
    flag.saturating_mul(2).max(HEADER_LIST)
}

impl Serving {
    fn all<H: Handler>(
        &self,
        claimed: Claimed,
        handler: &Arc<H>,
        options: &Options,
        name: &str,
    ) -> Result<(), PortsError> {
        let admission = Admission::new(options.connections);
        for listener in claimed.listen()? {
            let address = listener.describe();
            match listener.port() {
                Some(_) => tracing::info!(target: LOG, "{name} listening on TCP address: {address}"),
                None => tracing::info!(target: LOG, "{name} listening on UNIX socket: {address}"),
            }
            let server = listen::serve(
                listener,
                admission.clone(),
                Arc::clone(handler),
                options.clone(),
                self.calls.stop.clone(),
            );
            self.calls.tasks.spawn(server);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_header_list_limit_without_overflow() {
        let limits = [0, 4 << 10, 32 << 10, 64 << 10, 4 << 20, u32::MAX].map(grpc_header_list);
        assert_eq!(
            limits,
            [HEADER_LIST, HEADER_LIST, 64 << 10, 128 << 10, 8 << 20, u32::MAX]
        );
    }
}
