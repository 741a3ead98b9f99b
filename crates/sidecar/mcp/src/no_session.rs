//! In place of connections, in a build without a client.

use std::sync::Arc;

use outrigger_resources::mcp_server::McpServer;
use serde_json::{Map, Value};

use crate::Surroundings;

/// No server can be reached.
pub(crate) enum Session {}

impl Session {
    pub(crate) async fn open(_: Arc<McpServer>, _: Arc<Surroundings>) -> Result<Self, String> {
        Err("this daprd was built without the feature mcp: build it with that feature".to_owned())
    }

    pub(crate) async fn tools(&self) -> Result<Vec<Value>, String> {
        match *self {}
    }

    pub(crate) async fn call(&self, _: &str, _: Option<Map<String, Value>>) -> Result<String, String> {
        match *self {}
    }
}
