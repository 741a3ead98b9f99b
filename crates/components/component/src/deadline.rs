//! A bound on every wait for an outside system.

use std::{future::Future, time::Duration};

use crate::{Error, Kind, Result};

/// `work`, or an error of kind `Timeout` that says what was waited for.
pub async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = Result<T>> + Send,
) -> Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(Error::new(
            Kind::Timeout,
            format!("{what}: no answer within {limit:?}"),
        )),
    }
}
