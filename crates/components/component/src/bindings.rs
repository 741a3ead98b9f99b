//! Bindings: calls to outside systems, and events from them.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::{Pairs, Result};

/// A call of an output binding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invoke {
    /// E.g. `create`; one of [`OutputBinding::operations`].
    pub operation: String,
    /// The payload.
    pub data: Bytes,
    /// Request metadata.
    pub metadata: Pairs,
}

/// The response of an output binding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invoked {
    /// The payload.
    pub data: Bytes,
    /// Response metadata.
    pub metadata: Pairs,
    /// Media type of the data, if the binding knows it.
    pub content_type: Option<String>,
}

/// Sends requests to an outside system.
#[async_trait]
pub trait OutputBinding: Send + Sync {
    /// Names of the supported operations.
    fn operations(&self) -> Vec<&str>;

    /// Runs an operation. `None` means no response (the API answers 204). On failure, the system's response
    /// is in the error's [`metadata`](crate::Error::metadata).
    async fn invoke(&self, request: &Invoke) -> Result<Option<Invoked>>;

    /// Checks that the system responds.
    async fn ping(&self) -> Result<()>;

    /// Stops the binding's tasks.
    async fn close(&self);
}

/// An event of an input binding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The payload.
    pub data: Bytes,
    /// Event metadata.
    pub metadata: Pairs,
    /// Media type of the data, if the binding knows it.
    pub content_type: Option<String>,
}

/// Passes events to the app.
pub trait EventHandler: Send + Sync {
    /// Delivers an event. `Ok` acknowledges it and carries the app's response. After an error the binding
    /// redelivers the event if its system supports that.
    fn handle(&self, event: Event) -> BoxFuture<'_, Result<Bytes>>;
}

/// Receives events from an outside system.
#[async_trait]
pub trait InputBinding: Send + Sync {
    /// Reads until `drain` is cancelled. Then it takes no new events, handles those already received and
    /// returns.
    ///
    /// # Errors
    /// Reading is impossible. After a lost connection the binding reconnects instead.
    async fn read(&self, handler: Arc<dyn EventHandler>, drain: CancellationToken) -> Result<()>;

    /// Checks that the system responds.
    async fn ping(&self) -> Result<()>;

    /// Stops the binding's tasks.
    async fn close(&self);
}
