//! Activities: the actors that run them, one execution for all reminders of one activity, and the count of their failures.

pub(crate) mod actor;
pub(crate) mod executions;
pub(crate) mod failures;
pub(crate) mod work;
