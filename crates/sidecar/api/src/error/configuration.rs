//! Errors of the configuration block.

use http::StatusCode;
use outrigger_blocks::configuration::ConfigurationError;
use tonic::Code;

use super::ApiError;

impl From<ConfigurationError> for ApiError {
    fn from(error: ConfigurationError) -> Self {
        let internal = StatusCode::INTERNAL_SERVER_ERROR;
        let (code, http, grpc, message) = match error {
            ConfigurationError::NotConfigured => (
                "ERR_CONFIGURATION_STORE_NOT_CONFIGURED",
                internal,
                Code::FailedPrecondition,
                "configuration stores not configured".to_owned(),
            ),
            ConfigurationError::NotFound { store } => (
                "ERR_CONFIGURATION_STORE_NOT_FOUND",
                StatusCode::BAD_REQUEST,
                Code::InvalidArgument,
                format!("configuration store {store} not found"),
            ),
            ConfigurationError::NoApp => {
                let message = "app channel is not initialized. cannot subscribe to configuration updates";
                let code = Code::FailedPrecondition;
                return Self::new("ERR_APP_CHANNEL_NIL", "common", internal, code, message);
            }
            ConfigurationError::Get { store, keys, cause } => (
                "ERR_CONFIGURATION_GET",
                internal,
                Code::Internal,
                format!(
                    "failed to get {} from Configuration store {store}: {cause}",
                    list(&keys)
                ),
            ),
            ConfigurationError::Subscribe { store, keys, cause } => (
                "ERR_CONFIGURATION_SUBSCRIBE",
                internal,
                Code::InvalidArgument,
                format!(
                    "failed to subscribe {} from Configuration store {store}: {cause}",
                    list(&keys)
                ),
            ),
            ConfigurationError::Unsubscribe { id, cause } => (
                "ERR_CONFIGURATION_UNSUBSCRIBE",
                internal,
                Code::Internal,
                format!("failed to unsubscribe to configuration request {id}: {cause}"),
            ),
        };
        Self::new(code, "configuration", http, grpc, message).named_over_grpc()
    }
}

/// Keys in the list format of the contract.
fn list(keys: &[String]) -> String {
    format!("[{}]", keys.join(" "))
}
