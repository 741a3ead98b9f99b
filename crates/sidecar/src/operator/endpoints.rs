//! HTTP endpoints that come and change while the sidecar runs. None is reported to go.

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_resources::HttpEndpoint;
use outrigger_resources::load::Kind;
use tokio_util::sync::CancellationToken;

use super::{LOG, Operator, OperatorError, Update};
use crate::blocks::invoke::{EndpointSpec, Endpoints};

/// Makes an endpoint ready for use.
pub type Resolve = Box<dyn Fn(HttpEndpoint) -> BoxFuture<'static, EndpointSpec> + Send + Sync>;

/// Brings the endpoints of a sidecar to what the operator has.
pub struct EndpointFollower {
    /// Whom to ask.
    pub operator: Operator,
    /// What to change.
    pub endpoints: Arc<Endpoints>,
    /// Fills in what an endpoint takes from secret stores and the environment.
    pub resolve: Resolve,
}

impl EndpointFollower {
    /// Follows the operator until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let _stopped = stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        let mut updates = self.operator.endpoint_updates();
        loop {
            let loaded = match updates.next().await {
                Update::Began => self.operator.endpoints().await,
                Update::Said(event) => {
                    let object = (Kind::HttpEndpoint, event.http_endpoints);
                    self.operator.read(std::iter::once(object))
                }
            };
            self.put(loaded.map(|loaded| loaded.http_endpoints)).await;
        }
    }

    async fn put(&self, endpoints: Result<Vec<HttpEndpoint>, OperatorError>) {
        match endpoints {
            Ok(endpoints) => {
                for endpoint in endpoints {
                    if let Err(error) = self.endpoints.put((self.resolve)(endpoint).await) {
                        tracing::error!(target: LOG, "{error}");
                    }
                }
            }
            Err(error) => tracing::warn!(target: LOG, "{error}; HTTP endpoints stay as they are"),
        }
    }
}
