//! Environment variables that describe the sidecar to its components.

use super::Config;

impl Config {
    /// Variables that components and child processes expect in the sidecar's environment. `host` is the
    /// detected host address, `None` if the detection failed; `internal_port` is the port in use.
    pub fn own_environment(&self, host: Option<&str>, internal_port: u16) -> Vec<(&'static str, String)> {
        let mut variables = vec![
            ("APP_ID", self.app_id.clone()),
            ("APP_PORT", self.app.port.to_string()),
            ("DAPR_PORT", internal_port.to_string()),
            ("DAPR_GRPC_PORT", self.api.grpc_port.to_string()),
            ("DAPR_HTTP_PORT", self.api.http_port.to_string()),
            ("DAPR_METRICS_PORT", self.metrics.port.to_string()),
            ("DAPR_PROFILE_PORT", self.profiling.port.to_string()),
        ];
        variables.extend(host.map(|host| ("HOST_ADDRESS", host.to_owned())));
        variables
    }
}
