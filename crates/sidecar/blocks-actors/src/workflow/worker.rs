//! Workers: their work queue, streams and answers.

pub(crate) mod cluster;
pub(crate) mod error;
pub(crate) mod executor;
pub(crate) mod histories;
pub(crate) mod item;
pub(crate) mod oversized;
pub(crate) mod queue;
pub(crate) mod stream;
pub(crate) mod workers;
