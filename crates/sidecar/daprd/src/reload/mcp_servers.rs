//! Reconciles MCP servers with their resources.

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_mcp::McpServers;
use outrigger_resources::mcp_server::McpServer;
use outrigger_resources::{Kind, Problem};
use outrigger_wire::operator::v1 as wire;

use super::{Reconcile, ReloadError, Reloaded, Running};
use crate::operator::{Change, Listing, Opening, OperatorResource, Requester, decode_all, opening};
use crate::sidecar::SidecarError;
use crate::status::findings::{Finding, Findings};

/// Registers, replaces and removes MCP servers.
pub(crate) struct McpReconciler {
    servers: Arc<McpServers>,
    findings: Arc<Findings>,
}

impl OperatorResource for McpServer {
    const PLURAL: &'static str = "MCP servers";

    fn watch(mut requester: Requester) -> Opening {
        let request = wire::McpServerUpdateRequest {
            namespace: requester.namespace,
        };
        let call = async move { requester.client.mcp_server_update(request).await };
        opening(call, |event| Change {
            event: event.r#type(),
            json: event.mcp_server,
        })
    }

    fn list(mut requester: Requester) -> Listing {
        let request = wire::ListMcpServersRequest {
            namespace: requester.namespace,
        };
        Box::pin(async move {
            let listed = requester.client.list_mcp_servers(request).await?;
            Ok(listed.map(|listed| listed.mcp_servers))
        })
    }

    fn decode_secrets(&mut self) {
        let mut store = self.endpoint.secret_store().to_owned();
        decode_all(&mut store, self.endpoint.items_mut(), &self.name);
        if !store.is_empty() {
            return;
        }
        // The operator has looked them up.
        for item in self
            .endpoint
            .items_mut()
            .iter_mut()
            .filter(|item| item.value.is_some())
        {
            item.secret = None;
        }
    }
}

impl Reloaded for McpServer {
    type Reconciler = McpReconciler;

    fn start<'a>(running: &'a Running, loaded: &'a [Self]) -> BoxFuture<'a, Result<(), SidecarError>> {
        Box::pin(async move {
            let set = running.mcp.set(loaded).await;
            report(&running.findings, &set);
            set.map(|_| ()).map_err(|problem| {
                tracing::error!(target: crate::sidecar::LOG, "{problem}");
                SidecarError::McpServer(problem.what)
            })
        })
    }

    fn reconciler(running: &Running, _: &[Self]) -> McpReconciler {
        McpReconciler {
            servers: Arc::clone(&running.mcp),
            findings: Arc::clone(&running.findings),
        }
    }
}

/// Shows on the status page which servers are ignored.
fn report(findings: &Findings, set: &Result<Vec<Problem>, Problem>) {
    let problems = set.as_ref().map_or_else(std::slice::from_ref, Vec::as_slice);
    findings.set(Kind::McpServer.name(), "", problems.iter().map(Finding::from));
}

impl Reconcile for McpReconciler {
    type Desired = [McpServer];

    fn reconcile<'a>(&'a mut self, desired: &'a [McpServer]) -> BoxFuture<'a, Result<(), ReloadError>> {
        Box::pin(async move {
            let set = self.servers.set(desired).await;
            report(&self.findings, &set);
            match set {
                Ok(_) => Ok(()),
                Err(problem) => Err(ReloadError::McpServer(problem.to_string())),
            }
        })
    }
}
