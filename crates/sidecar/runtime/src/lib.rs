//! What the building blocks run on: the channel to the app, resilience, metrics, the delivery of events, the life of
//! components and of the process, the scheduler's client. It knows no block.

pub mod app;
pub mod call;
pub mod components;
pub mod delivery;
pub mod internal;
pub mod life;
pub mod metrics;
pub mod middleware;
pub mod registry;
pub mod resilience;
pub mod scheduler;
