//! Actors, and workflows as internal actors.

pub mod actors;
pub mod workflow;
