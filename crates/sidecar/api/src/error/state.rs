//! Errors of the state block.

use http::StatusCode;
use outrigger_blocks::outbound::Cause;
use outrigger_blocks::state::StateError;
use outrigger_component::Kind;
use tonic::Code;

use super::{ApiError, Detail};

const STORES: &str = "https://docs.dapr.io/reference/components-reference/supported-state-stores/";

const INTERNAL: (StatusCode, Code) = (StatusCode::INTERNAL_SERVER_ERROR, Code::Internal);

impl ApiError {
    /// An error of the state block. The HTTP API names the app that lacks the store, the gRPC API does not. A
    /// status from a component is returned whole over gRPC and for HTTP queries; other HTTP errors take only
    /// its status code.
    pub fn state(error: StateError, app_id: Option<&str>) -> Self {
        let Some(status) = error.api_status() else {
            return Self::of_state(error, app_id);
        };
        let answered = Self::from_component(status);
        if app_id.is_none() || matches!(error, StateError::Query { .. }) {
            return answered;
        }
        Self {
            http: answered.http,
            ..Self::of_state(error, app_id)
        }
    }

    fn of_state(error: StateError, app_id: Option<&str>) -> Self {
        match error {
            StateError::NotConfigured { store } => about_state(
                "ERR_STATE_STORE_NOT_CONFIGURED",
                (StatusCode::INTERNAL_SERVER_ERROR, Code::FailedPrecondition),
                format!("state store {store} is not configured"),
            )
            .with_detail(about_app("DAPR_STATE_NOT_CONFIGURED", app_id)),
            StateError::NotFound { store } => about_state(
                "ERR_STATE_STORE_NOT_FOUND",
                (StatusCode::BAD_REQUEST, Code::InvalidArgument),
                format!("state store {store} is not found"),
            )
            .with_detail(about_app("DAPR_STATE_NOT_FOUND", app_id)),
            StateError::IllegalKey { store, key } => {
                let message = key.to_string();
                about_state(
                    "ERR_MALFORMED_REQUEST",
                    (StatusCode::BAD_REQUEST, Code::InvalidArgument),
                    message.as_str(),
                )
                .about_store(store, "DAPR_STATE_ILLEGAL_KEY", Vec::new())
                .with_detail(Detail::BadRequest {
                    field: key.0,
                    description: message,
                })
            }
            StateError::NoTransactions { store } => about_state(
                "ERR_STATE_STORE_NOT_SUPPORTED",
                (StatusCode::INTERNAL_SERVER_ERROR, Code::Unimplemented),
                format!("state store {store} doesn't support transactions"),
            )
            .about_store(store, "DAPR_STATE_TRANSACTIONS_NOT_SUPPORTED", Vec::new())
            .with_detail(Detail::Help {
                url: STORES,
                description: "Check the list of state stores and the features they support",
            }),
            StateError::TooManyOperations { store, count, most } => about_state(
                "ERR_STATE_STORE_TOO_MANY_TRANSACTIONS",
                (StatusCode::BAD_REQUEST, Code::InvalidArgument),
                format!(
                    "the transaction contains {count} operations, which is more than what the state store \
                     supports: {most}"
                ),
            )
            .about_store(
                store,
                "DAPR_STATE_TOO_MANY_TRANSACTIONS",
                vec![
                    ("currentOpsTransaction".to_owned(), count.to_string()),
                    ("maxOpsPerTransaction".to_owned(), most.to_string()),
                ],
            ),
            StateError::NoQueries { store } => about_state(
                "ERR_STATE_STORE_NOT_SUPPORTED",
                INTERNAL,
                "state store does not support querying",
            )
            .about_store(store, "DAPR_STATE_QUERYING_NOT_SUPPORTED", Vec::new()),
            StateError::Query { store, cause } => about_state(
                "ERR_STATE_QUERY",
                read(&cause),
                format!("state store {store} query failed: {cause}"),
            )
            .about_store(store, "DAPR_STATE_QUERY_FAILED", Vec::new()),
            StateError::Get { store, key, cause } => named(
                "ERR_STATE_GET",
                INTERNAL,
                format!("fail to get {key} from state store {store}: {cause}"),
            ),
            StateError::BulkGet(cause) => named("ERR_STATE_BULK_GET", read(&cause), cause.to_string()),
            StateError::Save { store, cause } => named(
                "ERR_STATE_SAVE",
                written(&cause),
                format!("failed saving state in state store {store}: {cause}"),
            ),
            StateError::Delete { key, cause } => named(
                "ERR_STATE_DELETE",
                written(&cause),
                format!("failed deleting state with key {key}: {cause}"),
            ),
            StateError::BulkDelete { store, cause } => named(
                "ERR_STATE_BULK_DELETE",
                written(&cause),
                format!("failed deleting state in state store {store}: {cause}"),
            ),
            StateError::UnknownOperation(name) => named(
                "ERR_NOT_SUPPORTED_STATE_OPERATION",
                (StatusCode::BAD_REQUEST, Code::Unimplemented),
                format!("operation type {name} not supported"),
            ),
            StateError::Transaction(cause) => named(
                "ERR_STATE_TRANSACTION",
                INTERNAL,
                format!("error while executing state transaction: {cause}"),
            ),
            StateError::Outbox { app_id, cause } => Self::outbox(app_id, cause),
        }
    }

