//! The building blocks: each written once, called by both APIs.

pub mod configuration;
pub mod conversation;
pub mod crypto;
pub mod invoke;
pub mod lock;
pub mod metadata;
pub mod outbound;
pub mod registry;
pub mod secrets;
pub mod state;
