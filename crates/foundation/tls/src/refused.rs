//! Recognition of failed TLS handshakes.

use std::{error::Error, io, sync::Arc};

/// Whether a connection failed because one side rejected the other's certificate, or does not speak TLS.
/// `error` is a driver's error with the connection's error as its cause.
pub fn refused(error: &dyn Error) -> bool {
    let connection = error.source().and_then(|cause| {
        // The Redis driver wraps its causes in an `Arc`.
        let shared: Option<&Arc<dyn Error + Send + Sync>> = cause.downcast_ref();
        let cause: &(dyn Error + 'static) = shared.map_or(cause, |shared| &**shared);
        cause.downcast_ref::<io::Error>()
    });
    let cause = connection.and_then(io::Error::get_ref);
    cause.is_some_and(|cause| cause.is::<rustls::Error>())
}
