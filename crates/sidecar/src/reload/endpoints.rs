//! HTTP endpoints that follow their resources.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use outrigger_blocks::invoke::{EndpointSpec, Endpoints};
use outrigger_resources::load::Kind;
use outrigger_resources::{HttpEndpoint, Loaded};

use super::desired::Desired;
use super::{LOG, Reconcile, ReloadError};

/// Fills in what an endpoint takes from secret stores and the environment.
pub type Resolve = Box<dyn Fn(HttpEndpoint) -> BoxFuture<'static, EndpointSpec> + Send + Sync>;

/// Sets up, replaces and ends HTTP endpoints. One that cannot be set up is reported, and its predecessor stays.
pub struct EndpointReconciler {
    endpoints: Arc<Endpoints>,
    resolve: Resolve,
    desired: Desired<HttpEndpoint>,
    /// What was set up last.
    applied: Vec<HttpEndpoint>,
}

impl EndpointReconciler {
    /// For endpoints that were set up from `desired`.
    pub fn new(endpoints: Arc<Endpoints>, resolve: Resolve, desired: Vec<HttpEndpoint>) -> Self {
        Self {
            endpoints,
            resolve,
            applied: desired.clone(),
            desired: Desired::new(desired),
        }
    }

    async fn reconcile(&mut self) {
        let wanted = self.desired.all();
        for old in &self.applied {
            if wanted.iter().all(|endpoint| endpoint.name != old.name) {
                tracing::info!(target: LOG, "HTTP endpoint was removed: {}", old.name);
                self.endpoints.remove(&old.name);
            }
        }
        for endpoint in wanted {
            if self.applied.contains(endpoint) {
                continue;
            }
            if let Err(error) = self.endpoints.put((self.resolve)(endpoint.clone()).await) {
                tracing::error!(target: LOG, "{error}");
            }
        }
        self.applied = wanted.to_vec();
    }
}

#[async_trait]
impl Reconcile for EndpointReconciler {
    fn kind(&self) -> Kind {
        Kind::HttpEndpoint
    }

    async fn listed(&mut self, listed: &Loaded) -> Result<(), ReloadError> {
        self.desired.list(listed.http_endpoints.clone(), &listed.broken);
        self.reconcile().await;
        Ok(())
    }

    async fn changed(&mut self, changed: &Loaded) -> Result<(), ReloadError> {
        for endpoint in &changed.http_endpoints {
            self.desired.put(endpoint.clone());
        }
        self.reconcile().await;
        Ok(())
    }

    async fn ended(&mut self, name: &str) -> Result<(), ReloadError> {
        self.desired.remove(name);
        self.reconcile().await;
        Ok(())
    }
}
