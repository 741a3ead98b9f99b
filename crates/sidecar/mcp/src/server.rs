//! A registered server: its tools as listed at registration, and its connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outrigger_resources::mcp_server::{DEFAULT_TIMEOUT, McpServer};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::Surroundings;
use crate::limits::{MAX_SCHEMA, MAX_SCHEMAS};
use crate::names::{Activity, CallInput};
use crate::session::Session;
use crate::workflow::error_result;

/// A server whose tools are known.
pub(crate) struct Server {
    pub(crate) spec: Arc<McpServer>,
    /// Names of the tools, and of the arguments that each requires.
    tools: HashMap<String, Vec<String>>,
    /// The JSON of `ListToolsResult`.
    listed: String,
    session: Session,
    max_output: usize,
}

impl Server {
    /// Connects to a server and lists its tools.
    pub(crate) async fn register(spec: Arc<McpServer>, with: Arc<Surroundings>) -> Result<Self, String> {
        let (name, limit, max_output) = (spec.name.clone(), time_limit(&spec), with.max_output);
        let registering = async {
            let failed = |what: &str, why| format!("MCPServer {name:?}: failed to {what}: {why}");
            let session = Session::open(Arc::clone(&spec), with).await;
            let session = session.map_err(|why| failed("connect", why))?;
            let tools = session
                .tools()
                .await
                .map_err(|why| failed("discover tools", why))?;
            Ok((session, tools))
        };
        let (session, tools) = within(limit, registering).await.unwrap_or_else(|| {
            let why = format!("MCPServer {name:?}: failed to connect: no answer within {limit:?}");
            Err(why)
        })?;
        Ok(Self {
            spec,
            tools: required(&tools),
            listed: json!({ "tools": tools }).to_string(),
            session,
            max_output,
        })
    }

    /// Whether the server listed this tool.
    pub(crate) fn has(&self, tool: &str) -> bool {
        self.tools.contains_key(tool)
    }

    /// Runs an activity; returns its output.
    pub(crate) async fn run(&self, activity: Activity, input: &str) -> String {
        let output = match activity {
            Activity::ListTools => self.listed.clone(),
            Activity::CallTool => {
                let called = self.call(input).await;
                called.unwrap_or_else(|why| error_result(&why))
            }
        };
        if output.len() <= self.max_output {
            return output;
        }
        error_result(&format!(
            "the answer of {:?} has {} bytes, more than {}: request less, or raise --max-body-size",
            self.spec.name,
            output.len(),
            self.max_output
        ))
    }

    async fn call(&self, input: &str) -> Result<String, String> {
        let CallInput { tool, arguments } = serde_json::from_str(input)
            .map_err(|error| format!("call-tool: failed to parse input: {error}"))?;
        let is_given = |name: &String| arguments.as_ref().is_some_and(|given| given.contains_key(name));
        let required = self.tools.get(&tool).map(Vec::as_slice).unwrap_or_default();
        let missing: Vec<_> = required.iter().filter(|name| !is_given(name)).cloned().collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            return Err(format!(
                "call-tool: missing required argument(s) for tool {tool:?}: {missing}"
            ));
        }
        let limit = time_limit(&self.spec);
        let called = within(limit, self.session.call(&tool, arguments)).await;
        let called = called.unwrap_or_else(|| {
            let server = &self.spec.name;
            Err(format!(
                "call-tool: initial call failed for {server:?}: no answer within {limit:?}"
            ))
        });
        called.map_err(|why| format!("{why} (tool {tool:?})"))
    }
}

/// The required arguments of each tool. Those of an excessive schema are not checked.
fn required(tools: &[Value]) -> HashMap<String, Vec<String>> {
    let tools = tools.iter().enumerate().filter_map(|(index, tool)| {
        let (name, schema) = (tool["name"].as_str()?, &tool["inputSchema"]);
        let is_checked = index < MAX_SCHEMAS && schema.to_string().len() <= MAX_SCHEMA;
        let required = schema["required"].as_array().filter(|_| is_checked);
        let required = required.into_iter().flatten().filter_map(Value::as_str);
        Some((name.to_owned(), required.map(str::to_owned).collect()))
    });
    tools.collect()
}

/// The time limit of a call; 0 is no limit. [`McpServer::check`] reports a mistyped one.
fn time_limit(spec: &McpServer) -> Duration {
    let limit = spec.endpoint.http().and_then(|http| http.timeout().ok());
    limit.unwrap_or(DEFAULT_TIMEOUT)
}

/// `None` if the work takes longer than `limit`.
async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    match limit.is_zero() {
        true => Some(work.await),
        false => timeout(limit, work).await.ok(),
    }
}

#[cfg(test)]
#[cfg(feature = "client")]
mod tests;
