//! Deadlines for calls of outside systems.

use std::{future::Future, time::Duration};

use crate::{Error, Kind, Result};

/// Runs `work`; after `limit`, returns an error of kind `Timeout` that names `what`.
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
