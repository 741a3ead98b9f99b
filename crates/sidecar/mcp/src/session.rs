//! The connection to a server: it is opened on demand, checked by pings, and opened again once if it was
//! closed.

use std::sync::Arc;

use outrigger_resources::mcp_server::{Endpoint, McpServer};
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest, Implementation, JsonObject,
    PaginatedRequestParams, PingRequest,
};
use rmcp::service::{ClientInitializeError, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{Peer, RoleClient, ServiceError, serve_client};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, interval_at, timeout};
use tokio_util::sync::DropGuard;
use tokio_util::task::AbortOnDropHandle;

use crate::http::{HttpClient, HttpError};
use crate::limits::{MAX_ANSWER, MAX_PAGES, PING, PING_TIMEOUT};
use crate::sse::SseTransport;
use crate::{LOG, Surroundings, stdio};

type Running = RunningService<RoleClient, ClientConfig>;

/// The connection to one server.
pub(crate) struct Session {
    spec: Arc<McpServer>,
    with: Arc<Surroundings>,
    current: Mutex<Option<Connection>>,
}

#[derive(Clone)]
struct Connection {
    service: Arc<Running>,
    _pings: Arc<AbortOnDropHandle<()>>,
    /// Ends a subprocess.
    _child: Option<Arc<DropGuard>>,
}

/// Why a call failed.
enum CallError {
    /// The connection was closed.
    Closed,
    Other(String),
}

impl From<ServiceError> for CallError {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::TransportClosed => Self::Closed,
            ServiceError::McpError(error) => Self::Other(error.message.into_owned()),
            ServiceError::TransportSend(error) => Self::Other(transport_text(&*error.error)),
            error => Self::Other(error.to_string()),
        }
    }
}

impl Session {
    /// Connects.
    pub(crate) async fn open(spec: Arc<McpServer>, with: Arc<Surroundings>) -> Result<Self, String> {
        let session = Self {
            spec,
            with,
            current: Mutex::default(),
        };
        session.connected().await?;
        Ok(session)
    }

    /// The tools of the server as JSON, from all pages.
    pub(crate) async fn tools(&self) -> Result<Vec<Value>, String> {
        let connection = self.connected().await?;
        let (mut tools, mut cursor, mut size) = (Vec::new(), None, 0);
        for _ in 0..MAX_PAGES {
            let params = cursor.map(|cursor| {
                let mut params = PaginatedRequestParams::default();
                params.cursor = Some(cursor);
                params
            });
            let page = connection.service.list_tools(params).await;
            let page = page.map_err(|error| match CallError::from(error) {
                CallError::Closed => "ListTools failed: connection closed".to_owned(),
                CallError::Other(why) => format!("ListTools failed: {why}"),
            })?;
            size += serde_json::to_vec(&page.tools).map_or(0, |json| json.len());
            if size > MAX_ANSWER {
                return Err(format!("the list of tools is larger than {MAX_ANSWER} bytes"));
            }
            tools.extend(
                page.tools
                    .iter()
                    .filter_map(|tool| serde_json::to_value(tool).ok()),
            );
            cursor = page.next_cursor.filter(|cursor| !cursor.is_empty());
            if cursor.is_none() {
                return Ok(tools);
            }
        }
        Err(format!(
            "MCP server returned more than {MAX_PAGES} pages of tools"
        ))
    }

    /// Calls a tool; returns the JSON of its result.
    pub(crate) async fn call(&self, tool: &str, arguments: Option<JsonObject>) -> Result<String, String> {
        let server = &self.spec.name;
        let connection = self.connected().await;
        let connection = connection.map_err(|why| format!("call-tool: session for {server:?}: {why}"))?;
        let mut params = CallToolRequestParams::new(tool.to_owned());
        params.arguments = arguments;
        match called(&connection, params.clone()).await {
            Ok(result) => return Ok(result),
            Err(CallError::Other(why)) => {
                return Err(format!("call-tool: initial call failed for {server:?}: {why}"));
            }
            Err(CallError::Closed) => {}
        }
        tracing::warn!(target: LOG, "call-tool: connection lost for {server:?}, reconnecting");
        let connection = self.connected().await;
        let connection =
            connection.map_err(|why| format!("call-tool: reconnect failed for {server:?}: {why}"))?;
        called(&connection, params).await.map_err(|error| {
            let why = match error {
                CallError::Closed => "connection closed".to_owned(),
                CallError::Other(why) => why,
            };
            format!("call-tool: retry call failed for {server:?} after reconnect: {why}")
        })
    }

