//! Configuration stores: values that change while the app runs.

mod follow;
mod subscriptions;

use std::collections::HashMap;

use async_trait::async_trait;
use tokio::sync::mpsc;

pub use self::{
    follow::{Follow, Heard, follow},
    subscriptions::{Subscriptions, changes},
};
use crate::{Pairs, Result};

/// A request for values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// Requested keys; empty for all.
    pub keys: Vec<String>,
    /// Request metadata.
    pub metadata: Pairs,
}

/// A value. In an update, empty fields mean that the key was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Item {
    /// The value, any text.
    pub value: String,
    /// The store's version of the value.
    pub version: String,
    /// Item metadata.
    pub metadata: Pairs,
}

/// Values by key.
pub type Items = HashMap<String, Item>;

/// A subscription. Dropping it ends it; [`ConfigurationStore::unsubscribe`] also waits for its task.
#[derive(Debug)]
pub struct Subscription {
    /// Unique within the store.
    pub id: String,
    /// Changed items; closes with the subscription.
    pub updates: mpsc::Receiver<Items>,
}

/// A store of configuration values.
#[async_trait]
pub trait ConfigurationStore: Send + Sync {
    /// The requested values; missing keys are left out.
    async fn get(&self, request: &Request) -> Result<Items>;

    /// Reports every later change. Watching has started when this returns.
    async fn subscribe(&self, request: &Request) -> Result<Subscription>;

    /// Ends a subscription.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) for an unknown id.
    async fn unsubscribe(&self, id: &str) -> Result<()>;

    /// Checks that the store responds.
    async fn ping(&self) -> Result<()>;

    /// Ends all subscriptions and the store's tasks.
    async fn close(&self);
}
