//! A connection borrowed from the pool.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use deadpool_postgres::{Object, Transaction};
use outrigger_component::{Error, Result};

use super::connector::Connector;

/// Timeout of a cancel request.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

/// The connection or transaction that a statement runs on.
pub(super) enum Session<'a> {
    Connection(&'a Object),
    Transaction(&'a Transaction<'a>),
}

/// Provides a [`Session`].
pub(super) trait AsSession: Sync {
    fn as_session(&self) -> Result<Session<'_>>;
}

impl AsSession for Transaction<'_> {
    fn as_session(&self) -> Result<Session<'_>> {
        Ok(Session::Transaction(self))
    }
}

/// A pooled connection. It is returned only after [`OwnedSession::settle`], when no statement is running: the
/// next borrower of a busy connection would wait for another caller's statement. If a caller gives up
/// earlier, the connection is closed and the server asked to cancel.
pub(super) struct OwnedSession {
    object: Option<Object>,
    settled: AtomicBool,
    unread: AtomicBool,
    tls: Connector,
}

impl OwnedSession {
    pub(super) fn new(object: Object, tls: Connector) -> Self {
        Self {
            object: Some(object),
            settled: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            tls,
        }
    }

    pub(super) fn client(&self) -> Result<&Object> {
        self.object.as_ref().ok_or_else(Error::closed)
    }

    pub(super) fn client_mut(&mut self) -> Result<&mut Object> {
        self.object.as_mut().ok_or_else(Error::closed)
    }

    /// Every statement was answered, successfully or not.
    pub(super) fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    /// The answer to a statement is not read to its end: the connection is closed even if settled.
    pub(super) fn leave_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// Closes the connection with its session state.
    pub(super) fn discard(mut self) {
        if let Some(object) = self.object.take() {
            drop(Object::take(object));
        }
    }
}

impl AsSession for OwnedSession {
    fn as_session(&self) -> Result<Session<'_>> {
        self.client().map(Session::Connection)
    }
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        if self.settled.load(Ordering::Relaxed) && !self.unread.load(Ordering::Relaxed) {
            return;
        }
        let Some(client) = self.object.take().map(Object::take) else {
            return;
        };
        // Outside a runtime no cancel request can be sent; the server notices when it answers.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if client.is_closed() {
            return;
        }
        let (cancel, tls) = (client.cancel_token(), self.tls.clone());
        runtime.spawn(async move {
            // Best effort in the background: the connection closes either way.
            let _told = tokio::time::timeout(CANCEL_TIMEOUT, cancel.cancel_query(tls)).await;
        });
    }
}
