//! Workflow instances: the actors that own their state. A module uses only those listed below it.
//!
//! - [`actor`]: methods, reminders and watches; [`postpone`]: failed reminders.
//! - [`run`]: a run, step by step; [`measure`]: its metrics; [`group_commit`]: steps stored with their
//!   results.
//! - [`access`], [`events`], [`lifecycle`], [`fork`]: calls of other apps, incoming events, creation and purge,
//!   reruns.
//! - [`family`], [`subtree`]: an instance with its children: purged together, asked whether they have ended.
//! - [`state`]: the instances on this sidecar, and one held in its turn; [`retention`]: purges after the
//!   retention time.
//! - [`dispatch`]: sends a step's effects; [`propagate`]: histories passed on with them; [`inbox`]: waiting events; [`cache`], [`store`]: instances in
//!   memory and stored.
//! - [`failures`]: failed runs and their backoff; [`watchers`]: clients that watch a status.

pub(crate) mod access;
pub(crate) mod actor;
pub(crate) mod cache;
pub(crate) mod dispatch;
pub(crate) mod events;
pub(crate) mod failures;
pub(crate) mod family;
pub(crate) mod fork;
pub(crate) mod group_commit;
pub(crate) mod inbox;
pub(crate) mod lifecycle;
pub(crate) mod measure;
pub(crate) mod postpone;
pub(crate) mod propagate;
pub(crate) mod retention;
pub(crate) mod run;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod subtree;
pub(crate) mod watchers;