    /// The open connection, or a new one.
    async fn connected(&self) -> Result<Connection, String> {
        let mut current = self.current.lock().await;
        if let Some(connection) = &*current
            && !connection.service.is_closed()
            && !connection.service.peer().is_transport_closed()
        {
            return Ok(connection.clone());
        }
        *current = None;
        let connection = Box::pin(self.connect()).await?;
        *current = Some(connection.clone());
        Ok(connection)
    }

    async fn connect(&self) -> Result<Connection, String> {
        let Endpoint {
            streamable_http,
            sse,
            stdio,
        } = &self.spec.endpoint;
        let (name, namespace) = (&self.spec.name, &self.spec.namespace);
        let (service, child) = if let Some(server) = streamable_http {
            let client = HttpClient::new(server, &self.with, namespace).await?;
            let config = StreamableHttpClientTransportConfig::with_uri(server.url.as_str())
                .max_sse_event_size(MAX_ANSWER)
                .max_json_response_size(MAX_ANSWER);
            let transport = StreamableHttpClientTransport::with_client(client, config);
            (serve_client(client_info(), transport).await, None)
        } else if let Some(server) = sse {
            let client = HttpClient::new(server, &self.with, namespace).await?;
            let transport = SseTransport::open(client, &server.url).await;
            let transport = transport.map_err(|error| http_text(&error))?;
            (serve_client(client_info(), transport).await, None)
        } else if let Some(server) = stdio {
            let (pipes, child) = stdio::spawn(name, server, &self.with.tasks)?;
            (serve_client(client_info(), pipes).await, Some(Arc::new(child)))
        } else {
            return Err("no transport is set".to_owned());
        };
        let service = service.map_err(|error| match &error {
            ClientInitializeError::TransportError { error, .. } => transport_text(&*error.error),
            error => error.to_string(),
        })?;
        let pings = tokio::spawn(ping(
            name.clone(),
            service.peer().clone(),
            service.cancellation_token(),
        ));
        Ok(Connection {
            service: Arc::new(service),
            _pings: Arc::new(AbortOnDropHandle::new(pings)),
            _child: child,
        })
    }
}

fn client_info() -> ClientConfig {
    ClientConfig::new(
        ClientCapabilities::default(),
        Implementation::new("dapr", "v1alpha1"),
    )
}

async fn called(connection: &Connection, params: CallToolRequestParams) -> Result<String, CallError> {
    let result = connection.service.call_tool(params).await?;
    serde_json::to_string(&result).map_err(|error| CallError::Other(error.to_string()))
}

/// Closes the connection if the server does not answer a ping.
async fn ping(name: String, peer: Peer<RoleClient>, close: rmcp::service::RunningServiceCancellationToken) {
    let mut ticks = interval_at(Instant::now() + PING, PING);
    loop {
        ticks.tick().await;
        let request = peer.send_request(ClientRequest::PingRequest(PingRequest::default()));
        let why = match timeout(PING_TIMEOUT, request).await {
            // Any answer will do, even that the method is not known.
            Ok(Ok(_) | Err(ServiceError::McpError(_))) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {PING_TIMEOUT:?}"),
        };
        tracing::warn!(target: LOG, "MCPServer {name}: a ping failed, the connection is closed: {why}");
        return close.cancel();
    }
}

/// The text of a transport's error, without URLs, which may contain secrets.
fn transport_text(error: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    match error.downcast_ref::<HttpError>() {
        Some(error) => http_text(error),
        None => error.to_string(),
    }
}

fn http_text(error: &HttpError) -> String {
    match error {
        HttpError::Client(error) => match error.status() {
            Some(status) => format!("it answered {status}"),
            None => outrigger_webclient::causes(error),
        },
        error => error.to_string(),
    }
}
