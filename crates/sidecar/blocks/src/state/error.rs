//! Errors of the state block.

use outrigger_component::ApiStatus;

use super::key::IllegalKey;
use crate::outbound::Cause;

/// Why a state operation failed.
#[derive(Debug)]
pub enum StateError {
    /// The sidecar has no state store.
    NotConfigured {
        /// The store asked for.
        store: String,
    },
    /// There is no store with this name.
    NotFound {
        /// The store asked for.
        store: String,
    },
    /// The key contains the separator.
    IllegalKey {
        /// Name of the state store.
        store: String,
        /// Why the key is invalid.
        key: IllegalKey,
    },
    /// A value could not be read.
    Get {
        /// Name of the state store.
        store: String,
        /// The app's key.
        key: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// Several values could not be read.
    BulkGet(Cause),
    /// One or more values could not be written.
    Save {
        /// Name of the state store.
        store: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// A value could not be deleted.
    Delete {
        /// The app's key.
        key: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// Several values could not be deleted.
    BulkDelete {
        /// Name of the state store.
        store: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// The store does not support transactions.
    NoTransactions {
        /// Name of the state store.
        store: String,
    },
    /// The operation is neither `upsert` nor `delete`.
    UnknownOperation(String),
    /// More operations than the store supports in a transaction.
    TooManyOperations {
        /// Name of the state store.
        store: String,
        /// Number of operations of the request.
        count: usize,
        /// The most operations that the store supports in a transaction.
        most: usize,
    },
    /// The transaction failed and had no effect.
    Transaction(Cause),
    /// The outbox events could not be published; the transaction had no effect.
    Outbox {
        /// App id of the caller.
        app_id: String,
        /// The reason, for the message.
        cause: String,
    },
    /// The store does not support queries.
    NoQueries {
        /// Name of the state store.
        store: String,
    },
    /// The query failed.
    Query {
        /// Name of the state store.
        store: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
}

impl StateError {
    /// The status that the store's component wants callers to see.
    pub fn api_status(&self) -> Option<&ApiStatus> {
        match self {
            Self::Get { cause, .. }
            | Self::BulkGet(cause)
            | Self::Save { cause, .. }
            | Self::Delete { cause, .. }
            | Self::BulkDelete { cause, .. }
            | Self::Query { cause, .. } => cause.api_status(),
            // Errors of transactions have only the texts of the API.
            _ => None,
        }
    }
}
