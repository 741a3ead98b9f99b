//! Name resolution of this sidecar.

use std::sync::Arc;

use outrigger_discovery::{FatalError, Options};
use outrigger_transport::peer::Peers;
use tokio::runtime::Handle;
use tokio::sync::mpsc::Receiver;

use super::LOG;
use super::context::SidecarContext;
use super::settings;
use crate::config::Config;

pub(super) struct Discovery {
    options: Options,
    fatal: Receiver<FatalError>,
}

impl Discovery {
    /// `internal_port` is the port announced to other sidecars.
    pub(super) fn new(config: &Config, context: &SidecarContext, internal_port: u16) -> Self {
        let (options, fatal) =
            settings::resolver(config, &context.settings, context.host.clone(), internal_port);
        Self { options, fatal }
    }

    /// Starts the resolver. If that fails, the error is reported and calls to other apps fail until its cause
    /// is removed.
    pub(super) async fn start(&self, control: &Handle, peers: &Arc<Peers>) {
        let options = self.options.clone();
        let name = options.component.clone();
        match control.spawn(outrigger_discovery::build(options)).await {
            Ok(Ok(resolver)) => {
                tracing::info!(target: LOG, "Initialized name resolution to {name}");
                peers.set_resolver(resolver);
            }
            Ok(Err(error)) => tracing::error!(
                target: LOG,
                "failed to initialize name resolution {name}: {error}; calls to other apps will fail"
            ),
            Err(error) => tracing::error!(target: LOG, "name resolution did not start: {error}"),
        }
    }

    /// An error that ends the sidecar, such as another sidecar in its place.
    pub(super) async fn failed(&mut self) -> Option<FatalError> {
        self.fatal.recv().await
    }
}
