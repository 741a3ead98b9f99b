//! `pubsub.pulsar`: topics of Apache Pulsar, with messages, keys, properties and subscriptions as Dapr's component has
//! them, so that its sidecars and ours share a topic and a subscription. Empty without the feature `client`.
//!
//! The crate `pulsar` brings the messages of the protocol and their frames. Its consumer is not used: it acknowledges a
//! batch with the first message of it, and acknowledgements wait behind messages that wait for the app. Connections are
//! therefore ours, one for each topic that is published to and each partition that is subscribed to.
//!
//! A message is acknowledged once the app is done with it, a batch once it is with all of its messages. What the app
//! refused comes again after `redeliveryDelay`: from the broker where the subscription is shared, otherwise from here, so
//! that keys keep their order.

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
