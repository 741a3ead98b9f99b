//! Reconciles HTTP endpoints with their resources.

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_blocks::invoke::{EndpointError, EndpointSpec, Endpoints};
use outrigger_resources::{HttpEndpoint, Kind};
use outrigger_wire::operator::v1 as wire;

use super::{LOG, Reconcile, ReloadError, Reloaded, Running};
use crate::operator::{Change, Listing, Opening, OperatorResource, Requester, decode_all, opening};
use crate::sidecar::{self, SidecarError};
use crate::status::findings::{Finding, Findings, Gravity};

/// Resolves an endpoint's references to secret stores and to the environment.
pub type Resolve = Arc<dyn Fn(HttpEndpoint) -> BoxFuture<'static, EndpointSpec> + Send + Sync>;

/// Sets up, replaces and removes HTTP endpoints. If one cannot be set up, the problem is reported and its
/// predecessor stays.
pub(crate) struct EndpointReconciler {
    endpoints: Arc<Endpoints>,
    resolve: Resolve,
    /// The endpoints set up last.
    applied: Vec<HttpEndpoint>,
    findings: Arc<Findings>,
}

impl OperatorResource for HttpEndpoint {
    const PLURAL: &'static str = "HTTP endpoints";

    fn watch(mut requester: Requester) -> Opening {
        let request = wire::HttpEndpointUpdateRequest {
            namespace: requester.namespace,
        };
        let call = async move { requester.client.http_endpoint_update(request).await };
        opening(call, |event| Change {
            // Operators of v1.17 send no type, and report no deletions: the next list reveals them.
            event: match event.r#type() {
                wire::ResourceEventType::Unknown => wire::ResourceEventType::Updated,
                known => known,
            },
            json: event.http_endpoints,
        })
    }

    fn list(mut requester: Requester) -> Listing {
        let request = wire::ListHttpEndpointsRequest {
            namespace: requester.namespace,
        };
        Box::pin(async move {
            let listed = requester.client.list_http_endpoints(request).await?;
            Ok(listed.map(|listed| listed.http_endpoints))
        })
    }

    fn decode_secrets(&mut self) {
        let tls = self.tls.iter_mut();
        let documents = tls.flat_map(|tls| [&mut tls.root_ca, &mut tls.certificate, &mut tls.private_key]);
        let all = self.headers.iter_mut().chain(documents.flatten());
        decode_all(&mut self.secret_store, all, &self.name);
    }
}

impl Reloaded for HttpEndpoint {
    type Reconciler = EndpointReconciler;

    fn start<'a>(running: &'a Running, loaded: &'a [Self]) -> BoxFuture<'a, Result<(), SidecarError>> {
        Box::pin(async move {
            tracing::info!(target: sidecar::LOG, "Loading endpoints…");
            for endpoint in loaded {
                tracing::info!(target: sidecar::LOG, "Found http endpoint: {}", endpoint.name);
                let spec = (running.resolve)(endpoint.clone()).await;
                let result = running.endpoints.put(spec);
                if let Err(error) = &result {
                    tracing::error!(target: sidecar::LOG, "{error}");
                }
                report(&running.findings, endpoint, result);
            }
            tracing::info!(target: sidecar::LOG, "Waiting for all outstanding http endpoints to be processed…");
            tracing::info!(target: sidecar::LOG, "All outstanding http endpoints processed");
            Ok(())
        })
    }

    fn reconciler(running: &Running, loaded: &[Self]) -> EndpointReconciler {
        EndpointReconciler {
            endpoints: Arc::clone(&running.endpoints),
            resolve: Arc::clone(&running.resolve),
            applied: loaded.to_vec(),
            findings: Arc::clone(&running.findings),
        }
    }
}

/// Shows on the status page why an endpoint could not be set up.
fn report(findings: &Findings, endpoint: &HttpEndpoint, result: Result<(), EndpointError>) {
    let found = result.err().map(|error| Finding {
        gravity: Gravity::Error,
        place: endpoint.source.to_string(),
        text: error.to_string(),
    });
    findings.set(Kind::HttpEndpoint.name(), &endpoint.name, found);
}

impl Reconcile for EndpointReconciler {
    type Desired = [HttpEndpoint];

    fn reconcile<'a>(&'a mut self, desired: &'a [HttpEndpoint]) -> BoxFuture<'a, Result<(), ReloadError>> {
        Box::pin(async move {
            for old in &self.applied {
                if desired.iter().all(|endpoint| endpoint.name != old.name) {
                    tracing::info!(target: LOG, "HTTP endpoint was removed: {}", old.name);
                    self.endpoints.remove(&old.name);
                    report(&self.findings, old, Ok(()));
                }
            }
            for endpoint in desired {
                if self.applied.contains(endpoint) {
                    continue;
                }
                let result = self.endpoints.put((self.resolve)(endpoint.clone()).await);
                if let Err(error) = &result {
                    tracing::error!(target: LOG, "{error}");
                }
                report(&self.findings, endpoint, result);
            }
            self.applied = desired.to_vec();
            Ok(())
        })
    }
}
