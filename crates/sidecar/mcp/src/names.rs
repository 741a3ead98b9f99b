//! Names of the workflows and activities of a server, and the input of its call activity.

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Prefix of all names.
const PREFIX: &str = "dapr.internal.mcp.";

/// The operation of a workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method<'a> {
    /// Lists the tools.
    ListTools,
    /// Calls this tool.
    CallTool(&'a str),
}

impl<'a> Method<'a> {
    /// The method of the workflow `name`, if it belongs to `server`.
    pub(crate) fn of(server: &str, name: &'a str) -> Option<Self> {
        match of_server(server, name)? {
            "ListTools" => Some(Self::ListTools),
            method => method.strip_prefix("CallTool.").map(Self::CallTool),
        }
    }
}

/// The operation of an activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    ListTools,
    CallTool,
}

impl Activity {
    /// The activity `name`, if it belongs to `server`.
    pub(crate) fn of(server: &str, name: &str) -> Option<Self> {
        match of_server(server, name)? {
            "list-tools" => Some(Self::ListTools),
            "call-tool" => Some(Self::CallTool),
            _ => None,
        }
    }

    pub(crate) fn name(self, server: &str) -> String {
        let activity = match self {
            Self::ListTools => "list-tools",
            Self::CallTool => "call-tool",
        };
        format!("{PREFIX}{server}.{activity}")
    }
}

fn of_server<'a>(server: &str, name: &'a str) -> Option<&'a str> {
    name.strip_prefix(PREFIX)?.strip_prefix(server)?.strip_prefix('.')
}

/// The input of the call activity.
#[derive(Debug, Deserialize)]
pub(crate) struct CallInput {
    #[serde(rename = "tool_name")]
    pub(crate) tool: String,
    #[serde(default)]
    pub(crate) arguments: Option<Map<String, Value>>,
}

/// The text of a [`CallInput`].
pub(crate) fn call_input(tool: &str, arguments: Option<&Map<String, Value>>) -> String {
    let mut input = json!({"tool_name": tool});
    if let Some(arguments) = arguments.filter(|arguments| !arguments.is_empty()) {
        input["arguments"] = Value::Object(arguments.clone());
    }
    input.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_servers_and_methods() {
        let of = |server, name| Method::of(server, name);
        assert_eq!(of("a", "dapr.internal.mcp.a.ListTools"), Some(Method::ListTools));
        assert_eq!(
            of("a.b", "dapr.internal.mcp.a.b.ListTools"),
            Some(Method::ListTools)
        );
        let tool = "dapr.internal.mcp.a.CallTool.x.y";
        assert_eq!(of("a", tool), Some(Method::CallTool("x.y")));
        for other in [
            "dapr.internal.mcp.ab.ListTools",
            "dapr.internal.mcp.a.Other",
            "a.ListTools",
        ] {
            assert_eq!(of("a", other), None, "{other}");
        }
        for activity in [Activity::ListTools, Activity::CallTool] {
            assert_eq!(Activity::of("a", &activity.name("a")), Some(activity));
        }
    }
}
