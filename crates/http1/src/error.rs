//! Why requests are refused and connections end.

use std::time::Duration;

use http::StatusCode;

use crate::sending::BoxError;

/// What is wrong with a request's head; the client is told both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {what}")]
pub struct Refused {
    /// The status of the answer.
    pub status: StatusCode,
    /// What the client did.
    pub what: &'static str,
}

impl Refused {
    pub(crate) fn bad(what: &'static str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            what,
        }
    }

    pub(crate) fn large(what: &'static str) -> Self {
        Self {
            status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            what,
        }
    }
}

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// A head was refused; the client was told so.
    #[error("a request was refused with {0}")]
    Refused(#[from] Refused),
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The client began a head and did not end it.
    #[error("no whole request head within {0:?}")]
    Slow(Duration),
    /// The client left in the middle of a head.
    #[error("the connection ended in the middle of a request head")]
    Head,
    /// The client left before it had its answer.
    #[error("the client did not wait for its answer")]
    Gone,
    /// The body of an answer failed: the client sees that it is cut.
    #[error("the body of an answer failed: {0}")]
    Body(BoxError),
}

/// Why a body that is being received ends before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Cut {
    /// The connection ended.
    #[error("the connection ended in the middle of the body")]
    Connection,
    /// The chunks are none.
    #[error("the body is malformed: {0}")]
    Malformed(&'static str),
    /// Its request has been answered.
    #[error("the request has been answered before its body was read")]
    Answered,
}
