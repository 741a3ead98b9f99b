//! The management API of workflows.

pub(crate) mod control;
pub(crate) mod error;
pub(crate) mod list;
pub(crate) mod overview;
pub(crate) mod purge;
pub(crate) mod rerun;
pub(crate) mod status;
pub(crate) mod stored;
