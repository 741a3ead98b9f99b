//! A connection on loan from the pool.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use deadpool_postgres::{Object, Transaction};
use outrigger_component::{Error, Result};

use super::connector::Connector;

/// How long the server is asked to give up a statement.
const CANCELLING: Duration = Duration::from_secs(5);

/// What a statement runs on.
pub(super) enum Session<'a> {
    Connection(&'a Object),
    Transaction(&'a Transaction<'a>),
}

/// What has a [`Session`].
pub(super) trait AsSession: Sync {
    fn as_session(&self) -> Result<Session<'_>>;
}

impl AsSession for Transaction<'_> {
    fn as_session(&self) -> Result<Session<'_>> {
        Ok(Session::Transaction(self))
    }
}

/// A connection of the pool. It goes back only once [`OwnedSession::settle`] said that no statement is under way:
/// the next borrower of a busy connection would wait for somebody else's statement. A caller that gives up drops
/// it before that; then the connection is closed, and the server told to give up too.
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

    /// Every statement was answered, well or with an error.
    pub(super) fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }

    /// The answer to a statement is not read to its end: the connection is closed, settled or not.
    pub(super) fn leave_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }

    /// Closes the connection, with what its session holds.
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
        // Outside of a runtime nothing can be sent; the server notices when it answers.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if client.is_closed() {
            return;
        }
        let (cancel, tls) = (client.cancel_token(), self.tls.clone());
        runtime.spawn(async move {
            // Best effort, which nobody waits for: the connection is gone either way.
            let _told = tokio::time::timeout(CANCELLING, cancel.cancel_query(tls)).await;
        });
    }
}
