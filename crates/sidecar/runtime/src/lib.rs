//! The base of the building blocks: the app channel, resilience, metrics, event delivery, the life cycles of
//! components and of the process, and the scheduler client. It depends on no block.

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
