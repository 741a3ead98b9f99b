//! Workflow instances: the actors that own their state. A module uses only those listed below it.
//!
//! - [`actor`]: methods, reminders and watches; [`postpone`]: reminders that fail.
//! - [`run`]: a run of an instance, step by step; [`measure`]: its metrics; [`group_commit`]: steps stored with their results.
//! - [`events`], [`lifecycle`], [`fork`]: events that come, creation and purge, reruns.
//! - [`state`]: the instances on this sidecar, and one held in its turn; [`retention`]: purges when their time is over.
//! - [`dispatch`]: what a step sends; [`inbox`]: events that wait; [`cache`], [`store`]: instances in memory and stored.
//! - [`failures`]: runs that fail, and their backoff; [`watchers`]: clients that watch a status.

pub(crate) mod actor;
pub(crate) mod cache;
pub(crate) mod dispatch;
pub(crate) mod events;
pub(crate) mod failures;
pub(crate) mod fork;
pub(crate) mod group_commit;
pub(crate) mod inbox;
pub(crate) mod lifecycle;
pub(crate) mod measure;
pub(crate) mod postpone;
pub(crate) mod retention;
pub(crate) mod run;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod watchers;
