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

/// What an output binding answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Invoked {
    /// The payload.
    pub data: Bytes,
    /// Response metadata.
    pub metadata: Pairs,
    /// Media type of the data, where the binding knows it.
    pub content_type: Option<String>,
}

/// Calls an outside system.
#[async_trait]
pub trait OutputBinding: Send + Sync {
    /// Names of the operations that it supports.
    fn operations(&self) -> Vec<&str>;

    /// Does it. `None` = no answer (the API says 204). What the system said about a failure is in the error's
    /// [`metadata`](crate::Error::metadata).
    async fn invoke(&self, request: &Invoke) -> Result<Option<Invoked>>;

    /// Whether the system answers.
    async fn ping(&self) -> Result<()>;

    /// Ends what the binding runs.
    async fn close(&self);
}

/// An event of an input binding.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The payload.
    pub data: Bytes,
    /// Event metadata.
    pub metadata: Pairs,
    /// Media type of the data, where the binding knows it.
    pub content_type: Option<String>,
}

/// Takes events to the app.
pub trait EventHandler: Send + Sync {
    /// Delivers an event. `Ok` acknowledges it and carries the app's answer; after an error the binding
    /// delivers it again, if its system can.
    fn handle(&self, event: Event) -> BoxFuture<'_, Result<Bytes>>;
}

/// Gets events from an outside system.
#[async_trait]
pub trait InputBinding: Send + Sync {
    /// Reads until `drain` is cancelled. No new event is taken after that, and events that were taken are
    /// handled before it returns.
    ///
    /// # Errors
    /// What makes reading impossible; a lost connection does not, the binding connects again.
    async fn read(&self, handler: Arc<dyn EventHandler>, drain: CancellationToken) -> Result<()>;

    /// Whether the system answers.
    async fn ping(&self) -> Result<()>;

    /// Ends what the binding runs.
    async fn close(&self);
}
