//! What can go wrong with the API.

use http::StatusCode;

/// There is no client of the API.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read, or lacks what a connection needs.
    #[error("cannot use the kubeconfig {path}: {cause} (--kubeconfig)")]
    Kubeconfig {
        /// The file, or how it was looked for.
        path: String,
        /// The reason, for the message.
        cause: String,
    },
    /// Neither in a pod, nor with a kubeconfig.
    #[error(
        "cannot find the Kubernetes API: {0}; run in a pod with a service account, or name a file with --kubeconfig"
    )]
    NotFound(String),
    /// What was configured does not make a client.
    #[error("cannot set up the client of the Kubernetes API: {0}")]
    Setup(String),
}

/// A request to the API failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// There is no such object, or no such collection.
    #[error("{what} not found")]
    NotFound {
        /// Method and address.
        what: String,
        /// Whether the API names the object, which it does where it serves objects of this kind one by one.
        named: bool,
    },
    /// It was changed meanwhile, or exists.
    #[error("{0}: changed concurrently by another client")]
    Conflict(String),
    /// The version is too old to watch from.
    #[error("{0}: the version is too old; list the collection again")]
    Expired(String),
    /// The API refused it.
    #[error("the Kubernetes API refused {what}: {status} {message}")]
    Refused {
        /// Method and address.
        what: String,
        /// HTTP status of the API server's answer.
        status: StatusCode,
        /// Its reason.
        message: String,
    },
    /// The answer is longer than what is taken in.
    #[error("{what} exceeds the limit of {most} bytes")]
    TooLarge {
        /// Method and address, or a copy.
        what: String,
        /// The limit, in bytes.
        most: usize,
    },
    /// There was no answer, or no usable one.
    #[error("the Kubernetes API did not answer {what}: {cause}")]
    Unreachable {
        /// Method and address.
        what: String,
        /// The reason, for the message.
        cause: String,
    },
}

impl ApiError {
    /// Whether there is no such object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether the rights do not suffice.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::FORBIDDEN)
    }

    /// Whether what was sent is wrong, and stays so.
    pub fn is_invalid(&self) -> bool {
        let invalid = [StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY];
        matches!(self, Self::Refused { status, .. } if invalid.contains(status))
    }
}
