//! `pubsub.pulsar`: Apache Pulsar, with the messages, keys, properties and subscriptions of Dapr's component,
//! so that sidecars of both can share a topic and a subscription. Empty without the feature `client`.
//!
//! The crate `pulsar` provides the protocol's messages and frames. Its consumer is not used: it acknowledges
//! a batch with its first message, and acknowledgements wait behind messages queued for the app. This crate
//! therefore manages connections: one for each published topic and each subscribed partition.
//!
//! A message is acknowledged once the app has handled it, and a batch once the app has handled all its
//! messages. Refused messages are redelivered after `redeliveryDelay`: by the broker for shared
//! subscriptions, otherwise from here to preserve the order of keys.

#![cfg(feature = "client")]

mod auth;
mod broker;
mod command;
mod connection;
mod consumer;
mod entry;
mod lookup;
mod outgoing;
mod packing;
mod producer;
mod redelivery;
mod session;
mod settings;

pub use broker::add;
