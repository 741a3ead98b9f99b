//! Activities: their actors, their executions (one for all reminders of an activity), and their failure
//! counts.

pub(crate) mod actor;
pub(crate) mod executions;
pub(crate) mod failures;
mod invocation;
pub(crate) mod work;
