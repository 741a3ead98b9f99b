//! The management API.

pub(crate) mod control;
pub(crate) mod list;
pub(crate) mod overview;
pub(crate) mod purge;
pub(crate) mod status;
pub(crate) mod stored;