    /// A saved item without a key, over gRPC.
    pub fn state_key_missing() -> Self {
        named(
            "ERR_STATE_SAVE",
            (StatusCode::BAD_REQUEST, Code::InvalidArgument),
            "state key cannot be empty".to_owned(),
        )
    }

    fn about_store(self, store: String, reason: &'static str, metadata: Vec<(String, String)>) -> Self {
        self.with_detail(Detail::ResourceInfo {
            kind: "state".to_owned(),
            name: store,
            description: String::new(),
        })
        .with_detail(Detail::ErrorInfo {
            reason,
            metadata: (!metadata.is_empty()).then_some(metadata),
        })
    }
}

/// Simple form over HTTP, with its name over gRPC.
fn named(code: &'static str, status: (StatusCode, Code), message: String) -> ApiError {
    about_state(code, status, message).named_over_grpc()
}

/// The statuses of a read: a value over the size limit is the caller's error.
fn read(cause: &Cause) -> (StatusCode, Code) {
    match cause.kind() {
        Some(Kind::TooLarge) => (StatusCode::BAD_REQUEST, Code::ResourceExhausted),
        _ => INTERNAL,
    }
}

/// The statuses of a write: an ETag error is the caller's error.
fn written(cause: &Cause) -> (StatusCode, Code) {
    match cause.kind() {
        Some(Kind::EtagMismatch) => (StatusCode::CONFLICT, Code::Aborted),
        Some(Kind::InvalidEtag) => (StatusCode::BAD_REQUEST, Code::InvalidArgument),
        _ => INTERNAL,
    }
}

fn about_app(reason: &'static str, app_id: Option<&str>) -> Detail {
    let metadata = app_id.map(|id| ("appID".to_owned(), id.to_owned()));
    Detail::ErrorInfo {
        reason,
        metadata: metadata.map(|pair| vec![pair]),
    }
}

fn about_state(code: &'static str, (http, grpc): (StatusCode, Code), message: impl Into<String>) -> ApiError {
    ApiError::new(code, "state", http, grpc, message)
}

#[cfg(test)]
mod tests {
    use outrigger_component::Error;

    use super::*;

    #[test]
    fn too_large_query_is_client_error() {
        for (kind, expected) in [
            (Kind::TooLarge, (StatusCode::BAD_REQUEST, Code::ResourceExhausted)),
            (Kind::Unavailable, INTERNAL),
        ] {
            let query = StateError::Query {
                store: "s".to_owned(),
                cause: Error::new(kind, "").into(),
            };
            let error = ApiError::state(query, Some("app"));
            assert_eq!((error.http, error.grpc), expected);
            assert_eq!(error.code, "ERR_STATE_QUERY");
        }
    }
}
