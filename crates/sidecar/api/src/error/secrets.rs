//! Errors of the secrets block.

use http::StatusCode;
use outrigger_blocks::secrets::SecretError;
use tonic::Code;

use super::ApiError;

impl From<SecretError> for ApiError {
    fn from(error: SecretError) -> Self {
        let internal = StatusCode::INTERNAL_SERVER_ERROR;
        let (code, http, grpc, message) = match error {
            SecretError::NotConfigured => (
                "ERR_SECRET_STORES_NOT_CONFIGURED",
                internal,
                Code::FailedPrecondition,
                "secret store is not configured".to_owned(),
            ),
            SecretError::NotFound { store } => (
                "ERR_SECRET_STORE_NOT_FOUND",
                StatusCode::UNAUTHORIZED,
                Code::InvalidArgument,
                format!("failed finding secret store with key {store}"),
            ),
            SecretError::Denied { store, key } => (
                "ERR_PERMISSION_DENIED",
                StatusCode::FORBIDDEN,
                Code::PermissionDenied,
                format!("access denied by policy to get {key:?} from {store:?}"),
            ),
            SecretError::Get {
                store,
                key: Some(key),
                cause,
            } => (
                "ERR_SECRET_GET",
                internal,
                Code::Internal,
                format!("failed getting secret with key {key} from secret store {store}: {cause}"),
            ),
            SecretError::Get {
                store,
                key: None,
                cause,
            } => (
                "ERR_SECRET_GET",
                internal,
                Code::Internal,
                format!("failed getting secrets from secret store {store}: {cause}"),
            ),
        };
        Self::new(code, "secret", http, grpc, message)
    }
}
