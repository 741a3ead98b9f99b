//! HTTP endpoints that follow their resources.

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_blocks::invoke::{EndpointSpec, Endpoints};
use outrigger_resources::HttpEndpoint;

use super::{LOG, Reconcile, ReloadError};

/// Fills in what an endpoint takes from secret stores and the environment.
pub type Resolve = Box<dyn Fn(HttpEndpoint) -> BoxFuture<'static, EndpointSpec> + Send + Sync>;

/// Sets up, replaces and ends HTTP endpoints. One that cannot be set up is reported, and its predecessor stays.
pub struct EndpointReconciler {
    endpoints: Arc<Endpoints>,
    resolve: Resolve,
    /// What was set up last.
    applied: Vec<HttpEndpoint>,
}

impl EndpointReconciler {
    /// For endpoints that were set up from `applied`.
    pub fn new(endpoints: Arc<Endpoints>, resolve: Resolve, applied: Vec<HttpEndpoint>) -> Self {
        Self {
            endpoints,
            resolve,
            applied,
        }
    }
}

impl Reconcile for EndpointReconciler {
    type Desired = [HttpEndpoint];

    fn reconcile<'a>(&'a mut self, desired: &'a [HttpEndpoint]) -> BoxFuture<'a, Result<(), ReloadError>> {
        Box::pin(async move {
            for old in &self.applied {
                if desired.iter().all(|endpoint| endpoint.name != old.name) {
                    tracing::info!(target: LOG, "HTTP endpoint was removed: {}", old.name);
                    self.endpoints.remove(&old.name);
                }
            }
            for endpoint in desired {
                if self.applied.contains(endpoint) {
                    continue;
                }
                if let Err(error) = self.endpoints.put((self.resolve)(endpoint.clone()).await) {
                    tracing::error!(target: LOG, "{error}");
                }
            }
            self.applied = desired.to_vec();
            Ok(())
        })
    }
}
