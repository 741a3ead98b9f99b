//! What can go wrong with state.

use outrigger_component::ApiStatus;

use super::key::IllegalKey;
use crate::outbound::Cause;

/// Why a state operation failed.
#[derive(Debug)]
pub enum StateError {
    /// There is no state store at all.
    NotConfigured {
        /// The store asked for.
        store: String,
    },
    /// There is none of this name.
    NotFound {
        /// The store asked for.
        store: String,
    },
    /// A key with the separator.
    IllegalKey {
        /// Name of the state store.
        store: String,
        /// Why the key is not allowed.
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
    /// One or several values could not be written.
    Save {
        /// Name of the state store.
        store: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// A value could not be removed.
    Delete {
        /// The app's key.
        key: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// Several values could not be removed.
    BulkDelete {
        /// Name of the state store.
        store: String,
        /// The component's error, or the policy that ended the call.
        cause: Cause,
    },
    /// The store has no transactions.
    NoTransactions {
        /// Name of the state store.
        store: String,
    },
    /// Neither `upsert` nor `delete`.
    UnknownOperation(String),
    /// More operations than the store takes at once.
    TooManyOperations {
        /// Name of the state store.
        store: String,
        /// Number of operations of the request.
        count: usize,
        /// The most operations that the store supports in a transaction.
        most: usize,
    },
    /// The transaction failed; nothing of it happened.
    Transaction(Cause),
    /// The events of the transaction could not be published; nothing of it happened.
    Outbox {
        /// App id of the caller.
        app_id: String,
        /// The reason, for the message.
        cause: String,
    },
    /// The store cannot be queried.
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
    /// What the store's component wants callers to be told.
    pub fn api_status(&self) -> Option<&ApiStatus> {
        match self {
            Self::Get { cause, .. }
            | Self::BulkGet(cause)
            | Self::Save { cause, .. }
            | Self::Delete { cause, .. }
            | Self::BulkDelete { cause, .. }
            | Self::Query { cause, .. } => cause.api_status(),
            // A transaction fails in the words of the API alone.
            _ => None,
        }
    }
}
