//! Errors of the cryptography block.

use http::StatusCode;
use outrigger_blocks::crypto::CryptoError;
use tonic::Code;

use super::ApiError;

impl From<CryptoError> for ApiError {
    fn from(error: CryptoError) -> Self {
        let (bad, internal) = (
            (StatusCode::BAD_REQUEST, Code::InvalidArgument),
            (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal),
        );
        let (code, (http, grpc), message) = match error {
            CryptoError::NotConfigured => (
                "ERR_CRYPTO_PROVIDERS_NOT_CONFIGURED",
                internal,
                "crypto providers not configured".to_owned(),
            ),
            CryptoError::BadRequest(what) => {
                let message = format!("invalid request: {what}");
                return Self::new("ERR_BAD_REQUEST", "common", bad.0, bad.1, message);
            }
            CryptoError::NotFound(name) => (
                "ERR_CRYPTO_PROVIDER_NOT_FOUND",
                bad,
                format!("crypto provider {name} not found"),
            ),
            CryptoError::Key { name, cause } => (
                "ERR_CRYPTO_KEY",
                internal,
                format!("failed to retrieve key {name}: {cause}"),
            ),
            CryptoError::Operation(cause) | CryptoError::Stream(cause) => (
                "ERR_CRYPTO",
                internal,
                format!("failed to perform operation: {cause}"),
            ),
            CryptoError::Unimplemented => {
                let (http, grpc) = (StatusCode::NOT_IMPLEMENTED, Code::Unimplemented);
                let message = "this API is currently not implemented";
                return Self::new("ERR_API_UNIMPLEMENTED", "common", http, grpc, message);
            }
        };
        Self::new(code, "crypto", http, grpc, message)
    }
}

impl ApiError {
    /// A document that failed after the response began, over HTTP.
    pub fn broken_document(error: CryptoError) -> Self {
        match error {
            CryptoError::Stream(cause) => Self::new(
                "ERROR",
                "common",
                StatusCode::INTERNAL_SERVER_ERROR,
                Code::Internal,
                cause,
            ),
            other => other.into(),
        }
    }
}
