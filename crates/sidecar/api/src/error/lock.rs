//! Errors of the lock block.

use http::StatusCode;
use outrigger_blocks::lock::LockError;
use tonic::Code;

use super::ApiError;

impl From<LockError> for ApiError {
    fn from(error: LockError) -> Self {
        let internal = StatusCode::INTERNAL_SERVER_ERROR;
        let refused = (StatusCode::BAD_REQUEST, Code::InvalidArgument);
        let (code, (http, grpc), message) = match error {
            LockError::ExpiryNotPositive { store } => {
                return Self::malformed(format!("ExpiryInSeconds is not positive in lock store {store}"));
            }
            LockError::NoResource { store } => {
                return Self::malformed(format!("ResourceId is empty in lock store {store}"));
            }
            LockError::NoOwner { store } => {
                return Self::malformed(format!("LockOwner is empty in lock store {store}"));
            }
            LockError::NotConfigured => (
                "ERR_LOCK_STORE_NOT_CONFIGURED",
                (internal, Code::FailedPrecondition),
                "lock store is not configured".to_owned(),
            ),
            LockError::NotFound { store } => (
                "ERR_LOCK_STORE_NOT_FOUND",
                refused,
                format!("lock store {store} not found"),
            ),
            LockError::TryLock(cause) => (
                "ERR_TRY_LOCK",
                (internal, Code::Internal),
                format!("failed to try acquiring lock: {cause}"),
            ),
            LockError::Unlock(cause) => (
                "ERR_UNLOCK",
                (internal, Code::Internal),
                format!("failed to release lock: {cause}"),
            ),
        };
        Self::new(code, "lock", http, grpc, message)
    }
}
