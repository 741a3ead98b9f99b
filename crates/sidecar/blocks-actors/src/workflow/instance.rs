//! Workflow instances: the actors that own their state.

pub(crate) mod actor;
pub(crate) mod cache;
pub(crate) mod dispatch;
pub(crate) mod failures;
pub(crate) mod fork;
pub(crate) mod group_commit;
pub(crate) mod inbox;
pub(crate) mod retention;
pub(crate) mod run;
pub(crate) mod store;
pub(crate) mod watchers;
