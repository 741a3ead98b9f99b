//! Servers of the Model Context Protocol (MCP), from `MCPServer` resources. Their tools are called as workflows,
//! which this sidecar runs itself: `dapr.internal.mcp.<server>.ListTools` and `.CallTool.<tool>`.
//!
//! 1. `servers`: [`McpServers`], which registers the servers of the resources, and answers their work.
//! 2. `workflow`: the workflows, as functions of the history.
//! 3. `server`: a registered server: its tools, and the activities.
//! 4. `session`, `http`, `sse`, `stdio`, `auth`: the connection to a server, over the official SDK.

#[cfg(feature = "client")]
mod auth;
#[cfg(feature = "client")]
mod http;
pub mod limits;
mod names;
mod server;
mod servers;
#[cfg(feature = "client")]
mod session;
#[cfg(not(feature = "client"))]
#[path = "no_session.rs"]
mod session;
#[cfg(feature = "client")]
mod sse;
#[cfg(feature = "client")]
mod stdio;
mod workflow;

use std::sync::Arc;

use futures::future::BoxFuture;
use outrigger_identity::Identity;
use outrigger_resources::SecretKeyRef;
use outrigger_resources::mcp_server::McpServer;
use tokio_util::task::TaskTracker;

pub use servers::{Failure, McpServers};

/// Target of the log lines.
const LOG: &str = "dapr.runtime.mcp";

/// Looks up a secret: the store, the namespace of the resource, and the reference.
pub type SecretLookup =
    Arc<dyn Fn(String, String, SecretKeyRef) -> BoxFuture<'static, Result<String, String>> + Send + Sync>;
/// Resolves the references of a resource to secrets and to the environment.
pub type Resolve = Arc<dyn Fn(McpServer) -> BoxFuture<'static, McpServer> + Send + Sync>;

/// The parts of the sidecar that servers use.
pub struct Surroundings {
    /// Resolves headers and the environment of subprocesses.
    pub resolve: Resolve,
    /// Looks up the secrets of OAuth 2.0 clients.
    pub secret: SecretLookup,
    /// This sidecar's identity; `None` without mTLS.
    pub identity: Option<Identity>,
    /// Whether the sidecar runs in a cluster.
    pub kubernetes: bool,
    /// Maximum size of the output of an activity, in bytes: workflows stall near the maximum body size.
    pub max_output: usize,
    /// Background tasks, which end soon after [`McpServers::end`].
    pub tasks: TaskTracker,
}
