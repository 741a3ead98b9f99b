//! Errors of the API.

use http::StatusCode;

/// Why there is no client of the API.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read, or is incomplete.
    #[error("cannot use the kubeconfig {path}: {cause} (--kubeconfig)")]
    Kubeconfig {
        /// The file, or how it was searched for.
        path: String,
        /// The cause.
        cause: String,
    },
    /// Neither in a pod, nor with a kubeconfig.
    #[error(
        "cannot find the Kubernetes API: {0}; run in a pod with a service account, or name a file with --kubeconfig"
    )]
    NotFound(String),
    /// The configuration does not form a valid client.
    #[error("cannot set up the client of the Kubernetes API: {0}")]
    Setup(String),
}

/// Why a request to the API failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The object or collection does not exist.
    #[error("{what} not found")]
    NotFound {
        /// Method and address.
        what: String,
        /// Whether the API names the object, as it does if it serves single objects of this kind.
        named: bool,
    },
    /// The object was changed concurrently, or already exists.
    #[error("{0}: changed concurrently by another client")]
    Conflict(String),
    /// The version is too old to watch from.
    #[error("{0}: the version is too old; list the collection again")]
    Expired(String),
    /// The API rejected the request.
    #[error("the Kubernetes API refused {what}: {status} {message}")]
    Refused {
        /// Method and address.
        what: String,
        /// HTTP status of the response.
        status: StatusCode,
        /// The API's reason.
        message: String,
    },
    /// The response exceeds the limit.
    #[error("{what} exceeds the limit of {most} bytes")]
    TooLarge {
        /// Method and address, or a copy.
        what: String,
        /// The limit in bytes.
        most: usize,
    },
    /// There was no response, or an invalid one.
    #[error("the Kubernetes API did not answer {what}: {cause}")]
    Unreachable {
        /// Method and address.
        what: String,
        /// The cause.
        cause: String,
    },
}

impl ApiError {
    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether permissions are missing.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if *status == StatusCode::FORBIDDEN)
    }

    /// Whether the request is invalid, so that a retry does not help.
    pub fn is_invalid(&self) -> bool {
        let invalid = [StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY];
        matches!(self, Self::Refused { status, .. } if invalid.contains(status))
    }
}
