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

/// Which values are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// Empty = all.
    pub keys: Vec<String>,
    /// Request metadata.
    pub metadata: Pairs,
}

/// A value; all fields empty in an update that tells of a removal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Item {
    /// The item's value; any text.
    pub value: String,
    /// Its version, as the store has it.
    pub version: String,
    /// Item metadata.
    pub metadata: Pairs,
}

/// Values by key.
pub type Items = HashMap<String, Item>;

/// A subscription. Dropping it ends it too, but [`ConfigurationStore::unsubscribe`] waits for the end.
#[derive(Debug)]
pub struct Subscription {
    /// Unique in the store.
    pub id: String,
    /// What changed; ends when the subscription does.
    pub updates: mpsc::Receiver<Items>,
}

/// A store of configuration values.
#[async_trait]
pub trait ConfigurationStore: Send + Sync {
    /// The values; what does not exist is left out.
    async fn get(&self, request: &Request) -> Result<Items>;

    /// Tells of every change from now on. When it returns, changes are being watched.
    async fn subscribe(&self, request: &Request) -> Result<Subscription>;

    /// Ends a subscription.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) when there is none of that id.
    async fn unsubscribe(&self, id: &str) -> Result<()>;

    /// Whether the store answers.
    async fn ping(&self) -> Result<()>;

    /// Ends all subscriptions and what else the store runs.
    async fn close(&self);
}
